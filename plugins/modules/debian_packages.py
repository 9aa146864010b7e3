#!/usr/bin/python
"""Ansible module: Debian packages with a record of what was brought, see bigiron.onhost.packages."""

from __future__ import annotations

DOCUMENTATION = r"""
module: debian_packages
short_description: Install and hold Debian packages, and remember exactly what that brought
description:
  - Works without python3-apt, in check mode on a virgin host, and whatever interpreter was discovered.
  - C(/var/lib/bigiron/packages.json) names every package that was new, dependencies included.
  - O(state=absent) removes those and no other.
options:
  state: {type: str, choices: [present, absent], default: present, description: "absent removes the recorded packages."}
  name: {type: list, elements: str, default: [], description: "Packages, C(name) or C(name=version)."}
  hold:
    type: list
    elements: str
    description: "Packages to hold (apt-mark) in the version they have then. Left out: no hold is looked at; C([]) lets go what was held here."
  lock_timeout: {type: int, default: 300, description: "Seconds to wait for another package manager."}
author: bigiron
"""
EXAMPLES = r"""
- name: Install the compiler
  bigiron.host.debian_packages:
    name: [g++, cmake, ninja-build]
"""
RETURN = r"""
installed: {type: list, returned: when present, description: "New packages (check mode: those missing)."}
removed: {type: list, returned: when absent, description: "Removed packages."}
kept: {type: list, returned: when absent, description: "Recorded packages that something else needs, and why they stay."}
held: {type: list, returned: when present, description: "Packages that are held now and were not."}
unheld: {type: list, returned: when present, description: "Packages that were held here and are let go."}
updated_lists: {type: bool, returned: when present, description: "Whether the package lists had to be fetched."}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.errors import BigironError
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost import packages


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "name": {"type": "list", "elements": "str", "default": []},
            "hold": {"type": "list", "elements": "str"},
            "lock_timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    try:
        if wanted["state"] == "absent":
            answer = packages.remove(lock_timeout_s=wanted["lock_timeout"], check=module.check_mode)
            before, after = answer["removed"], []
        else:
            timeout_s = wanted["lock_timeout"]
            answer = packages.ensure(wanted["name"], hold=wanted["hold"], lock_timeout_s=timeout_s, check=module.check_mode)
            before = [f"{name} held" for name in answer["unheld"]]
            after = [*answer["installed"], *(f"{name} held" for name in answer["held"])]
    except BigironError as error:
        module.fail_json(msg=str(error), hint=error.hint)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}", hint="this module needs a Debian-like host and root")
    diff = {"before": "".join(f"{name}\n" for name in before), "after": "".join(f"{name}\n" for name in after)}
    module.exit_json(**answer, diff=diff if answer["changed"] else {})


if __name__ == "__main__":
    main()
