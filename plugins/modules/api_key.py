#!/usr/bin/python
"""Ansible module: an API key file that only root can read, see bigiron.onhost.unit."""

from __future__ import annotations

DOCUMENTATION = r"""
module: api_key
short_description: Keep an API key in a file that only root can read
description:
  - A given key is written; without one the host makes its own, once, and it is never overwritten.
  - The key appears in no result, diff or log.
options:
  path: {type: path, required: true, description: "The key file."}
  value: {type: str, default: "", description: "The key; empty has the host make one."}
author: bigiron
"""
EXAMPLES = r"""
- name: Keep the API key
  bigiron.host.api_key:
    path: /etc/bigiron/credentials/main.key
    value: "{{ vault_llama_key }}"
"""
RETURN = r"""
path: {type: str, returned: success, description: "The key file."}
made: {type: bool, returned: success, description: "Whether the host made the key now."}
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.errors import BigironError
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost import unit as unitfile


def main():
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}, "value": {"type": "str", "default": "", "no_log": True}},
        supports_check_mode=True,
    )
    try:
        answer = unitfile.ensure_key(Path(module.params["path"]), module.params["value"], check=module.check_mode)
    except BigironError as error:
        module.fail_json(msg=str(error), hint=error.hint)
    except OSError as error:
        module.fail_json(msg=f"{module.params['path']}: {error.strerror}")
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
