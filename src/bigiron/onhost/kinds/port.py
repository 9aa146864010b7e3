"""A TCP port: who listens on it. Nothing wants a port as such; a part refuses one that another program holds."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable

from ..net import listeners, owners
from ..processes import program, unit_of
from ..reader import Reader

SECTION = "ports"


def observe(reader: Reader, names: Iterable[int]) -> Callable[[], Dict[str, Any]]:
    """By port number: ``{"pid", "program", "unit", "address"}``, with ``also`` for further listeners. A free port has no key."""

    def finish() -> Dict[str, Any]:  # after the services, whose processes are looked at first
        sockets = listeners(reader.tree, names)
        pids = owners(reader.tree, (each.inode for each in sockets), reader.service_pids) if sockets else {}
        found: Dict[str, Any] = {}
        for each in sockets:
            pid = pids.get(each.inode)
            entry: Dict[str, Any] = {"pid": pid, "program": None, "unit": None, "address": each.address}
            if pid is None:
                entry["error"] = "somebody listens, but this user may not see whose process it is"
            else:
                entry.update(program=program(reader.tree, pid), unit=unit_of(reader.tree, pid))
            known = found.get(str(each.port))
            if known is None:
                found[str(each.port)] = entry
            else:
                known.setdefault("also", []).append(entry)
        return found

    return finish
