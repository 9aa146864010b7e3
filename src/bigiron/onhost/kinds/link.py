"""A symbolic link: there, and pointing where it should."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, Mapping, Tuple

from ..reader import PATHS, Reader, status_differs

SECTION = PATHS


def observe(reader: Reader, names: Iterable[str]) -> Dict[str, Any]:
    """What ``lstat`` says of each path, with the target."""
    return reader.statuses(names)


def differs(_name: str, want: Mapping[str, Any], have: Any) -> Iterator[Tuple[str, str]]:
    """``want``: ``{"target"}``."""
    yield from status_differs({}, have, "link")
    if have and have.get("type") == "link" and have.get("target") != want["target"]:
        yield f"points at {have.get('target')}, not {want['target']}", ""
