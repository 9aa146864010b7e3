"""The clock: how far from the controller's, whether the kernel calls it synchronised, and the service that keeps it."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, Tuple

from ..reader import Reader
from .service import parse_show, show_argv

SECTION = "clock"
SYSTEM = "system"
"""The entry of the clock itself, beside those of the services."""
TIME_ERROR = 5
"""What adjtimex(2) returns for a clock that is not synchronised."""


def observe(reader: Reader, names: Iterable[str]) -> Callable[[], Dict[str, Any]]:
    """``names`` are units. ``system``: ``{"ahead_s", "container", "synchronised"}``; a unit that is there as `parse_show` has it.

    ``ahead_s`` counts from when the controller asked, so the time that the connection took is in it. In a container the clock is the machine's.
    """
    container = reader.tree.text("/run/systemd/container")
    clock: Dict[str, Any] = {"ahead_s": round(time.time() - reader.sent, 1), "container": container}
    if container or not reader.tree.exists("/run/systemd/system"):
        return lambda: {SYSTEM: clock}
    import ctypes  # costs a host more than the look itself, and a container needs none

    clock["synchronised"] = (
        ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)) != TIME_ERROR
    )  # no mode set: it only reads
    show = reader.begin(show_argv(names))
    return lambda: {SYSTEM: clock, **parse_show(show().out)}


def differs(_name: str, _want: Mapping[str, Any], have: Any) -> Iterator[Tuple[str, str]]:
    """The wanted service is there, enabled and running; whether it has synchronised the clock yet is not its state."""
    if have is None:
        yield "no such unit", ""
        return
    if have.get("UnitFileState") != "enabled":
        yield f"is {have.get('UnitFileState') or 'not enabled'}, not enabled", ""
    if have.get("ActiveState") != "active":
        yield f"is {have.get('ActiveState')} ({have.get('SubState')}, result {have.get('Result')})", ""
