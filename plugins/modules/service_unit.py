#!/usr/bin/python
"""Ansible module: a systemd service unit that was linted first, see bigiron.onhost.unit."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_unit
short_description: Install a service unit that systemd accepts without a word
description:
  - C(systemd-analyze verify) exits 0 for most mistakes, so any line it prints about the unit is a failure here.
  - A unit that is refused does not replace the installed one. Drop-ins are a person's and stay.
options:
  name: {type: str, required: true, description: "Unit name, with .service."}
  content: {type: str, required: true, description: "Text of the unit."}
author: bigiron
"""
EXAMPLES = r"""
- name: Install the unit
  bigiron.host.service_unit:
    name: llama-server-main.service
    content: "{{ 'llama-server.service' | bigiron.host.render(variables) }}"
"""
RETURN = r"""
path: {type: str, returned: success, description: "The unit file."}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.errors import BigironError
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost import unit as unitfile


def main():
    module = AnsibleModule(
        argument_spec={"name": {"type": "str", "required": True}, "content": {"type": "str", "required": True}},
        supports_check_mode=True,
    )
    name, content = module.params["name"], module.params["content"]
    try:
        answer = unitfile.install(name, content, check=module.check_mode)
    except BigironError as error:
        module.fail_json(msg=str(error), hint=error.hint)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    before = answer.pop("before")
    diff = {"before": before, "after": content, "before_header": answer["path"], "after_header": answer["path"]}
    module.exit_json(**answer, diff=diff if answer["changed"] else {})


if __name__ == "__main__":
    main()
