#!/usr/bin/python
"""Ansible module: a llama.cpp release that is current, see bigiron.onhost.build."""

from __future__ import annotations

DOCUMENTATION = r"""
module: llama_release
short_description: Make one built llama.cpp the current release of a host
description:
  - Takes a sound release as it is, installs a packed one, or builds it from a pinned source archive.
  - A release gets its name only after its program ran as the service user; until then C(current) is untouched.
options:
  prefix: {type: path, default: /opt/bigiron, description: "Folder of C(releases), C(current) and C(previous)."}
  build_root: {type: path, default: /var/cache/bigiron, description: "Folder of sources, build trees and packed releases."}
  fingerprint: {type: str, default: "", description: "Name of the release; empty: by the identity, once a compiler is there."}
  identity: {type: dict, default: {}, description: "Everything that decides the bytes of the release."}
  user: {type: str, default: llama, description: "The service user that must be able to run it."}
  source_url: {type: str, default: "", description: "Source archive (tar): http, https or file; or a git repository: git+https, at C(commit)."}
  source_mirrors: {type: list, elements: str, default: [], description: "Further addresses of the same, tried in this order."}
  source_sha256: {type: str, default: "", description: "SHA-256 of the archive."}
  source_subdir: {type: str, default: "", description: "Folder in the archive that holds CMakeLists.txt."}
  build_number: {type: int, default: 0, description: "Build number to compile in."}
  commit: {type: str, default: "", description: "Commit to compile in; of a repository the full one, which is what is built."}
  options: {type: dict, default: {}, description: "CMake options, exactly."}
  environment: {type: dict, default: {}, description: "Environment of the build."}
  library_path: {type: list, elements: path, default: [], description: "Folders of libraries that the release does not hold itself."}
  compilers: {type: list, elements: str, default: [], description: "CMake languages beside C and C++ that ccache serves."}
  gpu: {type: dict, default: {}, description: "What the release must find on this host: device, count, library, nodes, vendors, environment."}
  targets: {type: list, elements: str, default: [], description: "Programs to build."}
  jobs: {type: int, default: 1, description: "Compilers at once."}
  ccache_dir: {type: str, default: "", description: "ccache's folder; empty compiles without ccache."}
  archive: {type: str, default: "", description: "A packed release on this host; empty builds."}
  archive_sha256: {type: str, default: "", description: "SHA-256 of the packed release."}
  activate: {type: bool, default: true, description: "Make it current; else it is only made."}
  trial: {type: bool, default: true, description: "Have it answer beside a service that runs another release, before it becomes current."}
  pack: {type: bool, default: false, description: "Pack a release that was built here."}
author: bigiron
"""
EXAMPLES = r"""
- name: Make the release current
  bigiron.host.llama_release:
    fingerprint: 3f6c0a9be17d22c4
    source_url: https://example.org/llama.cpp-b11434.tar.gz
    source_sha256: b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
    options: {CMAKE_BUILD_TYPE: Release, GGML_NATIVE: "ON"}
    targets: [llama-server]
    jobs: 2
"""
RETURN = r"""
how: {type: str, returned: success, description: "present, archive or built."}
fingerprint: {type: str, returned: success, description: "Name of the release; empty in check mode without a compiler."}
release: {type: str, returned: success, description: "Its folder."}
before: {type: str, returned: success, description: "What was current before."}
pruned: {type: list, returned: success, description: "Older releases that were removed."}
version: {type: str, returned: not in check mode, description: "What the program says it is."}
trial: {type: dict, returned: when tried, description: "How it answered beside the running service: unit, outcome (same, differs, alone, skipped), told."}
findings: {type: list, returned: when there are any, description: "What a person should know."}
packed: {type: str, returned: when packed, description: "Packed release on this host."}
packed_sha256: {type: str, returned: when packed, description: "Its SHA-256."}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.errors import BigironError
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost import build
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost.system import end_with_connection


def main():
    text = {"type": "str", "default": ""}
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "default": "/opt/bigiron"},
            "build_root": {"type": "path", "default": "/var/cache/bigiron"},
            "fingerprint": text,
            "identity": {"type": "dict", "default": {}},
            "user": {"type": "str", "default": "llama"},
            "source_url": text,
            "source_mirrors": {"type": "list", "elements": "str", "default": []},
            "source_sha256": text,
            "source_subdir": text,
            "build_number": {"type": "int", "default": 0},
            "commit": text,
            "options": {"type": "dict", "default": {}},
            "environment": {"type": "dict", "default": {}},
            "library_path": {"type": "list", "elements": "path", "default": []},
            "compilers": {"type": "list", "elements": "str", "default": []},
            "gpu": {"type": "dict", "default": {}},
            "targets": {"type": "list", "elements": "str", "default": []},
            "jobs": {"type": "int", "default": 1},
            "ccache_dir": text,
            "archive": text,
            "archive_sha256": text,
            "activate": {"type": "bool", "default": True},
            "trial": {"type": "bool", "default": True},
            "pack": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    end_with_connection()
    try:
        answer = build.main({**module.params, "check": module.check_mode})
    except BigironError as error:
        module.fail_json(msg=str(error), hint=error.hint, refused=error.exit_code == 4)
    manifest = answer.pop("manifest", {})
    if manifest:
        answer["version"] = manifest.get("version", "")
    after = answer["fingerprint"] or "(named once the compiler is installed)"
    diff = {
        "before": f"{answer['before'] or 'none'}\n",
        "after": f"{after}\n",
        "before_header": "current release",
        "after_header": "current release",
    }
    module.exit_json(**answer, diff=diff if answer["changed"] else {})


if __name__ == "__main__":
    main()
