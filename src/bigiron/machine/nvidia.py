"""What goes together on NVIDIA hosts: GPU generations, CUDA toolkits, host compilers, C libraries, drivers, package names.

The one table of all of it; nothing here looks at a host. Versions are tuples of numbers, (13, 5); architectures are compute
capabilities without a dot, 89.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bigiron.machine.description import OperatingSystem

VENDOR = "10de"
OPEN, CLOSED = "open", "closed"


@dataclass(frozen=True)
class Generation:
    """``modules`` are the kernel modules that drive it, the recommended one first; ``last_branch`` of the driver knows it (0: the newest does)."""

    name: str
    modules: tuple[str, ...]
    last_branch: int = 0


MAXWELL = Generation("Maxwell", (CLOSED,), 580)
PASCAL = Generation("Pascal", (CLOSED,), 580)
VOLTA = Generation("Volta", (CLOSED,), 580)
TURING = Generation("Turing", (OPEN, CLOSED))
AMPERE = Generation("Ampere", (OPEN, CLOSED))
ADA = Generation("Ada", (OPEN, CLOSED))
HOPPER = Generation("Hopper", (OPEN, CLOSED))
BLACKWELL = Generation("Blackwell", (OPEN,))

# first and last PCI device id, architecture, generation (pci.ids; one chip after the other)
CHIPS: tuple[tuple[int, int, int, Generation], ...] = (
    (0x1340, 0x13BF, 50, MAXWELL), (0x13C0, 0x147F, 52, MAXWELL), (0x17C0, 0x17FF, 52, MAXWELL),
    (0x15F0, 0x15FF, 60, PASCAL), (0x1B00, 0x1D7F, 61, PASCAL), (0x1D80, 0x1DFF, 70, VOLTA),
    (0x1E00, 0x1FFF, 75, TURING), (0x2180, 0x21FF, 75, TURING),
    (0x2080, 0x20FF, 80, AMPERE), (0x2200, 0x227F, 86, AMPERE), (0x2300, 0x237F, 90, HOPPER), (0x2400, 0x25FF, 86, AMPERE),
    (0x2680, 0x28FF, 89, ADA),
    (0x2900, 0x29FF, 100, BLACKWELL), (0x2B80, 0x2DFF, 120, BLACKWELL), (0x2E00, 0x2E7F, 121, BLACKWELL),
    (0x2F00, 0x2F7F, 120, BLACKWELL), (0x3180, 0x31FF, 103, BLACKWELL),
)  # fmt: skip


def chip(device_id: str) -> tuple[int, Generation] | None:
    """Architecture and generation of a PCI device id (hex without 0x); None for a chip that is not in the table."""
    number = int(device_id, 16)
    return next(((arch, generation) for low, high, arch, generation in CHIPS if low <= number <= high), None)


@dataclass(frozen=True)
class Toolkit:
    """Toolkits from ``since`` on, until the next row. ``gcc`` and ``glibc`` are the newest that work (None: no limit known).

    ``driver`` is the oldest branch that runs its programs (minor version compatibility).
    """

    since: tuple[int, int]
    architectures: frozenset[int]
    gcc: int
    glibc: tuple[int, int] | None
    driver: tuple[int, ...]


_BEFORE_8 = frozenset({50, 52, 53, 60, 61, 62, 70, 72})
_FROM_8 = frozenset({75, 80, 86, 87})
_ADA_HOPPER = frozenset({89, 90})
_OLD_DRIVER, _DRIVER_12, _DRIVER_13 = (450, 80, 2), (525, 60, 13), (580, 65, 6)
_GLIBC = (2, 40)
"""From 2.41 on glibc declares sinpi and its kin, and headers of CUDA before 13 declare them otherwise (llama.cpp#17615)."""
TOOLKITS: tuple[Toolkit, ...] = (
    # gcc: #error in crt/host_config.h; architectures and drivers: release notes of each toolkit
    Toolkit((11, 0), _BEFORE_8 | {75, 80}, 10, _GLIBC, _OLD_DRIVER),
    Toolkit((11, 5), _BEFORE_8 | _FROM_8, 11, _GLIBC, _OLD_DRIVER),
    Toolkit((11, 8), _BEFORE_8 | _FROM_8 | _ADA_HOPPER, 11, _GLIBC, _OLD_DRIVER),
    Toolkit((12, 0), _BEFORE_8 | _FROM_8 | _ADA_HOPPER, 12, _GLIBC, _DRIVER_12),
    Toolkit((12, 4), _BEFORE_8 | _FROM_8 | _ADA_HOPPER, 13, _GLIBC, _DRIVER_12),
    Toolkit((12, 8), _BEFORE_8 | _FROM_8 | _ADA_HOPPER | {100, 101, 120}, 14, _GLIBC, _DRIVER_12),
    Toolkit((12, 9), _BEFORE_8 | _FROM_8 | _ADA_HOPPER | {100, 101, 103, 120, 121}, 14, _GLIBC, _DRIVER_12),
    Toolkit((13, 0), _FROM_8 | {88} | _ADA_HOPPER | {100, 103, 110, 120, 121}, 15, (2, 42), _DRIVER_13),
    Toolkit((13, 5), _FROM_8 | {88} | _ADA_HOPPER | {100, 103, 110, 120, 121}, 16, None, _DRIVER_13),
)


def toolkit(version: str) -> Toolkit | None:
    """The row of a toolkit's version (``13.5.37``); None for one older than the table."""
    return next((row for row in reversed(TOOLKITS) if numbers(version)[:2] >= row.since), None)


def numbers(version: str) -> tuple[int, ...]:
    """``"2:580.95.05-0ubuntu1"`` -> (580, 95, 5): without epoch and revision."""
    return tuple(int(each) for each in re.findall(r"\d+", version.rpartition(":")[2].partition("-")[0]))


@dataclass(frozen=True)
class Wheel:
    """One file of the Python package index that unpacks below ``nvidia/cu13``; ``runtime`` is needed to run what was built, too."""

    name: str
    version: str
    file: str
    sha256: str
    runtime: bool = False


PYPI_VERSION, PYPI_FOLDER, PYPI_BYTES = "13.5.37", "nvidia/cu13", 1_000_000_000
"""The toolkit of these wheels, the folder in them, and how large they are unpacked."""
_M14 = "py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
WHEELS: tuple[Wheel, ...] = (
    Wheel(
        "nvidia-cublas", "13.10.0.20", "nvidia_cublas-13.10.0.20-py3-none-manylinux1_x86_64.manylinux_2_5_x86_64.whl",
        "dcc6d63884c53d07e267ce7e6feac17b2538cebaafec5db865736c3e28e4dc84", runtime=True,
    ),
    Wheel(
        "nvidia-cuda-runtime", "13.5.37", f"nvidia_cuda_runtime-13.5.37-{_M14}",
        "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d", runtime=True,
    ),
    Wheel(
        "nvidia-cuda-nvcc", "13.5.37", f"nvidia_cuda_nvcc-13.5.37-{_M14}",
        "f5c4f7ead5d964fb4af42bbf1e6d3ec3c1e6e9d83b53749f691d387e7fcaa3a7",
    ),
    Wheel(
        "nvidia-nvvm", "13.5.37", "nvidia_nvvm-13.5.37-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        "c41bfa362e407405163f103c2229f0765f8cc2ed7d148b754dc77f228bf7e070",
    ),
    Wheel(
        "nvidia-cuda-crt", "13.5.37", f"nvidia_cuda_crt-13.5.37-{_M14}",
        "e898b7f73d3035fa89915a3f7bf3b54a73e90249746111aed295822c4729bb29",
    ),
    Wheel(
        "nvidia-cuda-cccl", "13.3.5.0.6", f"nvidia_cuda_cccl-13.3.5.0.6-{_M14}",
        "d5230098fa2df5021e1a00c0c4eee41797671a91119d31e892463e5ccf3ee326",
    ),
)  # fmt: skip
ARCHITECTURES_OF_WHEELS = ("x86_64", "amd64")


@dataclass(frozen=True)
class Distribution:
    """What one release of a distribution calls things; what is empty is not known or not there.

    ``repository`` is NVIDIA's folder for it, ``key`` its key's file and fingerprint; ``toolkit`` the version of its own nvidia-cuda-toolkit;
    ``compilers`` the majors of g++ that it packages, its default first; ``drivers`` its own driver packages by kernel module.
    """

    repository: str
    key: tuple[str, str]
    toolkit: str
    compilers: tuple[int, ...]
    drivers: tuple[tuple[str, str], ...] = ()


_KEY = ("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC")
_KEY_2026 = ("8793F200.pub", "02182E60104FCDC26EAE1B8597A5D4CB8793F200")
"""Debian 13 rejects the first one's SHA-1 signatures."""
REPOSITORY_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "sbsa", "arm64": "sbsa"}
_UBUNTU = ((OPEN, "nvidia-driver-{branch}-server-open"), (CLOSED, "nvidia-driver-{branch}-server"))
DISTRIBUTIONS: dict[tuple[str, str], Distribution] = {
    ("debian", "12"): Distribution("debian12", _KEY, "11.8.89", (12, 11)),
    ("debian", "13"): Distribution("debian13", _KEY_2026, "12.4.131", (14, 12, 13)),
    ("ubuntu", "22.04"): Distribution("ubuntu2204", _KEY, "11.5.119", (11, 12, 10, 9), _UBUNTU),
    ("ubuntu", "24.04"): Distribution("ubuntu2404", _KEY, "12.0.140", (13, 12, 14, 11, 10), _UBUNTU),
    ("ubuntu", "26.04"): Distribution("", ("", ""), "", (15, 14, 13, 12), _UBUNTU),
    # the part plans for the Debian family only (base.unsuited); these say which names will be needed
    ("fedora", ""): Distribution("fedora42", ("", ""), "", (15,)),
    ("rhel", "9"): Distribution("rhel9", ("", ""), "", (11, 12, 13, 14)),
}
UNBRANCHED = 590
"""From this branch on NVIDIA's package names do not say the branch: only a pin keeps it (driver installation guide, version locking)."""


def distribution(os: OperatingSystem) -> Distribution | None:
    """The row of a distribution and release; None for one that is not in the table."""
    names = (os.id, *os.id_like.split())
    keys = ((name, version) for name in names for version in (os.version_id, os.version_id.partition(".")[0], ""))
    return next((DISTRIBUTIONS[key] for key in keys if key in DISTRIBUTIONS), None)
