#!/usr/bin/python
"""Ansible module: third-party apt repositories, pins and what stays put, see bigiron.onhost.aptsources."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_sources
short_description: Third-party apt repositories with checked keys, pins that match, and names that unattended upgrades leave alone
description:
  - Works without python3-apt, which cannot even be opened when a repository is listed twice with different keys.
  - What another file lists of the same repositories is commented out there, with a copy in C(/var/lib/bigiron/apt).
  - Every file that this module wrote before and that is not wanted any more is removed; O(state=absent) removes all of them.
options:
  state: {type: str, choices: [present, absent], default: present, description: "absent undoes everything."}
  repositories:
    type: list
    elements: dict
    default: []
    description: Repositories.
    options:
      name: {type: str, required: true, description: "Part of the file names: lower case, digits, dashes."}
      uri: {type: str, required: true, description: "Where it is."}
      suites: {type: list, elements: str, required: true, description: "Suites, or a path that ends in a slash."}
      components: {type: list, elements: str, default: [], description: "Components; none for a path."}
      architectures: {type: list, elements: str, default: [], description: "Architectures; empty for the host's."}
      fingerprints: {type: list, elements: str, required: true, description: "OpenPGP fingerprints of its keys, in hex.", no_log: false}
      key: {type: str, default: "", description: "The key as ASCII text.", no_log: false}
      key_url: {type: str, default: "", description: "Where the host fetches the key when there is no O(repositories[].key).", no_log: false}
  pins:
    type: list
    elements: dict
    default: []
    description: Pins, apt_preferences(5).
    options:
      name: {type: str, required: true, description: "Part of the file name."}
      packages: {type: list, elements: str, required: true, description: "Package names or globs."}
      pin: {type: str, required: true, description: "C(version 570.*), C(origin HOST) or C(release o=NAME)."}
      priority: {type: int, default: 1001, description: "Its priority; above 1000 apt goes back to it too."}
  held: {type: list, elements: str, default: [], description: "Packages that unattended-upgrades must not touch."}
  lock_timeout: {type: int, default: 300, description: "Seconds to wait for another package manager."}
author: bigiron
"""
EXAMPLES = r"""
- name: Keep the driver at its branch
  bigiron.host.apt_sources:
    pins: [{name: driver, packages: ["nvidia-driver*", "libnvidia-*"], pin: version 570.*}]
"""
RETURN = r"""
written: {type: list, returned: when present, description: "Files that were made or changed."}
removed: {type: list, returned: always, description: "Files that were removed."}
disabled: {type: list, returned: when present, description: "File and line of entries of others that were disabled."}
enabled: {type: list, returned: when absent, description: "Files of others in which entries were enabled again."}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.errors import BigironError
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost.aptsources import AptSources

NAMES = {"type": "list", "elements": "str"}
REPOSITORY = {
    "name": {"type": "str", "required": True},
    "uri": {"type": "str", "required": True},
    "suites": {**NAMES, "required": True},
    "components": {**NAMES, "default": []},
    "architectures": {**NAMES, "default": []},
    "fingerprints": {**NAMES, "required": True},
    "key": {"type": "str", "default": "", "no_log": False},
    "key_url": {"type": "str", "default": "", "no_log": False},
}
PIN = {
    "name": {"type": "str", "required": True},
    "packages": {**NAMES, "required": True},
    "pin": {"type": "str", "required": True},
    "priority": {"type": "int", "default": 1001},
}


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "repositories": {"type": "list", "elements": "dict", "default": [], "options": REPOSITORY},
            "pins": {"type": "list", "elements": "dict", "default": [], "options": PIN},
            "held": {**NAMES, "default": []},
            "lock_timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    sources = AptSources(lock_timeout_s=wanted["lock_timeout"])
    try:
        if wanted["state"] == "absent":
            answer = sources.remove(check=module.check_mode)
        else:
            answer = sources.ensure(wanted["repositories"], wanted["pins"], wanted["held"], check=module.check_mode)
    except BigironError as error:
        module.fail_json(msg=f"{error}; {error.hint}" if error.hint else str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}", hint="this module needs a Debian-like host and root")
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
