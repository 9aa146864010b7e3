"""A secret in a file: there, private, and the one of the inventory; compared by a keyed hash, so that it never travels."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, Mapping, Tuple

from ..reader import PATHS, Reader, secret_hmac, status_differs, why

SECTION = PATHS


def observe(reader: Reader, names: Iterable[str]) -> Dict[str, Any]:
    """What ``lstat`` says and, with a nonce, the HMAC of the content."""
    found = reader.statuses(names)
    for path, entry in found.items():
        if entry.get("type") == "file" and reader.nonce:
            try:
                entry["hmac"] = secret_hmac(reader.nonce, Path(reader.tree.path(path)).read_bytes())
            except OSError as error:
                entry["error"] = why(error)
    return found


def differs(_name: str, want: Mapping[str, Any], have: Any) -> Iterator[Tuple[str, str]]:
    """``want``: ``{"owner", "group", "mode"}`` and ``hmac`` where the inventory has the secret; without, any content will do."""
    yield from status_differs(want, have, "file")
    if not have or "error" in have or have["type"] != "file":
        return
    if not have.get("size"):
        yield "is empty", ""
    elif "hmac" in want and have.get("hmac") != want["hmac"]:
        yield "holds another secret than the inventory", ""
