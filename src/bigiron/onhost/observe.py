"""Reads bigiron's whole footprint on a host, and the machine, in one pass: the eyes of observe.

Runs on hosts: standard library only, entry `main`. Request and answer are "Query" and "Observed" of docs/architecture.md.
What is not there has no key; what cannot be read says ``error``; a secret's bytes never leave the host.
"""

from __future__ import annotations

import fnmatch
import os
from typing import Any, Dict, List

from . import holdings, probe, services, software
from .footprint import Accounts, Paths
from .system import Output, Start, Tree, start

UNIT_DIRECTORY = "/etc/systemd/system"


def _unit_files(tree: Tree, pattern: str, paths: Paths) -> List[str]:
    """Record the unit files matching ``pattern`` and all their drop-ins; the names of the units."""
    units = []
    for name in tree.names(UNIT_DIRECTORY):
        if fnmatch.fnmatch(name, pattern):
            units.append(name)
            paths.add(f"{UNIT_DIRECTORY}/{name}")
        elif name.endswith(".d") and fnmatch.fnmatch(name[:-2], pattern):
            paths.walk(f"{UNIT_DIRECTORY}/{name}")
    return units


def _footprint(tree: Tree, query: Dict[str, Any], paths: Paths) -> None:
    prefix, model_root = query["prefix"], query["model_root"]
    paths.walk(query["config_dir"])
    for path in (prefix, query["build_root"], model_root, f"{prefix}/releases"):
        paths.add(path)
    for name in tree.names(prefix):
        paths.add(f"{prefix}/{name}")
    for name in tree.names(f"{prefix}/releases"):
        paths.add(f"{prefix}/releases/{name}")
    for path in query.get("files", ()):
        if path not in paths.found:
            paths.add(path, private=True)
    for folder in (UNIT_DIRECTORY, prefix, f"{prefix}/releases"):
        if folder in tree.unreadable:
            paths.found.setdefault(folder, {})["error"] = tree.unreadable[folder]


def _model_names(tree: Tree, query: Dict[str, Any]) -> List[str]:
    """The revisions asked for, or all there are."""
    if "models" in query:
        return list(query["models"])
    names = [""]
    for _ in ("org", "repo", "revision"):
        below = [(name, each) for name in names for each in tree.names(query["model_root"] + name)]
        names = [f"{name}/{each}" for name, each in below if not each.startswith(".")]
    return [name[1:] for name in names]


def _shown(answer: Output, units: List[str]) -> Dict[str, Dict[str, Any]]:
    if answer.rc != 0 and not answer.out:
        return {unit: {"error": answer.err or f"systemctl failed ({answer.rc})"} for unit in units if "*" not in unit}
    return services.parse_show(answer.out)


def main(request: Dict[str, Any], root: str = "/", begin: Start = start) -> Dict[str, Any]:
    """``{"machine": ..., "observed": ...}`` for a Query. A test brings its own tree (``root``) and programs (``begin``)."""
    # /proc and /sys are the machine's, the rest bigiron's: what one may not read is not mixed into the other
    tree, hardware = Tree(root), Tree(root)
    deep = bool(request.get("deep"))
    accounts = Accounts(tree)
    paths = Paths(tree, accounts, f"{request['config_dir']}/credentials", request.get("secret_nonce", ""))
    health = request.get("health", {})

    toolchain = software.toolchain(tree, begin)
    machine = probe.begin(hardware, begin)
    units = sorted({*_unit_files(tree, request["unit_glob"], paths), *health})
    systemd = tree.exists("/run/systemd/system")
    show = begin(services.show_argv([*units, request["unit_glob"]])) if systemd else None

    _footprint(tree, request, paths)
    user = request["user"]
    roots = [request["prefix"], request["build_root"], request["model_root"]]
    models = {name: holdings.model(tree, f"{request['model_root']}/{name}", deep=deep) for name in _model_names(tree, request)}
    found = {
        "uid": os.geteuid(),
        "packages": software.packages(tree, request.get("packages")),
        "users": {name: facts for name in [user] if (facts := accounts.user(name))},
        "groups": {name: gid for name in [user, *request.get("groups", ())] if (gid := accounts.gid(name)) is not None},
        "paths": paths.found,
        "releases": holdings.releases(tree, request["prefix"], deep=deep),
        "models": {name: facts for name, facts in models.items() if facts is not None},
        "disks": holdings.disks(tree, list(dict.fromkeys([*request.get("disks", ()), *roots]))),
    }
    described = machine()
    shown = _shown(show(), units) if show else {}
    found["services"], found["ports"] = services.observe(tree, shown, health, request.get("ports", ()))
    return {"machine": described, "observed": {**found, **toolchain()}}
