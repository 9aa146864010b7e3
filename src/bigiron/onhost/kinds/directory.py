"""A directory: there, with owner, group and mode."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, Mapping, Tuple

from ..reader import PATHS, Reader, status_differs

SECTION = PATHS


def observe(reader: Reader, names: Iterable[str]) -> Dict[str, Any]:
    """What ``lstat`` says of each path; a link is recorded, never followed."""
    return reader.statuses(names)


def differs(_name: str, want: Mapping[str, Any], have: Any) -> Iterator[Tuple[str, str]]:
    """``want``: ``{"owner", "group", "mode"}``."""
    return status_differs(want, have, "directory")
