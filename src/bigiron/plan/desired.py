"""Everything the plan wants on a host, as one flat list of resources. The roles make the same things from the same variables."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bigiron.parts.render import render

ROLES = ("base", "llama_cpp", "model", "llama_server")
"""In the order in which they are applied."""


@dataclass(frozen=True)
class Resource:
    """One thing on a host: ``kind`` decides how ``want`` is compared (`bigiron.plan.diff`); ``role`` is who makes it so."""

    kind: str
    name: str
    role: str
    want: Mapping[str, Any]

    @property
    def id(self) -> str:
        return f"{self.kind}:{self.name}"


def unit_name(variables: Mapping[str, Any]) -> str:
    return f"llama-server-{variables['llama_server_service']}.service"


def unit_path(variables: Mapping[str, Any]) -> str:
    return f"/etc/systemd/system/{unit_name(variables)}"


def key_path(variables: Mapping[str, Any]) -> str:
    return f"{variables['llama_server_config_dir']}/credentials/{variables['llama_server_service']}.key"


def desired(variables: Mapping[str, Any]) -> list[Resource]:
    """All resources of a host whose complete role variables are ``variables``. A fingerprint still unknown is wanted as ``""``."""
    user, prefix, mark = variables["base_user"], variables["llama_cpp_prefix"], variables["llama_cpp_fingerprint"]
    resources = [Resource("package", name, "base", {}) for name in variables["base_packages"]]
    resources.append(Resource("user", user, "base", {"group": user, "shell": "/usr/sbin/nologin"}))
    resources += [
        Resource("directory", entry["path"], "base", {key: value for key, value in entry.items() if key != "path"})
        for entry in variables["base_directories"]
    ]
    resources += [
        _file(entry["path"], entry["content"], "base", entry["mode"], entry["owner"], entry["group"])
        for entry in variables["base_files"]
    ]
    resources.append(Resource("release", mark, "llama_cpp", {"fingerprint": mark}))
    resources.append(Resource("link", f"{prefix}/current", "llama_cpp", {"target": f"releases/{mark}"}))
    revision = f"{variables['model_repo']}/{variables['model_revision']}"
    resources += [
        Resource("shard", file["path"], "model", {"revision": revision, "size": file["size"], "sha256": file["sha256"]})
        for file in variables["model_files"]
    ]
    unit = unit_name(variables)
    resources.append(_file(unit_path(variables), render("llama-server.service", variables), "llama_server"))
    resources.append(
        Resource("secret", key_path(variables), "llama_server", {"owner": "root", "group": "root", "mode": "0600"})
    )
    resources.append(
        Resource(
            "service",
            unit,
            "llama_server",
            {
                "exe": f"{prefix}/releases/{mark}/bin/llama-server",
                "newer_than": [unit_path(variables), key_path(variables)],
                "port": variables["llama_server_port"],
            },
        )
    )
    return resources


def _file(path: str, text: str, role: str, mode: str = "0644", owner: str = "root", group: str = "root") -> Resource:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Resource("file", path, role, {"owner": owner, "group": group, "mode": mode, "sha256": digest, "text": text})
