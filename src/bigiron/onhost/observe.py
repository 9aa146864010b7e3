"""Looks at a host once: the machine, and every named thing of every kind that the parts watch.

Entry `main`. Request: ``{"watch": {kind: names}, "for_gpus": {vendor: {kind: names}}, "nonce": text, "sent": seconds since the epoch}``;
what is watched ``for_gpus`` costs only hosts that have a GPU of that vendor. Answer: ``{"machine": {...},
"observed": {"uid", section: {name: entry}}}`` (docs/architecture.md). What is not there has no key; what cannot be read says ``error``; a
secret's bytes never leave the host.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Dict

from . import devices, probe
from .reader import Reader
from .system import Start, Tree, start


def main(request: Dict[str, Any], root: str = "/", begin: Start = start) -> Dict[str, Any]:
    """One look. A test brings its own tree (``root``) and programs (``begin``)."""
    reader = Reader(root, begin, request.get("nonce", ""), request.get("sent", 0.0))
    # /proc and /sys are the machine's, the rest ours: what one may not read is not mixed into the other
    machine = probe.begin(Tree(root), begin)
    observed: Dict[str, Any] = {"uid": os.geteuid()}
    begun = []
    for kind, names in _watched(request, reader.tree).items():
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


def _watched(request: Dict[str, Any], tree: Tree) -> Dict[str, Any]:
    """The request's query with what is asked of hosts with such GPUs as this one has."""
    more = request.get("for_gpus") or {}
    vendors = {gpu["vendor_id"] for gpu in devices.gpus(tree)} if more else set()
    watched: Dict[str, Any] = dict(request["watch"])
    for vendor in sorted(vendors & set(more)):
        for kind, names in more[vendor].items():
            watched[kind] = [*watched.get(kind, []), *(name for name in names if name not in watched.get(kind, []))]
    return watched
