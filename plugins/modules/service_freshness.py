#!/usr/bin/python
"""Ansible module: is the running process older than what it was started from, see bigiron.onhost.unit."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_freshness
short_description: Tell whether a running service is older than the files it depends on
description:
  - A run that was interrupted between a change and the restart leaves a process that no handler will restart; this finds it.
  - Has systemd read a unit that changed, and touches no process.
  - What systemd complains about in the unit with its drop-ins is an error, and so is a drop-in that decides what runs.
options:
  name: {type: str, required: true, description: "Unit name."}
  depends_on: {type: list, elements: path, default: [], description: "Files and links; a link counts by its own change."}
author: bigiron
"""
EXAMPLES = r"""
- name: See whether the service must be restarted
  bigiron.host.service_freshness:
    name: llama-server-main.service
    depends_on: [/etc/systemd/system/llama-server-main.service, /opt/bigiron/current]
"""
RETURN = r"""
active: {type: bool, returned: success, description: "Whether it runs (or starts)."}
stale: {type: bool, returned: success, description: "Whether it runs and is older than something it depends on."}
because: {type: list, returned: success, description: "What changed after it started."}
unread: {type: bool, returned: success, description: "Whether systemd had not read the unit and its drop-ins as they are."}
gave_up: {type: bool, returned: success, description: "Whether systemd holds it for failed."}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.errors import BigironError
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost import unit as unitfile


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "depends_on": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    name = module.params["name"]
    path = unitfile.UNIT_DIR / name
    try:
        complaints = unitfile.verify(path) if path.exists() and not module.check_mode else []
        if complaints:
            raise BigironError(
                f"systemd complains about the unit with its drop-ins: {'; '.join(complaints[:3])}",
                where=str(path),
                hint=f"look into {path}.d, then run it again",
            )
        answer = unitfile.freshness(name, module.params["depends_on"], reload=not module.check_mode)
        unitfile.refuse_overrides(name)
    except BigironError as error:
        module.fail_json(msg=str(error), hint=error.hint)
    except OSError as error:
        module.fail_json(msg=f"systemctl cannot be run: {error.strerror}", hint="this role needs a host with systemd")
    module.exit_json(changed=False, **answer)


if __name__ == "__main__":
    main()
