"""A systemd unit file: linted before it replaces the old one, and whether the running process is older than what it depends on.

Standard library only: this file also runs on hosts.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Optional

from ..errors import BigironError, Refused
from . import processes
from .apikey import check_api_key
from .dropins import overrides, told
from .progress import write_atomic
from .serving import show
from .system import Tree, start

UNIT_DIR = Path("/etc/systemd/system")


def complaints(output: str, unit: str) -> list[str]:
    """The lines of ``systemd-analyze verify`` that are about ``unit``; its exit code is 0 for most mistakes (B83)."""
    return [line.strip() for line in output.splitlines() if unit in line]


def lint(unit: str, content: str, *, ignore_missing_program: bool = False) -> list[str]:
    """What systemd has to say about ``content`` as ``unit``, before it is installed; empty when nothing.

    ``ignore_missing_program``: on a host where nothing is installed yet (check mode) the program cannot be there.
    """
    with tempfile.TemporaryDirectory(prefix="bigiron-unit-") as folder:
        path = Path(folder, unit)
        path.write_text(content, encoding="utf-8")
        found = verify(path)
        if ignore_missing_program:
            found = [line for line in found if "is not executable" not in line]
        return [line.replace(f"{folder}/", "") for line in found]


def verify(path: Path) -> list[str]:
    """Complaints about an installed unit, its drop-ins merged."""
    try:
        answer = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(path)],
            capture_output=True, text=True, errors="replace", check=False, timeout=60,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "SYSTEMD_LOG_LEVEL": "notice", "SYSTEMD_COLORS": "0"},
        )  # fmt: skip
    except OSError as error:
        raise BigironError(
            f"systemd-analyze cannot be run: {error.strerror}", hint="this role needs a host with systemd"
        ) from error
    found = complaints(answer.stdout + answer.stderr, path.name)
    if answer.returncode != 0 and not found:
        found = [f"systemd-analyze verify gives exit code {answer.returncode}: {answer.stderr.strip()[-300:]}"]
    return found


def install(unit: str, content: str, *, check: bool = False, folder: Path = UNIT_DIR) -> dict[str, Any]:
    """Put ``content`` in place when it differs and systemd accepts it; returns ``{"changed", "path", "before"}``."""
    if not re.fullmatch(r"[A-Za-z0-9:_.@-]+\.service", unit):
        raise BigironError(f"not a unit name: {unit!r}")
    path = folder / unit
    before = path.read_text(encoding="utf-8", errors="replace") if path.is_file() and not path.is_symlink() else ""
    right_mode = path.is_file() and (path.stat().st_mode & 0o7777, path.stat().st_uid) == (0o644, 0)
    if before == content and right_mode:
        return {"changed": False, "path": str(path), "before": before}
    found = lint(unit, content, ignore_missing_program=check)
    if found:
        raise BigironError(
            f"systemd does not accept the unit: {'; '.join(found[:3])}", where=unit, hint="the installed unit was not touched"
        )
    if not check:
        write_atomic(path, content)
    return {"changed": True, "path": str(path), "before": before}


def refuse_overrides(unit: str) -> None:
    """Raise Refused for a drop-in that decides what runs, as systemd has read it."""
    now = show(unit)
    tree = Tree()
    texts = {path: tree.text(path) for path in now.get("DropInPaths", ())}
    for what, hint in told(unit, overrides(tree.text(now.get("FragmentPath") or "/dev/null"), texts)):
        if hint:
            raise Refused(what, hint=hint)


def freshness(unit: str, depends_on: list[str], *, reload: bool = False) -> dict[str, Any]:
    """Whether the process of ``unit`` still is what the files say; ``reload`` has systemd read a unit that changed first.

    Returns ``{"active", "pid", "stale", "because": [why], "unread", "gave_up"}``: stale when it runs and is older than a file it depends on
    (a link counts by its own change), or when systemd has not read the unit since (unread, running or not); gave_up when systemd holds it for failed, so that
    earlier starts count against the next one (StartLimitBurst).
    """
    now = show(unit)
    unread = bool(now.get("NeedDaemonReload"))
    if unread and reload:
        start(["systemctl", "daemon-reload"], 90)()
        now = show(unit)
    pid = int(now.get("MainPID") or 0)
    since = processes.started(Tree(), pid) if pid else None
    because = [
        f"{path} changed after the service started"
        for path in depends_on
        if since is not None and (changed := _changed_at(path)) is not None and changed > since
    ]
    if unread:
        because.append("systemd has not read the unit since it changed")
    active = now.get("ActiveState") in {"active", "activating", "reloading"}
    gave_up = now.get("ActiveState") == "failed"
    return {
        "active": active,
        "pid": pid,
        "stale": active and bool(because),
        "because": because,
        "unread": unread,
        "gave_up": gave_up,
    }


def _changed_at(path: str) -> Optional[float]:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return None


def ensure_key(path: Path, value: str, *, check: bool = False) -> dict[str, Any]:
    """The API key file, 0600 root. ``value`` empty: made here once, and never overwritten. Nothing returned holds the key."""
    exists = path.is_file() and path.stat().st_size > 0
    if reason := check_api_key(value):
        raise BigironError(reason, where="llama_server_api_key")
    wrong = exists and bool(value) and path.read_text(encoding="utf-8", errors="replace").strip() != value
    if not exists or wrong:
        if not check:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(path, (value or secrets.token_urlsafe(36)) + "\n", 0o600)
        return {"changed": True, "path": str(path), "made": not value}
    status = path.stat()
    if (status.st_mode & 0o7777, status.st_uid, status.st_gid) != (0o600, os.geteuid(), os.getegid()):
        if not check:
            os.chown(path, os.geteuid(), os.getegid())
            path.chmod(0o600)
        return {"changed": True, "path": str(path), "made": False}
    return {"changed": False, "path": str(path), "made": False}
