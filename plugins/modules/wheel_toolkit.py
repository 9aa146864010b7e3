#!/usr/bin/python
"""Ansible module: a toolkit unpacked from wheels that lie on this host, see bigiron.onhost.toolkit."""

from __future__ import annotations

DOCUMENTATION = r"""
module: wheel_toolkit
short_description: Unpack a toolkit from pinned wheels into a folder of its own
description:
  - The folder is there whole or as it was. It records the SHA-256 of each wheel that it was made of.
  - In check mode, C(lacking) says which wheels would be needed.
options:
  path: {type: path, required: true, description: "Where the toolkit is to stand."}
  source: {type: path, default: "", description: "Folder on this host that holds the wheels."}
  inside: {type: str, required: true, description: "Folder in the wheels that is unpacked."}
  wheels:
    type: list
    elements: dict
    required: true
    description: The files that it is made of.
    options:
      file: {type: str, required: true, description: "Name of the wheel."}
      sha256: {type: str, required: true, description: "SHA-256 of the wheel."}
author: bigiron
"""
EXAMPLES = r"""
- name: Unpack the toolkit
  bigiron.host.wheel_toolkit:
    path: /opt/toolkits/cuda-13.5.37
    source: /var/cache/wheels
    inside: nvidia/cu13
    wheels:
      - file: nvidia_cuda_crt-13.5.37-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
        sha256: e898b7f73d3035fa89915a3f7bf3b54a73e90249746111aed295822c4729bb29
"""
RETURN = r"""
lacking: {type: list, returned: always, description: "Wheels that the folder was not made of, before."}
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.errors import BigironError
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost import toolkit
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost.progress import Progress
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost.system import end_with_connection

TEXT = {"type": "str", "required": True}


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "source": {"type": "path", "default": ""},
            "inside": TEXT,
            "wheels": {"type": "list", "elements": "dict", "required": True, "options": {"file": TEXT, "sha256": TEXT}},
        },
        supports_check_mode=True,
    )
    end_with_connection()
    root, wheels = Path(module.params["path"]), module.params["wheels"]
    lacking = toolkit.lacking(root, wheels)
    if lacking and not module.check_mode:
        report = Progress("cuda")
        try:
            toolkit.install(root, wheels, Path(module.params["source"]), module.params["inside"], report)
        except BigironError as error:
            module.fail_json(msg=f"{error}; {error.hint}" if error.hint else str(error))
        finally:
            report.close()
    module.exit_json(changed=bool(lacking), lacking=lacking)


if __name__ == "__main__":
    main()
