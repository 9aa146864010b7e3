"""Devices of a machine: GPUs by PCI id, NVMe drives, DIMMs from the firmware's table, network interfaces.

Runs on hosts: standard library only. Every function reads files (`system.Tree`) or bytes and never raises on odd content.
"""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

if TYPE_CHECKING:
    from .system import Output, Tree

VENDORS = {"10de": "NVIDIA", "1002": "AMD", "8086": "Intel", "1a03": "ASPEED"}
NVIDIA_SMI = ["nvidia-smi", "--query-gpu=pci.bus_id,name,memory.total", "--format=csv,noheader,nounits"]
_NVIDIA_LINE = re.compile(r"(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]), (?P<name>[^,]+), (?P<mib>[1-9]\d*)")

# SMBIOS 3.7, 7.18.2 (type 17, memory type)
DIMM_TYPES = {
    0x12: "DDR", 0x13: "DDR2", 0x18: "DDR3", 0x1A: "DDR4", 0x1B: "LPDDR", 0x1C: "LPDDR2", 0x1D: "LPDDR3", 0x1E: "LPDDR4",
    0x20: "HBM", 0x21: "HBM2", 0x22: "DDR5", 0x23: "LPDDR5", 0x24: "HBM3",
}  # fmt: skip
SIOCGIFCONF = 0x8912


def _is_gpu(pci_class: str, vendor: str) -> bool:
    # AMD's Instinct cards are "processing accelerators" (12); other vendors use that class for NPUs
    return pci_class.startswith("03") or (pci_class.startswith("12") and vendor == "1002")


def gpus(tree: Tree) -> List[Dict[str, Any]]:
    """Display controllers and AMD accelerators on the PCI bus, with or without a driver; memory where sysfs says."""
    base = "/sys/bus/pci/devices"
    found = []
    for pci in tree.names(base):
        pci_class = tree.text(f"{base}/{pci}/class")[2:]
        vendor = tree.text(f"{base}/{pci}/vendor")[2:]
        if not _is_gpu(pci_class, vendor):
            continue
        driver = tree.link(f"{base}/{pci}/driver")
        found.append(
            {
                "pci": pci,
                "vendor_id": vendor,
                "device_id": tree.text(f"{base}/{pci}/device")[2:],
                "vendor": VENDORS.get(vendor, vendor),
                "driver": driver.rsplit("/", 1)[-1] if driver else None,
                "memory_bytes": tree.number(f"{base}/{pci}/mem_info_vram_total"),
                "class": pci_class,
                "name": None,
            }
        )
    return found


def with_nvidia_memory(found: List[Dict[str, Any]], answer: Output) -> List[Dict[str, Any]]:
    """``found`` with names and memory from nvidia-smi, whose stdout may hold errors: only lines of the exact form count."""
    known: Dict[str, Tuple[str, int]] = {}
    if answer.rc == 0:
        for match in filter(None, map(_NVIDIA_LINE.fullmatch, map(str.strip, answer.out.splitlines()))):
            domain, rest = match["pci"].lower().split(":", 1)
            known[f"{int(domain, 16):04x}:{rest}"] = (match["name"].strip(), int(match["mib"]) * 1024**2)
    return [
        {**gpu, "name": known[gpu["pci"]][0], "memory_bytes": known[gpu["pci"]][1]} if gpu["pci"] in known else gpu
        for gpu in found
    ]


def celsius(raw: Optional[int]) -> Optional[float]:
    """A hwmon reading in degrees C: millidegrees by rule; drives that pass on whole degrees or kelvin are read too."""
    if raw is None:
        return None
    value = raw / 1000 if abs(raw) >= 1000 else float(raw)
    if value >= 200:
        value -= 273.15
    return round(value, 1) if -60 < value < 200 else None


