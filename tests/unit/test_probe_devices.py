"""GPUs, NVMe drives, DIMMs and network interfaces from trees of other machines."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigiron.onhost import devices
from bigiron.onhost.system import Output, Tree


def plant(root: Path, files: dict[str, str]) -> Tree:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(str(root))


def pci(root: Path, address: str, pci_class: str, vendor: str, device: str, driver: str = "", **files: str) -> Tree:
    folder = f"sys/bus/pci/devices/{address}"
    facts = {"class": f"0x{pci_class}\n", "vendor": f"0x{vendor}\n", "device": f"0x{device}\n", **files}
    tree = plant(root, {f"{folder}/{name}": text for name, text in facts.items()})
    if driver:
        (root / folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    return tree


def test_gpus_without_a_driver_and_other_devices(tmp_path):
    pci(tmp_path, "0000:01:00.0", "030000", "10de", "2684")
    pci(tmp_path, "0000:02:00.0", "020000", "8086", "1533", "igb")
    pci(tmp_path, "0000:03:00.0", "030000", "1002", "744c", "amdgpu", mem_info_vram_total="25753026560\n")
    pci(tmp_path, "0000:04:00.0", "120000", "1002", "74a1", "amdgpu")
    pci(tmp_path, "0000:05:00.0", "120000", "8086", "7d1d", "intel_vpu")
    tree = pci(tmp_path, "0000:06:00.0", "030000", "1a03", "2000", "ast")
    seen = [(gpu["pci"][5:7], gpu["vendor"], gpu["driver"], gpu["memory_bytes"]) for gpu in devices.gpus(tree)]
    assert seen == [
        ("01", "NVIDIA", None, None),
        ("03", "AMD", "amdgpu", 25753026560),
        ("04", "AMD", "amdgpu", None),
        ("06", "ASPEED", "ast", None),
    ]


GPU = {"pci": "0000:65:00.0", "vendor_id": "10de", "driver": "nvidia", "memory_bytes": None, "name": None}


@pytest.mark.parametrize(
    ("rc", "out", "memory_bytes"),
    [
        (0, "00000000:65:00.0, NVIDIA GeForce RTX 4090, 24564\n", 24564 * 1024**2),
        (0, "00000000:66:00.0, NVIDIA GeForce RTX 4090, 24564\n", None),
        (0, "00000000:65:00.0, NVIDIA GB10, [N/A]\n", None),
        (0, "00000000:65:00.0, NVIDIA GeForce RTX 4090, 24564 MiB\n", None),
        (0, "00000000:65:00.0, NVIDIA GeForce RTX 4090, 0\n", None),
        (0, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", None),
        (0, "Unable to determine the device handle for GPU0000:65:00.0: Unknown Error, 15\n", None),
        (9, "00000000:65:00.0, NVIDIA GeForce RTX 4090, 24564\n", None),
        (0, "", None),
        (0, "No devices were found\n00000000:65:00.0, NVIDIA GeForce RTX 4090, 24564\n", 24564 * 1024**2),
    ],
)
def test_nvidia_smi_is_believed_only_in_its_exact_form(rc, out, memory_bytes):
    assert devices.with_nvidia_memory([GPU], Output(rc, out, ""))[0]["memory_bytes"] == memory_bytes


@pytest.mark.parametrize(
    ("raw", "degrees"),
    [
        (38850, 38.9),
        (40, 40.0),
        (313, 39.9),
        (313150, 40.0),
        (87000, 87.0),
        (-273150, None),
        (None, None),
        (0, 0.0),
        (9999999, None),
    ],
)
def test_celsius_from_millidegrees_degrees_and_kelvin(raw, degrees):
    assert devices.celsius(raw) == degrees


def test_nvme_with_namespaces_multipath_and_sensors(tmp_path):
    tree = plant(
        tmp_path,
        {
            "sys/class/nvme/nvme0/serial": "S6Z1NJ0T123456      \n",
            "sys/class/nvme/nvme0/model": "Samsung SSD 990 PRO 4TB                 \n",
            "sys/class/nvme/nvme0/nvme0n1/size": "7814037168\n",
            "sys/class/nvme/nvme0/hwmon2/temp1_input": "83850\n",
            "sys/class/nvme/nvme1/serial": "B\n",
            "sys/class/nvme/nvme1/model": "Multipath\n",
            "sys/class/nvme/nvme1/nvme1c1n1/size": "2048\n",
            "sys/class/nvme/nvme1/device/hwmon/hwmon3/temp1_input": "garbage\n",
            "sys/class/nvme/nvme2/serial": "C\n",
        },
    )
    assert devices.nvme(tree) == [
        {
            "name": "nvme0n1",
            "serial": "S6Z1NJ0T123456",
            "model": "Samsung SSD 990 PRO 4TB",
            "size_bytes": 7814037168 * 512,
            "temperature_c": 83.8,
        },
        {"name": "nvme1n1", "serial": "B", "model": "Multipath", "size_bytes": 1048576, "temperature_c": None},
        {"name": "nvme2", "serial": "C", "model": "", "size_bytes": 0, "temperature_c": None},
    ]


def structure(kind: int, formatted: bytes, *strings: str) -> bytes:
    body = struct.pack("<BBH", kind, 4 + len(formatted), 1) + formatted
    return body + (b"\0".join(text.encode() for text in strings) + b"\0\0" if strings else b"\0\0")


def dimm(
    size: int, *, extended: int = 0, speed: int = 4800, configured: int = 4400, kind: int = 0x22, extended_speed: int = 0
) -> bytes:
    data = bytearray(0x5C - 4)
    struct.pack_into("<H", data, 0x0C - 4, size)
    data[0x10 - 4] = 1
    data[0x12 - 4] = kind
    struct.pack_into("<H", data, 0x15 - 4, speed)
    struct.pack_into("<I", data, 0x1C - 4, extended)
    struct.pack_into("<H", data, 0x20 - 4, configured)
    struct.pack_into("<I", data, 0x54 - 4, extended_speed)
    return structure(17, bytes(data), "DIMM_A1", "BANK 0")


def test_dimms():
    table = b"".join(
        [
            structure(0, bytes(20), "vendor"),
            dimm(0x7FFF, extended=65536),
            dimm(0),
            dimm(0xFFFF),
            dimm(16384, configured=0, kind=0x1A, speed=3200),
            dimm(16384, configured=0, speed=0xFFFF, extended_speed=70000, kind=0x99),
            dimm(0x8000 | 512),
            structure(127, b""),
        ]
    )
    assert [(each["size_bytes"], each["speed_mts"], each["type"]) for each in devices.dimms(table)] == [
        (64 * 1024**3, 4400, "DDR5"),
        (16 * 1024**3, 3200, "DDR4"),
        (16 * 1024**3, 70000, "unknown"),
        (512 * 1024, 4400, "DDR5"),
    ]
    assert {each["locator"] for each in devices.dimms(table)} == {"DIMM_A1"}


def test_dimm_of_an_old_table_has_no_configured_speed():
    data = dimm(8192, speed=1333, kind=0x18)[4:0x1B]
    assert devices.dimms(structure(17, data, "A"))[0]["speed_mts"] == 1333


@given(st.binary(max_size=300))
def test_dimms_before_garbage_are_kept(table):
    assert devices.dimms(dimm(4096) + table)[0]["size_bytes"] == 4 * 1024**3


def test_nics(tmp_path):
    tree = plant(
        tmp_path,
        {
            "sys/class/net/lo/address": "00:00:00:00:00:00\n",
            "sys/class/net/enp1s0/address": "aa:bb:cc:dd:ee:ff\n",
            "sys/class/net/enp1s0/speed": "10000\n",
            "sys/class/net/enp1s0/device/vendor": "0x8086\n",
            "sys/class/net/down0/speed": "-1\n",
            "sys/class/net/down0/device/vendor": "0x8086\n",
            "sys/class/net/veth1/address": "00:00:00:00:00:01\n",
            "sys/class/net/host0/address": "00:00:00:00:00:02\n",
            "proc/net/if_inet6": "fd000000000000000000000000000002 02 40 00 80 host0\n"
            "fe800000000000000000000000000001 03 40 20 80 veth1\nbroken\n",
        },
    )
    assert [(nic["name"], nic["speed_mbps"], nic["addresses"]) for nic in devices.nics(tree)] == [
        ("down0", None, []),
        ("enp1s0", 10000, []),
        ("host0", None, ["fd00::2"]),
    ]


def test_live_addresses_include_loopback():
    assert devices._addresses_v4().get("lo") == ["127.0.0.1"]
