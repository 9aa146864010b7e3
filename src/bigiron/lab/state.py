"""What the lab of this folder is called, where it keeps things, and which of its processes are alive.

Everything here is cheap: the fast path of ``provision`` reads one JSON file and a handful of ``/proc/<pid>/stat``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bigiron import paths
from bigiron.errors import UsageError

KEY = hashlib.sha256(str(paths.PROJECT).encode()).hexdigest()[:6]
"""Six hex digits of the project path: part of every name the kernel sees, so that two folders do not collide."""

BRIDGE = f"bi-{KEY}"
TABLE = f"bigiron_{KEY}"
LAB = paths.STATE / "lab"
HOSTS = LAB / "hosts"
INVENTORY_STATE = paths.PROJECT / "inventory" / "lab" / "90-state.yml"
CLIENT_KEY = LAB / "id_ed25519"
KNOWN_HOSTS = LAB / "known_hosts"
MAX_HOSTS = 99

_NAME = re.compile(r"lab(0[1-9]|[1-9][0-9])")


def machine_name(host: str) -> str:
    """The container's name on the controller; twelve characters, so that its interface ``vb-<name>`` is not truncated."""
    return f"{KEY}-{host}"


def is_host(name: str) -> bool:
    """True for a name the lab can make."""
    return _NAME.fullmatch(name) is not None


def host_number(host: str) -> int:
    """``lab07`` -> 7. Raises UsageError for a name the lab cannot make."""
    if not is_host(host):
        raise UsageError(f"the lab has no host {host!r}", hint=f"lab hosts are called lab01 to lab{MAX_HOSTS}")
    return int(host[3:])


def host_name(number: int) -> str:
    """7 -> ``lab07``."""
    return f"lab{number:02d}"


def root_of(host: str) -> Path:
    """The folder a host boots from."""
    return HOSTS / host / "root"


def release_of(host: str) -> str | None:
    """The codename of the Debian in the host's root; None when it has none or does not say."""
    with contextlib.suppress(OSError):
        text = (root_of(host) / "usr/lib/os-release").read_text(encoding="utf-8")
        found = re.search(r"^VERSION_CODENAME=\"?([a-z]+)", text, re.MULTILINE)
        return found[1] if found else None
    return None


@dataclass(frozen=True)
class Process:
    """A process, identified so that a recycled pid is never mistaken for it: pid and start time (clock ticks since boot)."""

    pid: int
    start: int

    def alive(self) -> bool:
        """True when this very process still runs (a zombie does not)."""
        return start_time(self.pid) == self.start

    def send(self, number: signal.Signals) -> bool:
        """Signal this very process; False when it is gone. The pidfd closes the gap between looking and signalling."""
        try:
            handle = os.pidfd_open(self.pid)
        except (ProcessLookupError, OSError):
            return False
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def wait_gone(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for it to end; True when it has."""
        deadline = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > deadline:
                return False
            with contextlib.suppress(ChildProcessError, OSError):
                os.waitpid(self.pid, os.WNOHANG)
            time.sleep(0.02)
        return True


def start_time(pid: int) -> int | None:
    """Field 22 of ``/proc/<pid>/stat``, or None when the process is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def process(pid: int) -> Process | None:
    """The process that has ``pid`` now, or None."""
    start = start_time(pid)
    return None if start is None else Process(pid, start)


def processes(pids: Iterable[int]) -> list[Process]:
    """Those of ``pids`` that still run."""
    return [one for one in map(process, pids) if one is not None]


def find_processes(*words: str) -> list[Process]:
    """Processes whose command line holds all ``words`` as whole arguments (or in the title of a process that renamed itself).

    Used to adopt what a killed run had started but not yet recorded; the words carry this lab's own paths or key.
    """
    import psutil

    pids = []
    for each in psutil.process_iter(["cmdline"]):
        arguments = each.info["cmdline"] or [""]
        title = arguments[0].split(" ")
        if each.pid != os.getpid() and all(word in arguments or word in title for word in words):
            pids.append(each.pid)
    return processes(pids)


@dataclass(frozen=True)
class Host:
    """One lab host as recorded: its address and the systemd-nspawn process that holds it."""

    address: str
    leader: Process | None = None


@dataclass(frozen=True)
class State:
    """The record ``.bigiron/lab/state.json``; only ever a claim, checked against ``/proc`` before use."""

    boot_id: str
    subnet: str
    gateway: str
    hosts: dict[str, Host] = field(default_factory=dict)
    mirror: Process | None = None
    mirror_url: str = ""

    def with_host(self, name: str, host: Host | None) -> State:
        """This record with ``name`` set to ``host``, or removed for None."""
        others = {key: value for key, value in self.hosts.items() if key != name}
        return replace(self, hosts=others if host is None else dict(sorted({**others, name: host}.items())))


def boot_id() -> str:
    """The kernel's identity of this boot: pids recorded in another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def load() -> State | None:
    """The record, or None when there is none or it is damaged. After a reboot its addresses count, its processes do not."""
    try:
        data: dict[str, Any] = json.loads((LAB / "state.json").read_text(encoding="utf-8"))
        state = State(
            boot_id=data["boot_id"],
            subnet=data["subnet"],
            gateway=data["gateway"],
            hosts={n: Host(h["address"], _process_from(h["leader"])) for n, h in data["hosts"].items()},
            mirror=_process_from(data["mirror"]),
            mirror_url=data["mirror_url"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if state.boot_id != boot_id():
        hosts = {name: Host(host.address) for name, host in state.hosts.items()}
        return replace(state, boot_id=boot_id(), hosts=hosts, mirror=None)
    return state


def save(state: State) -> None:
    """Write the record atomically."""
    paths.write_atomic(LAB / "state.json", json.dumps(asdict(state), indent=1) + "\n", mode=0o600)


def _process_from(data: dict[str, int] | None) -> Process | None:
    return None if data is None else Process(data["pid"], data["start"])