def nvme(tree: Tree) -> List[Dict[str, Any]]:
    """NVMe namespaces with their controller's serial, model and temperature."""
    base = "/sys/class/nvme"
    found: Dict[str, Dict[str, Any]] = {}
    for controller in tree.names(base):
        here = f"{base}/{controller}"
        inside = tree.names(here)
        sensors = [f"{here}/{name}" for name in inside if re.fullmatch(r"hwmon\d+", name)]
        for folder in ("hwmon", "device/hwmon"):
            sensors += [f"{here}/{folder}/{name}" for name in tree.names(f"{here}/{folder}")]
        readings = [celsius(tree.number(f"{sensor}/temp1_input")) for sensor in sensors]
        drive = {
            "serial": tree.text(f"{here}/serial"),
            "model": tree.text(f"{here}/model"),
            "temperature_c": next((value for value in readings if value is not None), None),
        }
        # with multipath the controller holds nvme0c1n1, a hidden path of the disk nvme0n1
        spaces = {re.sub(r"c\d+n", "n", name): name for name in inside if re.fullmatch(r"nvme\d+(c\d+)?n\d+", name)}
        for name, folder in (spaces or {controller: ""}).items():
            size = (tree.number(f"{here}/{folder}/size") or 0) * 512 if folder else 0
            found.setdefault(name, {"name": name, "size_bytes": size, **drive})
    return list(found.values())


def _structures(table: bytes) -> Iterator[Tuple[int, bytes, List[bytes]]]:
    """SMBIOS structures (type, formatted part, strings); stops at the first that makes no sense."""
    at = 0
    while at + 4 <= len(table):
        kind, length = table[at], table[at + 1]
        end = table.find(b"\0\0", at + length)
        if length < 4 or end < 0:
            return
        yield kind, table[at : at + length], table[at + length : end].split(b"\0")
        at = end + 2


def dimms(table: bytes) -> List[Dict[str, Any]]:
    """Populated slots out of /sys/firmware/dmi/tables/DMI (SMBIOS 3.7, 7.18); [] for bytes that are no such table."""
    found = []
    for kind, data, strings in _structures(table):
        if kind != 17 or len(data) < 0x15:
            continue

        def word(offset: int, form: str = "<H", data: bytes = data) -> int:
            return int(struct.unpack_from(form, data, offset)[0]) if offset + struct.calcsize(form) <= len(data) else 0

        size = word(0x0C)
        if size in (0, 0xFFFF):  # an empty slot, or unknown
            continue
        if size == 0x7FFF:
            size_bytes = (word(0x1C, "<I") & 0x7FFFFFFF) * 1024**2
        else:
            size_bytes = (size & 0x7FFF) * (1024 if size & 0x8000 else 1024**2)
        rated, configured = word(0x15), word(0x20)
        rated = word(0x54, "<I") if rated == 0xFFFF else rated
        configured = word(0x58, "<I") if configured == 0xFFFF else configured
        index = data[0x10]
        locator = strings[index - 1].decode(errors="replace").strip() if 0 < index <= len(strings) else ""
        found.append(
            {
                "size_bytes": size_bytes,
                "speed_mts": configured or rated,
                "type": DIMM_TYPES.get(data[0x12], "unknown"),
                "locator": locator,
            }
        )
    return found


def _addresses_v4() -> Dict[str, List[str]]:
    """IPv4 addresses by interface, from the kernel (SIOCGIFCONF, netdevice(7))."""
    buffer = array.array("B", bytes(40 * 512))
    found: Dict[str, List[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
        filled = struct.unpack("iL", fcntl.ioctl(channel.fileno(), SIOCGIFCONF, request))[0]
    data = buffer.tobytes()
    for at in range(0, filled, 40):
        name = data[at : at + 16].split(b"\0")[0].decode(errors="replace").split(":")[0]
        found.setdefault(name, []).append(socket.inet_ntop(socket.AF_INET, data[at + 20 : at + 24]))
    return found


def nics(tree: Tree) -> List[Dict[str, Any]]:
    """Interfaces that are hardware or have an address (loopback and bare virtual ones are left out)."""
    addresses = _addresses_v4() if tree.is_here else {}
    for line in tree.text("/proc/net/if_inet6").splitlines():
        parts = line.split()
        if len(parts) == 6 and len(parts[0]) == 32 and parts[3] != "20":  # 20 is link-local scope
            addresses.setdefault(parts[5], []).append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(parts[0])))
    base = "/sys/class/net"
    found = []
    for name in tree.names(base):
        here = f"{base}/{name}"
        if name == "lo" or not (tree.exists(f"{here}/device") or name in addresses):
            continue
        speed = tree.number(f"{here}/speed")
        found.append(
            {
                "name": name,
                "mac": tree.text(f"{here}/address"),
                "speed_mbps": speed if speed is not None and speed > 0 else None,
                "addresses": addresses.get(name, []),
            }
        )
    return found
