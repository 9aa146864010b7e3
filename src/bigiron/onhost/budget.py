"""How much memory and how many CPUs the processes started from here may use: what is free, and what the control groups allow (v1 and v2).

Standard library only: this file also runs on hosts.
"""

from __future__ import annotations

import os
import re
from typing import Iterator, List, NamedTuple, Optional, Tuple

from .system import Tree, fields

JOB_MEMORY_BYTES = 3 * 2**29
"""1.5 GiB: peak of one compiler on llama.cpp's heaviest file; unrestricted -j has the kernel kill the compiler (llama.cpp#13993)."""
V1_UNLIMITED = 1 << 60


class Budget(NamedTuple):
    """``oom_kills`` counts what the kernel killed for memory so far, in these groups or (where they do not count) on the machine."""

    memory_bytes: int
    cpus: int
    oom_kills: int


def of_this_process(tree: Optional[Tree] = None) -> Budget:
    """The budget now. What cannot be read limits nothing."""
    tree = tree or Tree()
    available = int((fields(tree.text("/proc/meminfo")).get("MemAvailable", "0").split() or ["0"])[0]) * 1024
    text = tree.text("/proc/self/cgroup")
    unified, legacy = _unified(text), _v1(text, "memory")
    free, cpus, kills = [available] if available else [], [float(_usable_cpus(tree))], []
    for folder in _levels("/sys/fs/cgroup", unified):
        limit, used = tree.number(f"{folder}/memory.max"), tree.number(f"{folder}/memory.current")
        if limit is not None and used is not None:
            free.append(limit - used + _counter(tree.text(f"{folder}/memory.stat"), "inactive_file"))
        quota = tree.text(f"{folder}/cpu.max").split()
        if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]):
            cpus.append(int(quota[0]) / int(quota[1]))
        kills.append(_counter(tree.text(f"{folder}/memory.events"), "oom_kill"))
    for folder in _levels("/sys/fs/cgroup/memory", legacy):
        limit, used = tree.number(f"{folder}/memory.limit_in_bytes"), tree.number(f"{folder}/memory.usage_in_bytes")
        if limit is not None and used is not None and limit < V1_UNLIMITED:
            free.append(limit - used + _counter(tree.text(f"{folder}/memory.stat"), "total_inactive_file"))
        kills.append(_counter(tree.text(f"{folder}/memory.oom_control"), "oom_kill"))
    for folder in _levels("/sys/fs/cgroup/cpu", _v1(text, "cpu")):
        whole, share = tree.number(f"{folder}/cpu.cfs_period_us"), tree.number(f"{folder}/cpu.cfs_quota_us")
        if whole and share and share > 0:
            cpus.append(share / whole)
    kills.append(_counter(tree.text("/proc/vmstat"), "oom_kill"))
    return Budget(max(0, min(free, default=0)), max(1, int(min(cpus))), max(kills))


def jobs(wanted: int, now: Budget) -> int:
    """Compilers at once: as many as are wanted, as CPUs and memory allow; at least one."""
    by_memory = now.memory_bytes // JOB_MEMORY_BYTES if now.memory_bytes else wanted
    return max(1, min(wanted, now.cpus, by_memory))


def _levels(mount: str, path: Optional[str]) -> Iterator[str]:
    """The group and all above it. Without a namespace the path is the machine's and the mount the container's: what is not there says nothing."""
    parts: List[str] = [part for part in (path or "").split("/") if part]
    if path is not None:
        for depth in range(len(parts) + 1):
            yield "/".join([mount, *parts[:depth]])


def _unified(text: str) -> Optional[str]:
    found = re.search(r"^0::(.*)$", text, re.MULTILINE)
    return found.group(1) if found else None


def _v1(text: str, controller: str) -> Optional[str]:
    found: List[Tuple[str, str]] = re.findall(r"^[1-9]\d*:([^:]*):(.*)$", text, re.MULTILINE)
    return next((path for names, path in found if controller in names.split(",")), None)


def _counter(text: str, name: str) -> int:
    found = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
    return int(found.group(1)) if found else 0


def _usable_cpus(tree: Tree) -> int:
    if tree.is_here:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return len(re.findall(r"^processor\s*:", tree.text("/proc/cpuinfo"), re.MULTILINE)) or 1
