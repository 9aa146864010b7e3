"""The lock of a host: what is on it, pinned, and how fast it was. ``inventory/<lab>/locks/<host>.yml``, committed by the lab."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bigiron import __version__, parts
from bigiron.fleet.survey import Survey
from bigiron.paths import PROJECT, write_atomic


def path_for(inventory: str | Path, host: str) -> Path:
    """``locks/<host>.yml`` in the inventory directory (beside the file when the inventory is a file)."""
    base = Path(inventory.split(",")[0] if isinstance(inventory, str) else inventory)
    return (base if base.is_dir() else base.parent) / "locks" / f"{host}.yml"


def document(survey: Survey, measured: Mapping[str, Any] | None) -> dict[str, Any]:
    """The lock of a host in sync with its plan; ``measured`` has prefill and generation in tok/s, None keeps no figure."""
    sections = parts.collect("lock", survey.plan.facts, survey.plan.variables)
    return {"bigiron": __version__, **sections, "measured": dict(measured) if measured else None}


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write the lock atomically."""
    write_atomic(
        path, "# Written by bigiron: what this host runs.\n" + yaml.safe_dump(dict(content), sort_keys=False, width=120)
    )


def read_all(inventory: str | Path | None = None) -> dict[Path, dict[str, Any]]:
    """The locks of ``inventory``, or of all inventories of the project; one that cannot be read is passed over."""
    folders = [path_for(inventory, "x").parent] if inventory else sorted((PROJECT / "inventory").glob("*/locks"))
    found = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*.yml"))):
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError):
            continue
        if isinstance(content, dict):
            found[path] = content
    return found
