"""Groups that a unit names: systemd starts nothing with one that does not exist (216/GROUP)."""

from __future__ import annotations

from typing import Any, Dict, Iterable

from ..reader import Reader

SECTION = "groups"


def observe(reader: Reader, names: Iterable[str]) -> Dict[str, Any]:
    """``{"gid"}`` of those that exist."""
    gids = ((name, reader.accounts.gid(name)) for name in names)
    return {name: {"gid": gid} for name, gid in gids if gid is not None}
