"""Processes of a host, from /proc: their unit, program, start and memory."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Optional

from .system import Tree, fields


def unit_of(tree: Tree, pid: int) -> Optional[str]:
    """The systemd unit a process belongs to, from its cgroup."""
    names = re.findall(r"/([^/\n]+\.(?:service|scope))(?=/|$)", tree.text(f"/proc/{pid}/cgroup"), re.MULTILINE)
    return names[-1] if names else None


def program(tree: Tree, pid: int) -> str:
    """The name of a process: its executable's, or the kernel's short one."""
    executable = tree.link(f"/proc/{pid}/exe")
    return Path(executable).name if executable else tree.text(f"/proc/{pid}/comm")


def started(tree: Tree, pid: int) -> Optional[float]:
    """When a process started, seconds since the epoch (proc(5): stat field 22, ticks since boot)."""
    after_name = tree.text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    boot = re.search(r"^btime (\d+)$", tree.text("/proc/stat"), re.MULTILINE)
    if len(after_name) < 20 or not boot:
        return None
    booted = float(boot.group(1))
    if tree.is_here:  # btime is whole seconds; a file written in the second of the start must not look newer than the process
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted + (int(after_name[19]) + 1) / os.sysconf("SC_CLK_TCK")


def resident_bytes(tree: Tree, pid: int) -> int:
    """Memory a process has resident (VmRSS), 0 when it is gone."""
    digits = fields(tree.text(f"/proc/{pid}/status")).get("VmRSS", "").split()[:1]
    return int(digits[0]) * 1024 if digits and digits[0].isdigit() else 0
