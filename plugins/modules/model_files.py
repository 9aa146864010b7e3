#!/usr/bin/python
"""Ansible module: the proved files of one model revision, see bigiron.onhost.store."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_files
short_description: Bring the files of a model revision to a host and prove them
description:
  - A file counts as there when the proof record's size, time and inode still agree.
  - A file without a record is hashed and adopted.
  - A missing file that bigiron brought for another revision gets a second name; one that a person has elsewhere is refused, with the move.
  - Any other missing file is fetched into C(<path>.part), continued after a kill, hashed on the way.
  - It gets its name when size and hash agree.
  - Refused before the first byte when a file system is too small. A file of a person's is never overwritten.
options:
  state: {type: str, choices: [present, absent], default: present, description: "absent removes what bigiron brought."}
  root: {type: path, required: true, description: "Folder of all models."}
  repo: {type: str, default: "", description: "org/name."}
  revision: {type: str, default: "", description: "Commit, 40 hex digits."}
  endpoint: {type: str, default: "https://huggingface.co", description: "Address of the hub or of a mirror."}
  token: {type: str, default: "", description: "Access token of the hub; sent over TLS or to this machine only."}
  files:
    type: list
    elements: dict
    default: []
    description: "The wanted files."
    suboptions:
      path: {type: str, required: true, description: "Path in the repository."}
      size: {type: int, required: true, description: "Bytes."}
      sha256: {type: str, required: true, description: "SHA-256 in hex."}
  reserve_bytes: {type: int, default: 1073741824, description: "Bytes that stay free on the file system."}
  patience_s: {type: int, default: 600, description: "Seconds that may be spent waiting for the server without progress."}
author: bigiron
"""
EXAMPLES = r"""
- name: Bring the model
  bigiron.host.model_files:
    root: /srv/models
    repo: org/name
    revision: 0123456789abcdef0123456789abcdef01234567
    files: [{path: model.gguf, size: 12, sha256: "{{ sum }}"}]
"""
RETURN = r"""
folder: {type: str, returned: success, description: "Folder of the revision."}
proved: {type: list, returned: success, description: "Files the record vouches for."}
adopted: {type: list, returned: success, description: "Files that stood there unrecorded and turned out right."}
linked: {type: list, returned: success, description: "Files of another revision that got a second name."}
fetched: {type: list, returned: success, description: "Files that were (check mode: would be) fetched."}
received_bytes: {type: int, returned: success, description: "Bytes that came over the network."}
removed: {type: list, returned: when absent, description: "Removed paths."}
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.errors import BigironError
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost import store
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost.system import end_with_connection


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "root": {"type": "path", "required": True},
            "repo": {"type": "str", "default": ""},
            "revision": {"type": "str", "default": ""},
            "endpoint": {"type": "str", "default": "https://huggingface.co"},
            "token": {"type": "str", "default": "", "no_log": True},
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "str", "required": True},
                    "size": {"type": "int", "required": True},
                    "sha256": {"type": "str", "required": True},
                },
            },
            "reserve_bytes": {"type": "int", "default": store.RESERVE_BYTES},
            "patience_s": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    end_with_connection()
    try:
        if wanted["state"] == "absent":
            removed = store.remove_recorded(Path(wanted["root"]), check=module.check_mode)
            module.exit_json(changed=bool(removed), removed=removed, diff=_diff(removed, []))
        answer = store.main({**wanted, "check": module.check_mode})
    except BigironError as error:
        module.fail_json(msg=str(error), hint=error.hint, refused=error.exit_code == 4)
    module.exit_json(**answer, diff=_diff([], answer["linked"] + answer["fetched"]))


def _diff(before, after):
    return (
        {"before": "".join(f"{name}\n" for name in before), "after": "".join(f"{name}\n" for name in after)}
        if before or after
        else {}
    )


if __name__ == "__main__":
    main()
