"""Looks at a host once: the machine, and every named thing of every kind that the parts watch.

Entry `main`. Request: ``{"watch": {kind: names}, "nonce": text, "sent": seconds since the epoch}``. Answer: ``{"machine": {...},
"observed": {"uid", section: {name: entry}}}`` (docs/architecture.md). What is not there has no key; what cannot be read says ``error``; a
secret's bytes never leave the host.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Dict

from . import probe
from .reader import Reader
from .system import Start, Tree, start


def main(request: Dict[str, Any], root: str = "/", begin: Start = start) -> Dict[str, Any]:
    """One look. A test brings its own tree (``root``) and programs (``begin``)."""
    reader = Reader(root, begin, request.get("nonce", ""), request.get("sent", 0.0))
    # /proc and /sys are the machine's, the rest ours: what one may not read is not mixed into the other
    machine = probe.begin(Tree(root), begin)
    observed: Dict[str, Any] = {"uid": os.geteuid()}
    begun = []
    for kind, names in request["watch"].items():
        module = importlib.import_module(f"{__package__}.kinds.{kind}")
        section = observed.setdefault(module.SECTION, {})
        found = module.observe(reader, names)
        if callable(found):
            begun.append((section, found))
        else:
            section.update(found)
    described = machine()
    for section, finish in begun:
        section.update(finish())
    return {"machine": described, "observed": observed}
