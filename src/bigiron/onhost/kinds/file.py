"""A file: there, with owner, group, mode and content."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, Mapping, Tuple

from ..reader import PATHS, Reader, status_differs

SECTION = PATHS


def observe(reader: Reader, names: Iterable[str]) -> Dict[str, Any]:
    """What ``lstat`` says, the SHA-256, and the text of a small one that everybody may read."""
    found = reader.statuses(names)
    return {path: reader.content(path, entry) if entry.get("type") == "file" else entry for path, entry in found.items()}


def differs(path: str, want: Mapping[str, Any], have: Any) -> Iterator[Tuple[str, str]]:
    """``want``: ``{"owner", "group", "mode", "sha256", "text"}``."""
    if have is None:
        yield "does not exist", unified(path, "", want["text"])
        return
    yield from status_differs(want, have, "file")
    if have.get("type") == "file" and "error" not in have and have.get("sha256") != want["sha256"]:
        text = have.get("text")
        yield "content differs", unified(path, text, want["text"]) if text is not None else ""


def unified(path: str, have: str, want: str) -> str:
    """The unified diff from what is on the host to what is planned."""
    import difflib  # on the controller only

    before = f"{path} (on the host)" if have else "/dev/null"
    lines = difflib.unified_diff(have.splitlines(), want.splitlines(), before, f"{path} (planned)", lineterm="")
    return "\n".join(lines)
