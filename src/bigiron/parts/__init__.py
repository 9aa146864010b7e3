"""The parts, in the order in which they are applied, and everything that follows from the list."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from bigiron.parts import base, cuda, llama_cpp, llama_server, model, rocm, time_sync, vulkan
from bigiron.parts.part import RELEASE, SERVICE, STAGES, Part, Watched

PARTS: tuple[Part, ...] = (base, time_sync, cuda, rocm, vulkan, llama_cpp, model, llama_server)


def name_of(part: Part) -> str:
    """A part is named after its module, and so is its role."""
    return part.__name__.rpartition(".")[2]


NAMES = tuple(map(name_of, PARTS))
SECRETS: tuple[str, ...] = tuple(name for part in PARTS for name in getattr(part, "SECRETS", ()))


def in_stages(*stages: str) -> list[str]:
    """The names of the parts of these stages, in order."""
    return [name_of(part) for part in PARTS if part.STAGE in stages]


def before(stage: str) -> list[str]:
    """The names of the parts of all stages before ``stage``."""
    return in_stages(*STAGES[: STAGES.index(stage)])


def watch(wish: Mapping[str, Any]) -> Watched:
    """The observer's query for a host with ``wish``: what all parts watch."""
    found = _together(part.watch(wish) for part in PARTS)
    found["package"] += [name for part in PARTS for name in getattr(part, "PACKAGES", ()) if name not in found["package"]]
    found["directory"] = [*found.get("directory", ()), *(entry["path"] for entry in directories(wish))]
    return found


def _together(watched: Iterable[Watched]) -> Watched:
    found: Watched = {}
    for one in watched:
        for kind, names in one.items():
            mine = found.setdefault(kind, {} if isinstance(names, Mapping) else [])
            if isinstance(mine, dict):
                mine.update(names)
            else:
                mine += [name for name in names if name not in mine]
    return found


def watch_for_gpus(wish: Mapping[str, Any]) -> dict[str, Watched]:
    """By PCI vendor, what parts watch besides on hosts that have such a GPU."""
    asked = [part.watch_for_gpus(wish) for part in PARTS if hasattr(part, "watch_for_gpus")]
    return {
        vendor: _together(one.get(vendor, {}) for one in asked) for vendor in dict.fromkeys(key for one in asked for key in one)
    }


def directories(wish: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The folders that the parts stand in."""
    return [entry for part in PARTS if hasattr(part, "directories") for entry in part.directories(wish)]


def to_apply(differing: Iterable[str]) -> list[str]:
    """The parts that have something to do when ``differing`` are not as planned, in the order in which they run.

    When a release or a model changes, its services look again: a server maps the files it was started with.
    """
    needed: Collection[str] = set(differing)
    if any(name in needed for name in in_stages(*STAGES[STAGES.index(RELEASE) : STAGES.index(SERVICE)])):
        needed = {*needed, *in_stages(SERVICE)}
    return [name for name in NAMES if name in needed]


def collect(hook: str, *arguments: Any) -> dict[str, Any]:
    """What the optional function ``hook`` (``lock``, ``status``, ``remove``) of every part that has it answers, together."""
    found: dict[str, Any] = {}
    for part in PARTS:
        if hasattr(part, hook):
            found.update(getattr(part, hook)(*arguments))
    return found
