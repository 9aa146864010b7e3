"""The way back: the release and the unit that served before the present ones, kept together, and put in place together.

Kept is what a successor replaced that proved ready (`bigiron.onhost.previous`), without the key: that stays what it is now. The record is
``{"kept": {"release", "text", "mode", "host", "port", "model", "replaced"} or null, "rolled_back": {"from", "to", "at"} or null}``.
Standard library only: this file runs on hosts.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

from ..errors import Refused
from . import previous, release
from .previous import Service
from .progress import write_atomic
from .unit import UNIT_DIR

NOTHING: Dict[str, Any] = {"kept": None, "rolled_back": None}


class Way(NamedTuple):
    """The record of one service."""

    service: Service
    record: Path

    @property
    def pin(self) -> Path:
        """A link to the kept release, so that no run prunes it."""
        return self.service.prefix / f"rollback-{self.service.unit}"

    def read(self) -> Dict[str, Any]:
        """The record; one that cannot be read is none."""
        with contextlib.suppress(OSError, ValueError):
            return {**NOTHING, **json.loads(self.record.read_text(encoding="utf-8"))}
        return NOTHING

    def write(self, content: Dict[str, Any]) -> None:
        if content == NOTHING:
            with contextlib.suppress(FileNotFoundError):
                self.record.unlink()
        else:
            write_atomic(self.record, json.dumps(content, indent=1))
        kept = content["kept"]
        if kept and kept["release"]:
            release.point(self.pin, f"releases/{kept['release']}")
        else:
            with contextlib.suppress(FileNotFoundError):
                self.pin.unlink()


def remember(way: Way, *, rolled_back: bool = False) -> None:
    """The successor is ready: what it replaced, if that was another pair of release and unit, is the way back from now on."""
    now = previous.running(way.service)
    before = json.loads(way.service.record.read_text(encoding="utf-8")) if way.service.record.exists() else None
    record = way.read()
    if rolled_back:
        left = before["release"] if before else release.Layout(way.service.prefix).target(way.service.prefix / "previous")
        done = {"from": left or "", "to": now["release"] if now else "", "at": _now()}
        way.write({"kept": None, "rolled_back": done})
    elif now and before and _pair(way, now) != _pair(way, before):
        unit = before["files"][str(UNIT_DIR / way.service.unit)]
        kept = {name: before[name] for name in ("release", "host", "port", "model")}
        way.write({"kept": {**kept, "text": unit["text"], "mode": unit["mode"], "replaced": _now()}, "rolled_back": None})
    elif record["rolled_back"]:
        way.write({**record, "rolled_back": None})
    previous.forget(way.service)


def _pair(way: Way, kept: Dict[str, Any]) -> Any:
    return kept["release"], kept["files"].get(str(UNIT_DIR / way.service.unit), {}).get("text")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def take_back(way: Way, depends_on: List[str]) -> Dict[str, Any]:
    """Put the kept release and unit in place of what runs, which is kept meanwhile; the caller restarts and proves.

    Raises Refused, before anything is touched, when there is nothing to go back to or it cannot serve.

    Returns ``{"release", "host", "port"}`` of what is in place now.
    """
    record = way.read()
    kept, unit = record["kept"], way.service.unit
    if not kept:
        done = record["rolled_back"]
        if done:
            what = f"{unit} was rolled back already, on {done['at']}, and nothing older is kept"
            raise Refused(what, where=str(way.record), hint="./inv provision brings the plan back")
        raise Refused(
            f"nothing is kept to roll {unit} back to",
            where=str(way.record),
            hint="it is kept from the first change that proved ready",
        )
    layout = release.Layout(way.service.prefix)
    if kept["release"]:
        found = release.problems(layout.release(kept["release"]), kept["release"])
        if found:
            raise Refused(
                f"the previous release {kept['release']} is not sound: {found[0]}",
                hint="./inv provision installs what the plan says",
            )
    if kept["model"] and not Path(kept["model"]).exists():
        raise Refused(
            f"the previous unit serves {kept['model']}, which is not there any more",
            hint="./inv models.fetch, or leave it as it is",
        )
    previous.keep(way.service, depends_on)
    write_atomic(UNIT_DIR / unit, kept["text"], kept["mode"])
    if kept["release"]:
        release.flip(layout, kept["release"])
    return {"release": kept["release"], "host": kept["host"], "port": kept["port"]}
