"""Reads what a machine is out of /proc, /sys and /etc, in one pass and almost without running programs.

Answers have the shape of `bigiron.machine.description.Machine`; sizes are bytes.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import devices
from .system import Start, Tree, fields, start

ARM_VENDORS = {
    "0x41": "ARM",
    "0x48": "HiSilicon",
    "0x4e": "NVIDIA",
    "0x50": "APM",
    "0x51": "Qualcomm",
    "0x61": "Apple",
    "0xc0": "Ampere",
}


def numbers(text: str) -> List[int]:
    """The kernel's list format: ``"0-2,8"`` is ``[0, 1, 2, 8]``."""
    found: List[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found.extend(range(int(first), int(last or first) + 1))
    return found


def kib(value: str) -> int:
    """``"12 kB"`` in bytes."""
    digits = value.split()[:1]
    return int(digits[0]) * 1024 if digits and digits[0].isdigit() else 0


def operating_system(tree: Tree) -> Dict[str, str]:
    """os-release (freedesktop.org/software/systemd/man/os-release); a Mac, which has none, is named by its kernel."""
    if sys.platform == "darwin":
        return {"id": "macos", "version_id": "", "pretty": "macOS", "codename": "", "id_like": ""}
    lines = (tree.text("/etc/os-release") or tree.text("/usr/lib/os-release")).splitlines()
    pairs = {name: value.strip().strip("\"'") for name, equals, value in (line.partition("=") for line in lines) if equals}
    return {
        "id": pairs.get("ID", ""),
        "version_id": pairs.get("VERSION_ID", ""),
        "pretty": pairs.get("PRETTY_NAME", ""),
        "codename": pairs.get("VERSION_CODENAME", ""),
        "id_like": pairs.get("ID_LIKE", ""),
    }


def _numa_nodes(tree: Tree) -> List[Dict[str, Any]]:
    base = "/sys/devices/system/node"
    nodes = []
    for node in sorted(int(name[4:]) for name in tree.names(base) if re.fullmatch(r"node\d+", name)):
        total = re.search(r"MemTotal:\s+(\d+) kB", tree.text(f"{base}/node{node}/meminfo"))
        cpus = numbers(tree.text(f"{base}/node{node}/cpulist"))
        nodes.append({"id": node, "cpus": cpus, "memory_bytes": int(total.group(1)) * 1024 if total else 0})
    return nodes


def cpu(tree: Tree, total_bytes: int) -> Dict[str, Any]:
    """Model, flags and topology. Cores and threads count what this process may use, sockets what is online."""
    # one processor's block is enough, and /proc/cpuinfo of a big machine is slow to read whole
    info = fields(tree.text("/proc/cpuinfo", 65536).split("\n\n")[0])
    base = "/sys/devices/system/cpu"
    online = numbers(tree.text(f"{base}/online"))
    allowed = set(numbers(fields(tree.text("/proc/self/status")).get("Cpus_allowed_list", "")))
    online = online or sorted(allowed) or list(range(os.cpu_count() or 1 if tree.is_here else 1))
    usable = [each for each in online if each in allowed] or online
    cores, packages = set(), set()
    for each in online:
        topology = f"{base}/cpu{each}/topology"
        package = tree.number(f"{topology}/physical_package_id")
        packages.add(package)
        if each in allowed or usable is online:
            core = tree.number(f"{topology}/core_id")
            # core ids repeat on every die; without topology (some containers) each thread counts as a core
            cores.add((package, tree.number(f"{topology}/die_id"), each if core is None else core))
    nodes = _numa_nodes(tree) or [{"id": 0, "cpus": online, "memory_bytes": total_bytes}]
    implementer = info.get("CPU implementer", "")
    vendor = info.get("vendor_id") or ARM_VENDORS.get(implementer, implementer)
    board = tree.text("/sys/firmware/devicetree/base/model")
    model = info.get("model name") or info.get("Model") or board or f"{vendor} {info.get('CPU part', '')}".strip()
    return {
        "model": model,
        "vendor": vendor,
        "sockets": len(packages),
        "cores": len(cores),
        "threads": len(usable),
        "flags": (info.get("flags") or info.get("Features") or "").split(),
        "numa_nodes": nodes,
    }


def cgroups(text: str) -> Tuple[Optional[str], Optional[str]]:
    """``/proc/<pid>/cgroup``: its path in the unified hierarchy, and in the v1 memory controller's."""
    unified = legacy = None
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            unified = path
        elif "memory" in controllers.split(","):
            legacy = path
    return unified, legacy


def _cgroup_limit(tree: Tree, total_bytes: int) -> Optional[int]:
    """The tightest memory limit above a service: of PID 1's cgroup and its parents, and of system.slice."""
    systemd = tree.exists("/run/systemd/system")
    unified, legacy = cgroups(tree.text("/proc/1/cgroup" if systemd else "/proc/self/cgroup"))
    files = []
    for path, mount, name in (
        (unified, "/sys/fs/cgroup", "memory.max"),
        (legacy, "/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ):
        if path is None:
            continue
        parts = [part for part in path.split("/") if part]
        if systemd and parts[-1:] == ["init.scope"]:
            parts[-1:] = ["system.slice"]
        # without a cgroup namespace the path is the host's and the mount the container's: what does not exist is passed over
        files += [f"{mount}/{'/'.join([*parts[:depth], name])}" for depth in range(len(parts) + 1)]
        files += [f"{mount}/system.slice/{name}"] if systemd else []
    limits = [limit for limit in map(tree.number, files) if limit is not None and 0 < limit < total_bytes]
    return min(limits, default=None)


def memory(tree: Tree) -> Dict[str, Any]:
    """What /proc/meminfo, the cgroups and the firmware's DIMM table say."""
    info = fields(tree.text("/proc/meminfo"))
    total = kib(info.get("MemTotal", ""))
    return {
        "total_bytes": total,
        "available_bytes": kib(info.get("MemAvailable", "")),
        "cgroup_limit_bytes": _cgroup_limit(tree, total),
        "dimms": devices.dimms(tree.data("/sys/firmware/dmi/tables/DMI") or b""),
    }


def _virtualization(tree: Tree, flags: List[str]) -> str:
    """What systemd-detect-virt would say, from files: the name of the container or hypervisor, or "none"."""
    container = tree.text("/run/systemd/container") or dict(
        part.partition("=")[::2] for part in tree.text("/proc/1/environ").split("\0")
    ).get("container", "")
    if container:
        return container
    for marker, name in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if tree.exists(marker):
            return name
    vendor = tree.text("/sys/class/dmi/id/sys_vendor").lower()
    for known, name in (("qemu", "qemu"), ("vmware", "vmware"), ("innotek", "oracle"), ("amazon", "amazon"), ("xen", "xen")):
        if known in vendor:
            return name
    return "vm-other" if "hypervisor" in flags else "none"


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (ValueError, OSError):
        return "unknown"


def begin(tree: Tree, begin_program: Start = start) -> Callable[[], Dict[str, Any]]:
    """Start what only a program knows; the returned function reads everything else and answers with the machine."""
    detect = None
    if tree.exists("/usr/bin/systemd-detect-virt"):
        detect = begin_program(["systemd-detect-virt"])
    gpus = devices.gpus(tree)
    drivers = {gpu["driver"] for gpu in gpus if gpu["vendor_id"] == "10de"}
    nvidia = begin_program(devices.NVIDIA_SMI) if "nvidia" in drivers and tree.exists("/usr/bin/nvidia-smi") else None

    def finish() -> Dict[str, Any]:
        ram = memory(tree)
        processor = cpu(tree, ram["total_bytes"])
        detected = detect().out.strip() if detect else ""
        return {
            "hostname": tree.text("/proc/sys/kernel/hostname"),
            "os": operating_system(tree),
            "kernel": tree.text("/proc/sys/kernel/osrelease"),
            "arch": tree.text("/proc/sys/kernel/arch") or os.uname().machine,
            "virtualization": detected or _virtualization(tree, processor["flags"]),
            "init": "systemd" if tree.exists("/run/systemd/system") else tree.text("/proc/1/comm") or "unknown",
            "python": ".".join(map(str, sys.version_info[:3])),
            "libc": _libc(),
            "cpu": processor,
            "memory": ram,
            "gpus": devices.with_nvidia_memory(gpus, nvidia()) if nvidia else gpus,
            "nvme": devices.nvme(tree),
            "nics": devices.nics(tree),
            "unreadable": tree.unreadable,
        }

    return finish


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """The host-side entry for the machine alone: ``{"machine": {...}}``. ``root`` in the request reads another tree."""
    return {"machine": begin(Tree(request.get("root", "/")))()}
