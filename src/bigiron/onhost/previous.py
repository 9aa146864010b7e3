"""What served before a change: kept until its successor is ready, and put back when that does not become ready.

Kept are the unit file, the key and the release of the running process, in one file that outlives an interrupted run and a reboot;
the next run finds it. It holds the key, so only root may read it. Standard library only: this file runs on hosts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ..errors import BigironError
from . import release, serving
from .progress import write_atomic
from .symptoms import explain
from .system import Tree, start
from .unit import UNIT_DIR, freshness

PATIENCE_S = 200.0
"""More than stopping and starting the process may take (TimeoutStopSec and TimeoutStartSec of the unit)."""


class Service(NamedTuple):
    """Where the parts of a service are, and where what was before is kept."""

    unit: str
    key: Path
    prefix: Path
    record: Path

    @property
    def pin(self) -> Path:
        """A link to the kept release, so that no other run prunes it."""
        return self.prefix / f"before-{self.unit}"

    @property
    def files(self) -> List[Path]:
        return [UNIT_DIR / self.unit, self.key]


def keep(service: Service, depends_on: List[str]) -> bool:
    """Keep what runs now; False when nothing runs, or when an interrupted run kept something and what runs has not proved ready since."""
    kept = running(service)
    if not kept or (service.record.exists() and not _proved(service, kept, depends_on)):
        return False
    service.record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(service.record, json.dumps(kept), 0o600)
    if kept["release"]:
        release.point(service.pin, f"releases/{kept['release']}")
    return True


def running(service: Service) -> Optional[Dict[str, Any]]:
    """What serves now: process, address, model, release and files; None when nothing runs."""
    now = serving.show(service.unit)
    pid = int(now.get("MainPID") or 0)
    if now.get("ActiveState") != "active" or not pid:
        return None
    argv = Tree().text(f"/proc/{pid}/cmdline").split("\0")
    return {
        "pid": pid,
        "host": _option(argv, "--host", "127.0.0.1"),
        "port": int(_option(argv, "--port", "8080")),
        "model": _option(argv, "--model", ""),
        "release": _release(service, pid),
        "files": {
            str(path): {"text": path.read_text(encoding="utf-8"), "mode": path.stat().st_mode & 0o7777, "time": path.stat().st_mtime_ns}
            for path in service.files
            if path.is_file()
        },
    }  # fmt: skip


def _option(argv: List[str], name: str, default: str) -> str:
    """The value of an argument, the last one winning as in llama.cpp."""
    return next((value for word, value in list(zip(argv, argv[1:]))[::-1] if word == name), default)


def _release(service: Service, pid: int) -> str:
    """The release whose program the process runs; "" for one that is none of ours."""
    executable = Path(Tree().link(f"/proc/{pid}/exe") or "/")
    releases = service.prefix.resolve() / "releases"
    return executable.relative_to(releases).parts[0] if releases in executable.parents else ""


def _proved(service: Service, kept: Dict[str, Any], depends_on: List[str]) -> bool:
    if freshness(service.unit, depends_on)["because"]:
        return False
    try:
        serving.wait_ready(service.unit, kept["port"], kept["host"], 0)
    except BigironError:
        return False
    return True


def forget(service: Service) -> None:
    """The successor is ready."""
    service.record.unlink(missing_ok=True)
    service.pin.unlink(missing_ok=True)


def restore(service: Service, timeout_s: float, progress: Optional[Callable[[serving.Waiting], None]] = None) -> str:
    """Put back what was kept, and wait until it is ready; without anything kept, stop and disable the unit.

    Returns in words what runs now. A process that was not restarted since is left alone.
    """
    if not service.record.exists():
        if serving.show(service.unit):
            _systemctl("disable", "--now", service.unit)
        return "nothing ran before, so the unit was stopped and disabled; a run that proves it ready enables it again"
    kept = json.loads(service.record.read_text(encoding="utf-8"))
    for path, file in kept["files"].items():
        write_atomic(Path(path), file["text"], file["mode"])
        os.utime(path, ns=(file["time"], file["time"]))  # so that a process that was left alone is not older than its files
    layout = release.Layout(service.prefix)
    if kept["release"] and layout.release(kept["release"]).is_dir():
        release.flip(layout, kept["release"])
    _systemctl("daemon-reload")
    now = serving.show(service.unit)
    if now.get("ActiveState") == "active" and now.get("MainPID") == kept["pid"]:
        forget(service)
        return "the running service was left alone, and what was changed on disk was put back"
    at, secrets = f"{kept['host']}:{kept['port']}", _secrets(service)
    try:
        _systemctl("reset-failed", service.unit)
        _systemctl("restart", service.unit)
        serving.wait_ready(service.unit, kept["port"], kept["host"], timeout_s, progress=progress, secrets=secrets)
    except BigironError as error:
        return f"the previous service was put back, but is not ready either: {error.what}"
    forget(service)
    return f"the previous service was put back and is ready on {at}"


def cause(service: Service) -> str:
    """Why the unit does not run, with its last log lines; "" when it may still become ready."""
    now = serving.show(service.unit)
    died = explain(service.unit, now, now) if now else None
    return (
        str(serving.death(service.unit, died, serving.journal(service.unit, [now], secrets=_secrets(service)))) if died else ""
    )


def _secrets(service: Service) -> Tuple[str, ...]:
    try:
        return (serving.read_key(str(service.key)),)
    except BigironError:
        return ()


def _systemctl(*words: str) -> None:
    answer = start(["systemctl", *words], PATIENCE_S)()
    if answer.rc != 0:
        raise BigironError(f"systemctl {words[0]} failed: {answer.err or answer.rc}", where=words[-1])
