"""Which groups the service user needs to open a GPU's device nodes: the node says, not the distribution's name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from bigiron.errors import Refused

TOO_MUCH = frozenset({"root", "adm", "disk", "docker", "kmem", "shadow", "sudo", "wheel"})
"""Groups that give more than a device."""


class Owners(NamedTuple):
    """``groups`` that open nodes, and why others stay shut, each in a sentence."""

    groups: tuple[str, ...]
    problems: tuple[str, ...]


def owners(observed: Mapping[str, Any], patterns: Iterable[str]) -> Owners:
    """Who owns the nodes that match ``patterns`` (absolute paths or globs, as the kind `device` watched them). One that all may open needs no group."""
    groups: dict[str, None] = {}
    problems = []
    wanted = tuple(patterns)
    for path, node in sorted(observed["devices"].items()):
        if not any(fnmatchcase(path, pattern) for pattern in wanted):
            continue
        shown = f"{path} is {node.get('owner')}:{node.get('group')} {node.get('mode')}"
        if "error" in node:
            problems.append(f"{path} cannot be looked at: {node['error']}")
        elif int(node["mode"], 8) & 0o006 == 0o006:
            continue
        elif int(node["mode"], 8) & 0o060 != 0o060 or node["group"] in TOO_MUCH:
            problems.append(f"{shown}: no group of its own may open it, so its driver's udev rules are missing or were changed")
        elif node["group"].isdigit():
            problems.append(f"{shown}: the group has no name on this host (groupadd --system --gid {node['group']} render)")
        else:
            groups[node["group"]] = None
    return Owners(tuple(groups), tuple(problems))


def refusals(groups: Iterable[str], observed: Mapping[str, Any]) -> list[Refused]:
    """Groups that a service is to have and the host does not: a unit with one of them dies with 216/GROUP."""
    if "groups" not in observed:
        return []
    return [
        Refused(
            f"the group {name}, which the service needs for its devices, does not exist",
            hint=f"install the driver's packages (their udev rules need it), or make it: groupadd --system {name}",
        )
        for name in sorted(set(groups) - set(observed["groups"]))
    ]
