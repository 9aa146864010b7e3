"""Desired state against observed state: the one comparison behind plan, drift, provision and the no-op fast path."""

from __future__ import annotations

import importlib
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bigiron.parts.part import Resource


@dataclass(frozen=True)
class Difference:
    """One thing that is not as planned. ``text`` is a unified diff for files, else empty."""

    part: str
    resource: str
    problem: str
    text: str = ""

    def to_json(self) -> dict[str, str]:
        return {"role": self.part, "resource": self.resource, "problem": self.problem, "diff": self.text}


def diff(
    resources: Iterable[Resource], observed: Mapping[str, Any], hmacs: Mapping[str, str] | None = None
) -> list[Difference]:
    """The differences, in the order of ``resources``.

    ``hmacs`` maps a secret file's path to the HMAC its content should have (the observer's nonce as key); a secret without an entry may
    hold anything. Something that could not be read counts as a difference and says so.
    """
    found = []
    for resource in resources:
        kind = importlib.import_module(f"bigiron.onhost.kinds.{resource.kind}")
        section = observed.get(kind.SECTION, {})
        have = kind.find(section, resource.name, resource.want) if hasattr(kind, "find") else section.get(resource.name)
        want = resource.want
        if hmacs and resource.name in hmacs:
            want = ChainMap({"hmac": hmacs[resource.name]}, dict(want))
        found += [Difference(resource.part, resource.id, *each) for each in kind.differs(resource.name, want, have)]
    return found
