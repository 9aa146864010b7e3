"""What datasheets say about GPUs and CPUs: memory, bandwidth, PCIe. Planning only: what a host reports itself wins.

Bandwidths are bytes per second (10^9-based, as vendors print them), memory is bytes, FLOP/s are dense 16-bit matrix operations
without sparsity. A model that is not here is never guessed: :func:`gpu_by_name` and :func:`gpu_by_pci` return None.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from bigiron.units import GB, GIB

TERA = 10**12
PCIE_GEN3_X16 = int(15.8 * GB)
PCIE_GEN4_X16 = int(31.5 * GB)
PCIE_GEN5_X16 = int(63.0 * GB)
"""One direction, after encoding (PCI-SIG: 8, 16, 32 GT/s per lane, 128b/130b)."""


@dataclass(frozen=True)
class GpuModel:
    """A GPU as sold. ``memory_bytes`` is what the driver shows (with ECC where it is on).

    ``pci_ids`` are "vendor:device"; empty where one id is shared by cards of different memory.
    """

    name: str
    vendor: str
    memory_bytes: int
    bandwidth: int
    pcie: int
    flops_fp16: int
    pci_ids: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class CpuModel:
    """A CPU family: memory ``channels`` per socket, the fastest speed it is specified for, all-core clock, vector unit."""

    pattern: str
    channels: int
    mts: int
    memory_type: str
    clock_ghz: float
    isa: str
    source: str


def _gpu(name: str, vendor: str, gib: float, gb_s: float, pcie: int, tflops: float, ids: str, source: str) -> GpuModel:
    pci = tuple(f"{ {'nvidia': '10de', 'amd': '1002', 'intel': '8086'}[vendor] }:{device}" for device in ids.split())
    return GpuModel(name, vendor, int(gib * GIB), int(gb_s * GB), pcie, int(tflops * TERA), pci, source)


_NV = "NVIDIA datasheet; PCI id from pci.ids"
_AMD = "AMD product page; PCI id from pci.ids"
_INTEL = "Intel ARK; PCI id from pci.ids"
_SHARED = "; its PCI id is shared by cards of other sizes, so only the name finds it"

GPUS: tuple[GpuModel, ...] = (
    _gpu("GeForce RTX 3060", "nvidia", 12, 360, PCIE_GEN4_X16, 51, "", _NV + _SHARED),
    _gpu("GeForce RTX 3080", "nvidia", 10, 760, PCIE_GEN4_X16, 119, "2206", _NV),
    _gpu("GeForce RTX 3090", "nvidia", 24, 936, PCIE_GEN4_X16, 142, "2204", _NV),
    _gpu("GeForce RTX 3090 Ti", "nvidia", 24, 1008, PCIE_GEN4_X16, 160, "2203", _NV),
    _gpu("GeForce RTX 4060 Ti", "nvidia", 16, 288, PCIE_GEN4_X16 // 2, 88, "2805", _NV),
    _gpu("GeForce RTX 4070", "nvidia", 12, 504, PCIE_GEN4_X16, 117, "2786", _NV),
    _gpu("GeForce RTX 4080", "nvidia", 16, 717, PCIE_GEN4_X16, 195, "2704", _NV),
    _gpu("GeForce RTX 4090", "nvidia", 23.98, 1008, PCIE_GEN4_X16, 330, "2684", _NV),
    _gpu("GeForce RTX 5080", "nvidia", 16, 960, PCIE_GEN5_X16, 225, "2c02", _NV),
    _gpu("GeForce RTX 5090", "nvidia", 32, 1792, PCIE_GEN5_X16, 419, "2b85", _NV),
    _gpu("RTX A6000", "nvidia", 47.98, 768, PCIE_GEN4_X16, 155, "2230", _NV),
    _gpu("RTX 6000 Ada Generation", "nvidia", 47.98, 960, PCIE_GEN4_X16, 364, "26b1", _NV),
    _gpu("RTX PRO 6000 Blackwell", "nvidia", 95.6, 1792, PCIE_GEN5_X16, 503, "2bb1 2bb4 2bb5", _NV),
    _gpu("L4", "nvidia", 22.5, 300, PCIE_GEN4_X16, 121, "27b8", _NV),
    _gpu("L40S", "nvidia", 45, 864, PCIE_GEN4_X16, 362, "26b9", _NV),
    _gpu("A100 40GB PCIe", "nvidia", 40, 1555, PCIE_GEN4_X16, 312, "20f1", _NV),
    _gpu("A100 80GB PCIe", "nvidia", 80, 1935, PCIE_GEN4_X16, 312, "20b5", _NV),
    _gpu("H100 PCIe", "nvidia", 79.6, 2000, PCIE_GEN5_X16, 756, "2331", _NV),
    _gpu("H100 SXM5", "nvidia", 79.6, 3350, PCIE_GEN5_X16, 989, "2330", _NV),
    _gpu("H200 SXM", "nvidia", 140.4, 4800, PCIE_GEN5_X16, 989, "2335", _NV),
    _gpu("Tesla P40", "nvidia", 24, 347, PCIE_GEN3_X16, 12, "1b38", _NV),
    _gpu("Tesla T4", "nvidia", 15, 320, PCIE_GEN3_X16, 65, "1eb8", _NV),
    _gpu("Tesla V100 PCIe 32GB", "nvidia", 32, 900, PCIE_GEN3_X16, 112, "1db6", _NV),
    _gpu("Radeon RX 7900 XTX", "amd", 24, 960, PCIE_GEN4_X16, 123, "", _AMD + _SHARED),
    _gpu("Radeon RX 9070 XT", "amd", 16, 640, PCIE_GEN5_X16, 195, "", _AMD + _SHARED),
    _gpu("Radeon PRO W7900", "amd", 48, 864, PCIE_GEN4_X16, 123, "7448", _AMD),
    _gpu("Instinct MI210", "amd", 64, 1638, PCIE_GEN4_X16, 181, "740f", _AMD),
    _gpu("Instinct MI300X", "amd", 192, 5300, PCIE_GEN5_X16, 1307, "74a1", _AMD),
    _gpu("Arc A770", "intel", 16, 560, PCIE_GEN4_X16, 157, "", _INTEL + _SHARED),
    _gpu("Arc B580", "intel", 12, 456, PCIE_GEN4_X16 // 2, 117, "e20b", _INTEL),
)

_AMD_CPU = "AMD product specification"
_INTEL_CPU = "Intel ARK"
_APPLE = "Apple technical specification; unified memory"

CPUS: tuple[CpuModel, ...] = (
    CpuModel(r"EPYC 9\d\d5", 12, 6000, "DDR5", 3.6, "avx512-full", _AMD_CPU),
    CpuModel(r"EPYC 9\d\d4", 12, 4800, "DDR5", 3.4, "avx512", _AMD_CPU),
    CpuModel(r"EPYC 8\d\d4", 6, 4800, "DDR5", 2.9, "avx512", _AMD_CPU),
    CpuModel(r"EPYC 7\w\w[23]", 8, 3200, "DDR4", 3.0, "avx2", _AMD_CPU),
    CpuModel(r"Threadripper PRO 9\d\d5WX", 8, 6400, "DDR5", 4.5, "avx512-full", _AMD_CPU),
    CpuModel(r"Threadripper 9\d\d0X", 4, 6400, "DDR5", 4.5, "avx512-full", _AMD_CPU),
    CpuModel(r"Threadripper PRO 7\d\d5WX", 8, 5200, "DDR5", 4.4, "avx512", _AMD_CPU),
    CpuModel(r"Threadripper 7\d\d0X", 4, 5200, "DDR5", 4.4, "avx512", _AMD_CPU),
    CpuModel(r"Threadripper PRO [35]9\d5WX", 8, 3200, "DDR4", 3.8, "avx2", _AMD_CPU),
    CpuModel(r"Threadripper 39\d0X", 4, 3200, "DDR4", 3.7, "avx2", _AMD_CPU),
    CpuModel(r"Ryzen \d 9\d\d0X", 2, 5600, "DDR5", 4.9, "avx512-full", _AMD_CPU),
    CpuModel(r"Ryzen \d 7\d\d0X", 2, 5200, "DDR5", 4.7, "avx512", _AMD_CPU),
    CpuModel(r"Ryzen \d [35]\d\d0X", 2, 3200, "DDR4", 4.2, "avx2", _AMD_CPU),
    CpuModel(r"Xeon\S* 69\d\dP", 12, 6400, "DDR5", 3.2, "avx512-full", _INTEL_CPU),
    CpuModel(r"Xeon\S* 67\d\dP", 8, 6400, "DDR5", 3.2, "avx512-full", _INTEL_CPU),
    CpuModel(r"Xeon\S* \w+ [3468]5\d\d[A-Z+]*", 8, 5600, "DDR5", 3.0, "avx512-full", _INTEL_CPU),
    CpuModel(r"Xeon\S* \w+ [3468]4\d\d[A-Z+]*", 8, 4800, "DDR5", 3.0, "avx512-full", _INTEL_CPU),
    CpuModel(r"Xeon\S* \w+ [3468]3\d\d[A-Z+]*", 8, 3200, "DDR4", 2.8, "avx512-full", _INTEL_CPU),
    CpuModel(r"Xeon\S* w[5-9]-3[45]\d\dX?", 8, 4800, "DDR5", 3.5, "avx512-full", _INTEL_CPU),
    CpuModel(r"Xeon\S* w[3-7]-2[45]\d\dX?", 4, 4800, "DDR5", 3.5, "avx512-full", _INTEL_CPU),
    CpuModel(r"Core\S* Ultra \d 2\d\d", 2, 6400, "DDR5", 4.6, "avx2", _INTEL_CPU),
    CpuModel(r"i[3579]-1[234]\d\d\d", 2, 5600, "DDR5", 4.5, "avx2", _INTEL_CPU),
)


@dataclass(frozen=True)
class UnifiedModel:
    """A chip whose GPU works in main memory: ``bandwidth`` in bytes per second is shared by both."""

    pattern: str
    bandwidth: int
    flops_fp16: int
    clock_ghz: float
    source: str


UNIFIED: tuple[UnifiedModel, ...] = (
    UnifiedModel(r"M1 Ultra", 800 * GB, 42 * TERA, 3.0, _APPLE),
    UnifiedModel(r"M2 Max", 400 * GB, 27 * TERA, 3.3, _APPLE),
    UnifiedModel(r"M2 Ultra", 800 * GB, 54 * TERA, 3.3, _APPLE),
    UnifiedModel(r"M3 Max", 400 * GB, 28 * TERA, 3.8, _APPLE),
    UnifiedModel(r"M3 Ultra", 819 * GB, 57 * TERA, 3.8, _APPLE),
    UnifiedModel(r"M4 Max", 546 * GB, 36 * TERA, 4.2, _APPLE),
)


def _normal(name: str) -> str:
    """Lower case, without what vendors add or leave out ("NVIDIA", "(TM)", "48GB", "Workstation Edition")."""
    name = re.sub(r"\((?:tm|r)\)|®|™", " ", name.lower())
    name = re.sub(
        r"\b(nvidia|amd|intel|geforce|graphics|corporation|workstation edition|server edition|generation)\b", " ", name
    )
    return " ".join(name.split())


def gpu_by_name(name: str) -> GpuModel | None:
    """The GPU called ``name``, exactly but for case and vendor decoration; ``RTX 4090`` never finds ``RTX 4090 Laptop GPU``."""
    wanted = _normal(name)
    return next((gpu for gpu in GPUS if _normal(gpu.name) == wanted), None)


def near_gpus(name: str) -> list[str]:
    """Names of GPUs spelled almost like ``name``, nearest first, for a hint."""
    names = {_normal(gpu.name): gpu.name for gpu in GPUS}
    return [names[found] for found in difflib.get_close_matches(_normal(name), names, n=3, cutoff=0.7)]


def gpu_by_pci(vendor_id: str, device_id: str) -> GpuModel | None:
    """The GPU with these PCI ids (hex without 0x), where the id settles which card it is."""
    wanted = f"{vendor_id}:{device_id}".lower()
    return next((gpu for gpu in GPUS if wanted in gpu.pci_ids), None)


def cpu_by_model(model: str) -> CpuModel | None:
    """The CPU family of ``model``, as /proc/cpuinfo or a shop spells it."""
    plain = " ".join(re.sub(r"\((?:tm|r)\)|®|™", "", model, flags=re.IGNORECASE).split())
    return next((cpu for cpu in CPUS if re.search(rf"\b{cpu.pattern}", plain, re.IGNORECASE)), None)


def unified_by_model(model: str) -> UnifiedModel | None:
    """The unified-memory chip called ``model`` ("Apple M2 Ultra")."""
    return next((chip for chip in UNIFIED if re.search(rf"\b{chip.pattern}\b", model, re.IGNORECASE)), None)
