"""apt and dpkg on a host: waits for other package managers, names the one it waited for in vain, finishes what a killed run left.

Standard library only: this file also runs on hosts.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from ..errors import BigironError

LOGS = "/var/log/apt/term.log"
HALF = {"U": "unpacked, not configured", "F": "half configured", "H": "half installed"}
"""dpkg's states of a package that something interrupted, or whose script failed."""
LOCKED = re.compile(r"Could not get lock (\S+?)\.? |dpkg (frontend|database) lock was locked by")
DPKG_LOCKS = {"frontend": "/var/lib/dpkg/lock-frontend", "database": "/var/lib/dpkg/lock"}
Run = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


class State(NamedTuple):
    """A package as dpkg has it: what is wanted of it (``i``, ``h`` for hold, ...), how it is (``i`` installed, ...), in which version."""

    want: str
    have: str
    version: str


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


def states(runner: Run = run) -> dict[str, State]:
    """Every package that dpkg knows; of several architectures the installed one. Without the pattern a hold on an absent one is not told."""
    answer = runner(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}\t${Package}\t${Version}\n", "*"])
    found: dict[str, State] = {}
    for row in (line.split("\t") for line in answer.stdout.splitlines()):
        if len(row) == 3 and (row[1] not in found or row[0][1:2] == "i"):
            found[row[1]] = State(row[0][:1], row[0][1:2], row[2])
    return found


def broken(found: dict[str, State]) -> dict[str, str]:
    """``{name: how}`` of the packages that are neither installed nor gone."""
    return {name: HALF[state.have] for name, state in found.items() if state.have in HALF}


class Apt:
    """apt-get, apt-mark and dpkg that wait for others, at most ``lock_timeout_s`` seconds each."""

    def __init__(self, runner: Run, lock_timeout_s: int) -> None:
        self.runner = runner
        self.lock_timeout_s = lock_timeout_s

    def argv(self, *arguments: str) -> list[str]:
        keep = ("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold")
        return ["apt-get", "-q", "-o", f"DPkg::Lock::Timeout={self.lock_timeout_s}", *keep, *arguments]

    def repair(self) -> bool:
        """Finish what a killed dpkg left half done, else every later step fails (dpkg says so itself); True when there was something.

        Raises BigironError, naming the packages and the log, when they cannot be finished.
        """
        if not any(Path("/var/lib/dpkg/updates").glob("[0-9]*")) and not broken(states(self.runner)):
            return False
        answer = self.wait(["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"])
        self.check_whole(answer.stdout + answer.stderr, "dpkg --configure -a")
        return True

    def check_whole(self, output: str, command: str) -> None:
        """Raise BigironError naming every package that ``command`` left half done, with what it said and where the rest stands."""
        left = broken(states(self.runner))
        if not left:
            return
        log = re.search(r"/var/lib/dkms/\S+?/make\.log", output)
        where = log.group(0) if log else LOGS
        failed = re.search(
            r"script subprocess returned error exit status \d+|subprocess returned error exit status \d+", output
        )
        said = f" ({failed.group(0)})" if failed else ""
        raise BigironError(
            f"{', '.join(f'{name} is {how}' for name, how in sorted(left.items()))} after {command}{said}: {tail(output)}",
            where=where,
            hint=f"read the end of {where}, put right what it names (or remove the package), and run it again: it repairs first",
        )

    def wait(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        """The answer of ``argv`` once no other package manager is in its way. Raises BigironError naming the one that stays."""
        # DPkg::Lock::Timeout covers apt's way to dpkg's lock only: the lists have their own, and dpkg and apt-mark wait for none
        until = time.monotonic() + self.lock_timeout_s
        while True:
            answer = self.runner(argv)
            locked = LOCKED.search(answer.stdout + answer.stderr) if answer.returncode else None
            if not locked:
                return answer
            if time.monotonic() >= until:
                break
            time.sleep(2)
        lock = locked.group(1) or DPKG_LOCKS[locked.group(2)]
        raise BigironError(
            f"another package manager held the lock for {self.lock_timeout_s} s: {holder(lock) or 'unknown process'}",
            where=lock,
            hint="let it finish (unattended-upgrades runs after the first boot), then run it again",
        )

    def call(self, *arguments: str) -> None:
        """``apt-get`` with ``arguments``. Raises BigironError when it fails; a package whose script failed is named."""
        answer = self.wait(self.argv(*arguments))
        if answer.returncode:
            what = f"apt-get {' '.join(a for a in arguments if a[0] != '-')[:200]}"
            if "-s" not in arguments and arguments[-1] != "update":
                self.check_whole(answer.stdout + answer.stderr, what)
            raise BigironError(f"{what} failed: {reason(answer)}", where="apt")

    def mark(self, verb: str, names: list[str]) -> None:
        """``apt-mark hold`` or ``unhold``; of nothing when ``names`` is empty."""
        answer = self.wait(["apt-mark", verb, *names]) if names else None
        if answer and answer.returncode:
            raise BigironError(f"apt-mark {verb} {' '.join(names)} failed: {reason(answer)}", where="apt")


def tail(output: str) -> str:
    """The last lines of ``output`` that are not apt's own bookkeeping."""
    noise = (
        "Reading ",
        "Building ",
        "Processing triggers",
        "Errors were",
        "E: Sub-process",
        "(Reading",
        "Setting up",
        "dpkg: error",
    )
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.lstrip().startswith(noise)]
    return " ".join(lines[-3:])[-300:] or "it said nothing"


def reason(answer: subprocess.CompletedProcess[str]) -> str:
    """Why a command failed, from what it said."""
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
