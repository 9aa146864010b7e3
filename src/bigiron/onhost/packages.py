"""Debian packages: what is missing, installing it, and a record of exactly what that brought, so that it can be removed.

Standard library only: this file also runs on hosts. ``ansible.builtin.apt`` needs python3-apt in the right interpreter and
cannot check a virgin host without it (ansible#73075); apt-get itself is on every Debian.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Optional

from ..errors import BigironError
from .progress import write_atomic

RECORD = Path("/var/lib/bigiron/packages.json")
LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/lib/apt/lists/lock", "/var/cache/apt/archives/lock")
Run = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C",
        "DEBIAN_FRONTEND": "noninteractive",
        "NEEDRESTART_SUSPEND": "1",  # no service of the person's is restarted behind their back
        "HOME": "/root",
        **{name: value for name, value in os.environ.items() if name.lower() in {"http_proxy", "https_proxy", "no_proxy"}},
    }
    return subprocess.run(
        argv, capture_output=True, text=True, errors="replace", check=False, env=environment, stdin=subprocess.DEVNULL
    )


def installed(runner: Run = run) -> dict[str, str]:
    """``{name: version}`` of the packages that are completely installed."""
    answer = runner(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}\t${Package}\t${Version}\n"])
    rows = (line.split("\t") for line in answer.stdout.splitlines())
    return {row[1]: row[2] for row in rows if len(row) == 3 and row[0][1:2] == "i"}


def simulated(output: str, word: str = "Inst") -> dict[str, str]:
    """``{name: version}`` of what ``apt-get -s`` would newly install, or remove with ``word="Remv"``.

    A line with a version in brackets before the parenthesis is an upgrade of something that is there: not new.
    """
    found = {}
    for line in output.splitlines():
        match = re.match(rf"{word} (\S+?)(?::\w+)? (\[[^\]]*\] )?(?:\((\S+))?", line)
        if match and (word == "Remv" or not match.group(2)):
            found[match.group(1)] = match.group(3) or ""
    return found


def missing(wanted: list[str], have: dict[str, str]) -> list[str]:
    """The wanted packages (``name`` or ``name=version``) that are not there, or there in another version."""
    absent = []
    for item in wanted:
        name, _, version = item.partition("=")
        if name not in have or (version and have[name] != version):
            absent.append(item)
    return absent


def recorded(record: Path = RECORD) -> list[str]:
    """The packages that bigiron brought to this host."""
    try:
        names = json.loads(record.read_text(encoding="utf-8"))["installed_packages"]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise BigironError(f"the package record is not readable: {error}", where=str(record)) from error
    return sorted(str(name) for name in names)


def _write_record(names: list[str], record: Path) -> None:
    record.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_atomic(record, json.dumps({"installed_packages": sorted(set(names))}, indent=1) + "\n")


def ensure(
    wanted: list[str], *, lock_timeout_s: int = 300, check: bool = False, record: Path = RECORD, runner: Run = run
) -> dict[str, Any]:
    """Install what is missing, without recommends; returns ``{"changed", "installed": [name], "updated_lists"}``.

    The record is written before apt starts, from its own simulation, so that a killed run forgets nothing.
    """
    have = installed(runner)
    absent = missing(wanted, have)
    if not absent:
        return {"changed": False, "installed": [], "updated_lists": False}
    if check:
        return {"changed": True, "installed": sorted(name.partition("=")[0] for name in absent), "updated_lists": False}
    apt = _Apt(runner, lock_timeout_s)
    apt.repair()
    plan = runner(apt.argv("-s", "install", "--no-install-recommends", *absent))
    updated = plan.returncode != 0
    if updated:  # no lists yet, or lists too old to know the package
        apt.call("update")
        plan = runner(apt.argv("-s", "install", "--no-install-recommends", *absent))
        if plan.returncode != 0:
            raise BigironError(
                f"apt cannot install {', '.join(absent)}: {_reason(plan)}",
                where="base_packages",
                hint="check the names and /etc/apt/sources.list*",
            )
    new = sorted(simulated(plan.stdout))
    _write_record([*recorded(record), *new], record)
    arguments = ("-y", "install", "--no-install-recommends", *absent)
    try:
        apt.call(*arguments)
    except BigironError as error:
        if updated or "Failed to fetch" not in str(error):
            raise
        apt.call("update")  # the lists named versions that the archive has replaced since
        apt.call(*arguments)
        updated = True
    still = missing(wanted, installed(runner))
    if still:
        raise BigironError(f"apt reported success but these are not installed: {', '.join(still)}", where="base_packages")
    return {"changed": True, "installed": new, "updated_lists": updated}


def remove(*, lock_timeout_s: int = 300, check: bool = False, record: Path = RECORD, runner: Run = run) -> dict[str, Any]:
    """Remove the recorded packages as far as nothing else goes with them.

    Returns ``{"changed", "removed": [name], "kept": [{"name", "because"}]}``; a package that something else needs by now stays.
    """
    have = installed(runner)
    ours = [name for name in recorded(record) if name in have]
    removable, kept = _removable(ours, runner)
    if removable and not check:
        _Apt(runner, lock_timeout_s).call("-y", "purge", *removable)
    if not check:
        with contextlib.suppress(FileNotFoundError):
            record.unlink()
    return {"changed": bool(removable), "removed": removable, "kept": kept}


def _removable(ours: list[str], runner: Run) -> tuple[list[str], list[dict[str, str]]]:
    """Try all at once; where more than ours would go, find by halves which of ours drag it along."""
    if not ours:
        return [], []
    answer = runner(["apt-get", "-s", "purge", *ours])
    going = set(simulated(answer.stdout, "Remv")) | set(simulated(answer.stdout, "Purg"))
    foreign = sorted(going - set(ours))
    if answer.returncode == 0 and not foreign:
        return ours, []
    because = f"removing it would also remove {', '.join(foreign[:4])}" if foreign else _reason(answer)
    if len(ours) == 1:
        return [], [{"name": ours[0], "because": because}]
    removable, kept = [], []
    for half in (ours[: len(ours) // 2], ours[len(ours) // 2 :]):
        part = _removable(half, runner)
        removable += part[0]
        kept += part[1]
    # halves that are harmless alone may not be harmless together
    answer = runner(["apt-get", "-s", "purge", *removable]) if removable else answer
    extra = (set(simulated(answer.stdout, "Remv")) | set(simulated(answer.stdout, "Purg"))) - set(removable)
    if removable and extra:
        return [], [*kept, *({"name": name, "because": f"removing it would also remove {min(extra)}"} for name in removable)]
    return removable, kept


class _Apt:
    """apt-get that waits for other package managers and names the one it waited for in vain."""

    def __init__(self, runner: Run, lock_timeout_s: int) -> None:
        self.runner = runner
        self.lock_timeout_s = lock_timeout_s

    def argv(self, *arguments: str) -> list[str]:
        keep = ("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold")
        return ["apt-get", "-q", "-o", f"DPkg::Lock::Timeout={self.lock_timeout_s}", *keep, *arguments]

    def repair(self) -> None:
        """Finish what a killed dpkg left half done, else every later step fails (dpkg says so itself)."""
        if any(Path("/var/lib/dpkg/updates").glob("[0-9]*")):
            self.runner(["dpkg", "--configure", "-a"])

    def call(self, *arguments: str) -> None:
        # DPkg::Lock::Timeout covers dpkg's lock only; the lists have their own, so we wait for that one here
        until = time.monotonic() + self.lock_timeout_s
        while True:
            answer = self.runner(self.argv(*arguments))
            text = answer.stdout + answer.stderr
            if answer.returncode == 0:
                return
            locked = re.search(r"Could not get lock (\S+?)\.? ", text)
            if not locked or time.monotonic() >= until:
                break
            time.sleep(2)
        if locked:
            who = holder(locked.group(1)) or "unknown process"
            raise BigironError(
                f"another package manager held the lock for {self.lock_timeout_s} s: {who}",
                where=locked.group(1),
                hint="let it finish (unattended-upgrades runs after the first boot), then run it again",
            )
        raise BigironError(
            f"apt-get {' '.join(a for a in arguments if a[0] != '-')[:200]} failed: {_reason(answer)}", where="apt"
        )


def _reason(answer: subprocess.CompletedProcess[str]) -> str:
    lines = [
        line
        for line in (answer.stderr + "\n" + answer.stdout).splitlines()
        if line.startswith(("E:", "W: Failed", "dpkg: error"))
    ]
    return " ".join(lines[:4]) or (answer.stderr.strip() or answer.stdout.strip())[-300:] or f"exit code {answer.returncode}"


def holder(lock: str, locks: Optional[str] = None) -> str:
    """``"apt-get (pid 12)"``: who holds a POSIX lock on this file, from /proc/locks; empty when nobody (visible) does."""
    try:
        inode = Path(lock).stat().st_ino
        table = Path("/proc/locks").read_text(encoding="utf-8") if locks is None else locks
    except OSError:
        return ""
    for line in table.splitlines():
        match = re.search(r"(?:POSIX|FLOCK|OFDLCK)\s+\S+\s+WRITE\s+(-?\d+)\s+\S+:(\d+)\s", line)
        if match and int(match.group(2)) == inode:
            pid = match.group(1)
            with contextlib.suppress(OSError):
                return f"{Path('/proc', pid, 'comm').read_text(encoding='utf-8').strip()} (pid {pid})"
            return f"pid {pid}"
    return ""
