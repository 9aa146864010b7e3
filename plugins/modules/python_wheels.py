#!/usr/bin/python
"""Ansible module: pinned files of the Python package index in a folder of this machine, see bigiron.onhost.toolkit."""

from __future__ import annotations

DOCUMENTATION = r"""
module: python_wheels
short_description: Have pinned wheels in a folder, fetched with pip
description:
  - Runs where pip and its configuration are, as a rule delegated to the controller. pip accepts no other bytes than the pinned ones.
options:
  folder: {type: path, required: true, description: "Where they are kept."}
  wheels:
    type: list
    elements: dict
    required: true
    description: The files.
    options:
      name: {type: str, required: true, description: "Name of the package."}
      version: {type: str, required: true, description: "Its version."}
      file: {type: str, required: true, description: "Name of the wheel."}
      sha256: {type: str, required: true, description: "SHA-256 of the wheel."}
author: bigiron
"""
EXAMPLES = r"""
- name: Bring a wheel
  bigiron.host.python_wheels:
    folder: /var/cache/wheels
    wheels:
      - name: six
        version: 1.17.0
        file: six-1.17.0-py2.py3-none-any.whl
        sha256: 4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274
  delegate_to: localhost
"""
RETURN = r"""
fetched: {type: list, returned: always, description: "Files that were not there."}
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.errors import BigironError
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost import toolkit

TEXT = {"type": "str", "required": True}


def main():
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "wheels": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {"name": TEXT, "version": TEXT, "file": TEXT, "sha256": TEXT},
            },
        },
        supports_check_mode=True,
    )
    folder, wheels = Path(module.params["folder"]), module.params["wheels"]
    if module.check_mode:
        missing = [each["file"] for each in wheels if not (folder / each["file"]).is_file()]
        module.exit_json(changed=bool(missing), fetched=missing)
    try:
        fetched = toolkit.bring(wheels, folder)
    except BigironError as error:
        module.fail_json(msg=f"{error}; {error.hint}" if error.hint else str(error))
    module.exit_json(changed=bool(fetched), fetched=fetched)


if __name__ == "__main__":
    main()
