"""Device nodes: which there are, and who may open them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterable

from ..reader import Reader

SECTION = "devices"


def observe(reader: Reader, names: Iterable[str]) -> Dict[str, Any]:
    """``names`` are absolute globs (``/dev/dri/renderD*``); by path what `Reader.status` says."""
    root = Path(reader.tree.root or "/")
    found = (path for name in names for path in root.glob(name.lstrip("/")))
    return reader.statuses(sorted({f"/{path.relative_to(root)}" for path in found}))
