"""A control group of its own for every lab host.

Where PID 1 is not systemd, systemd-nspawn leaves a container in the caller's group; two containers in one group would each
clean up the other's services. Where PID 1 is systemd, it makes a scope per container and nothing here is used.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from bigiron.lab import state

PARENT = f"bigiron-{state.KEY}"
REBOOTS = 133
"""How systemd-nspawn with --keep-unit says that the host reboots: without it, it would start the host again itself."""


def needed() -> bool:
    """True when nobody else gives the container a group."""
    return not Path("/run/systemd/system").is_dir()


def hierarchies() -> list[Path]:
    """Mount points of the cgroup hierarchies, v1 and v2."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines())
    return [Path(words[1]) for words in mounts if words[2] in {"cgroup", "cgroup2"} and os.access(words[1], os.W_OK)]


def prepare(host: str) -> list[Path]:
    """Make the host's group in every hierarchy; returns the ``cgroup.procs`` files a process writes its pid to."""
    entries = []
    for hierarchy in hierarchies():
        parent = hierarchy / PARENT
        with contextlib.suppress(OSError):
            (parent / host).mkdir(parents=True, exist_ok=True)
            for level, above in ((parent, hierarchy), (parent / host, parent)):
                for name in ("cpuset.cpus", "cpuset.mems"):  # a new v1 cpuset is empty and takes no process
                    if (hierarchy / "cgroup.clone_children").exists() and (level / name).exists():
                        (level / name).write_text((above / name).read_text(encoding="ascii"), encoding="ascii")
            entries.append(parent / host / "cgroup.procs")
    return entries


def survivors(host: str) -> list[state.Process]:
    """Processes still in the host's groups, at any depth."""
    pids: set[int] = set()
    for hierarchy in hierarchies():
        for folder, _, _ in os.walk(hierarchy / PARENT / host):  # not rglob, which raises when a group goes meanwhile
            with contextlib.suppress(OSError):
                pids.update(int(word) for word in Path(folder, "cgroup.procs").read_text(encoding="ascii").split())
    return state.processes(pids)


def remove(host: str) -> None:
    """Kill what is left in the host's groups and remove them, and the lab's own group with the last host."""
    for _ in range(50):
        left = survivors(host)
        if not left:
            break
        for one in left:
            one.send(signal.SIGKILL)
        time.sleep(0.05)
    for hierarchy in hierarchies():
        group = hierarchy / PARENT / host
        for _ in range(20):  # a group stays busy for a moment after its last process ended
            _rmdir_tree(group)
            if not group.exists():
                break
            time.sleep(0.05)
        with contextlib.suppress(OSError):
            group.parent.rmdir()


def _rmdir_tree(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()


def wrapped(procs: list[Path], command: list[str]) -> list[str]:
    """``command``, below a shell that moves itself into the groups first, and starts it again for as long as the host reboots."""
    join = 'while [ "$1" != -- ]; do echo $$ >"$1" || :; shift; done; shift'
    loop = f'while "$@"; status=$?; [ $status = {REBOOTS} ]; do :; done; exit $status'
    return [shutil.which("sh") or "/bin/sh", "-c", f"{join}; {loop}", "sh", *map(str, procs), "--", *command]
