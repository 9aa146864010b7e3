"""An unpacked toolkit below /opt/bigiron/toolkits: whole, and from the files that were pinned."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, Iterator, Mapping, Tuple

from ..reader import Reader

SECTION = "toolkits"
RECORD = "bigiron.json"
"""Written last into the folder: one without it is not whole, or is none of ours."""


def read_record(text: str) -> Dict[str, Any]:
    """``{"wheels": {file: SHA-256}, "files": {path: bytes}}``; {} for anything that is no record."""
    try:
        record = json.loads(text or "{}")
    except ValueError:
        return {}
    good = isinstance(record, dict) and isinstance(record.get("wheels"), dict) and isinstance(record.get("files"), dict)
    return record if good else {}


def observe(reader: Reader, names: Iterable[str]) -> Dict[str, Any]:
    """By folder: ``{"wheels": {file: SHA-256}, "missing": [files that are gone]}``; a folder without a record is none of ours, or half unpacked."""
    found: Dict[str, Any] = {}
    for root in names:
        record = read_record(reader.tree.text(f"{root}/{RECORD}"))
        if record:
            files: Dict[str, int] = record["files"]
            gone = [name for name in files if not reader.tree.exists(f"{root}/{name}")]
            found[root] = {"wheels": record["wheels"], "missing": sorted(gone)}
    return found


def differs(_name: str, want: Mapping[str, Any], have: Any) -> Iterator[Tuple[str, str]]:
    """``want``: ``{"wheels": {file: SHA-256}}``, which the folder must hold; more does no harm."""
    if have is None:
        yield "is not installed", ""
        return
    lacking = [file for file, digest in want["wheels"].items() if have["wheels"].get(file) != digest]
    if lacking:
        yield f"lacks {', '.join(lacking)}", ""
    if have["missing"]:
        yield f"{len(have['missing'])} of its files are gone, {have['missing'][0]} the first", ""
