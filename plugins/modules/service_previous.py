#!/usr/bin/python
"""Ansible module: what a service was before it is changed, see bigiron.onhost.previous."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_previous
short_description: Keep what a service was until its successor is ready, or put it back
description:
  - C(kept) notes unit file, key and release of the running process; when nothing runs there is nothing to keep.
  - C(restored) puts them back, restarts what does not run as before, and waits until it is ready. Without anything kept the unit is stopped and disabled.
  - C(absent) says that the successor is ready. What it replaced becomes the way back, in C(rollback),
    if that was another pair of unit and release. A run that was interrupted in between leaves it to the next one.
  - C(rolled_back) keeps what runs and puts the pair of C(rollback) in its place; it starts nothing.
  - Keeping and forgetting are notes of one run and no change of the host.
options:
  unit: {type: str, required: true, description: "Unit name."}
  state: {type: str, required: true, choices: [kept, restored, absent, rolled_back], description: "What to do."}
  key_file: {type: path, required: true, description: "File with the API key."}
  prefix: {type: path, default: /opt/bigiron, description: "Folder of the releases."}
  record: {type: path, required: true, description: "Where it is kept. It holds the key."}
  rollback: {type: path, required: true, description: "Where the way back is kept. It holds no key."}
  was_rolled_back: {type: bool, default: false, description: "With C(absent): what is ready now is the previous pair."}
  depends_on: {type: list, elements: path, default: [], description: "What a process that is to be kept must not be older than, when there is an older note."}
  because: {type: str, default: "", description: "Why the successor is given up; empty asks systemd."}
  timeout_s: {type: int, default: 600, description: "Seconds until the previous service must be ready."}
author: bigiron
"""
EXAMPLES = r"""
- name: Keep what runs until its successor is ready
  bigiron.host.service_previous:
    unit: llama-server-main.service
    state: kept
    key_file: /etc/bigiron/credentials/main.key
    record: /etc/bigiron/credentials/main.previous
    rollback: /etc/bigiron/main.rollback.json
"""
RETURN = r"""
because: {type: str, returned: restored, description: "Why the successor was given up."}
outcome: {type: str, returned: restored, description: "What runs now."}
release: {type: str, returned: rolled_back, description: "The previous release; empty where none of ours ran."}
host: {type: str, returned: rolled_back, description: "Address that the previous unit listens on."}
port: {type: int, returned: rolled_back, description: "Port that the previous unit listens on."}
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.errors import BigironError
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost import previous, rollback
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost.progress import Progress


def restored(service, because, timeout_s):
    """Never fails: why the successor was given up must not be lost behind a second failure."""
    report = Progress("llama_server")

    def progress(waiting):
        report("putting the previous service back", int(min(waiting.seconds, timeout_s)), timeout_s)

    try:
        because = because or previous.cause(service)
        outcome = previous.restore(service, timeout_s, progress)
    except (BigironError, OSError, ValueError) as error:
        outcome = f"the previous service could not be put back: {error}"
    finally:
        report.close()
    return {"changed": True, "because": because, "outcome": outcome}


def main():
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "state": {"type": "str", "required": True, "choices": ["kept", "restored", "absent", "rolled_back"]},
            "key_file": {"type": "path", "required": True, "no_log": False},
            "prefix": {"type": "path", "default": "/opt/bigiron"},
            "record": {"type": "path", "required": True},
            "rollback": {"type": "path", "required": True},
            "was_rolled_back": {"type": "bool", "default": False},
            "depends_on": {"type": "list", "elements": "path", "default": []},
            "because": {"type": "str", "default": ""},
            "timeout_s": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    given = module.params
    if module.check_mode:
        module.exit_json(changed=False, because=given["because"], outcome="check mode: nothing was changed")
    service = previous.Service(given["unit"], Path(given["key_file"]), Path(given["prefix"]), Path(given["record"]))
    way = rollback.Way(service, Path(given["rollback"]))
    answer = {"changed": False}
    try:
        if given["state"] == "kept":
            previous.keep(service, given["depends_on"])
        elif given["state"] == "absent":
            rollback.remember(way, rolled_back=given["was_rolled_back"])
        elif given["state"] == "rolled_back":
            answer = {"changed": True, **rollback.take_back(way, given["depends_on"])}
        else:
            answer = restored(service, given["because"], given["timeout_s"])
    except BigironError as error:
        module.fail_json(msg=str(error), hint=error.hint)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
