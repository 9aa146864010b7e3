"""llama.cpp's backends: which GPUs each computes on, what it calls them, how it is compiled in, and how it uses memory (build 11434)."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bigiron.machine.description import Gpu, Machine
from bigiron.units import GIB

AUTO = "auto"


@dataclass(frozen=True)
class Backend:
    """``device`` is llama.cpp's word for its devices (CUDA0); ``library`` the part of its file name; ``vendors`` PCI ids, best suited first.

    ``largest_tensor``: bytes; larger ones are left to the CPU, and an override that puts them on the device aborts. ``largest_block``: bytes;
    a compute buffer is cut into blocks of at most this size, and a larger tensor gets a block of its own, which leaves holes.
    ``offloads``: in batches of 32 tokens and more it works on copies of what main memory holds (offload_op). ``mla_slots``: it can work
    on several slots of a model with latent attention (MLA); where not, a product of every layer's attention falls to the CPU.
    """

    name: str
    option: str
    device: str
    library: str
    vendors: tuple[str, ...] = ()
    largest_tensor: int | None = None
    largest_block: int | None = None
    offloads: bool = True
    mla_slots: bool = True


CPU = Backend("cpu", "GGML_CPU", "CPU", "cpu")
BACKENDS = (
    Backend("cuda", "GGML_CUDA", "CUDA", "cuda", ("10de",)),
    Backend("hip", "GGML_HIP", "ROCm", "hip", ("1002",)),
    # maxStorageBufferRange is a 32-bit number (VkPhysicalDeviceLimits); suballocation_block_size and a->ne[3] != b->ne[3] in ggml-vulkan.cpp
    Backend(
        "vulkan",
        "GGML_VULKAN",
        "Vulkan",
        "vulkan",
        ("8086", "1002", "10de"),
        largest_tensor=2**32 - 1,
        largest_block=GIB,
        mla_slots=False,
    ),
    Backend("metal", "GGML_METAL", "MTL", "metal", ("106b",)),
    Backend("rpc", "GGML_RPC", "RPC", "rpc", offloads=False),
)
NAMES = tuple(backend.name for backend in (CPU, *BACKENDS) if backend.name != "rpc")
"""What an inventory may ask for, beside ``auto``."""
_VENDORS = {"10de": "NVIDIA", "1002": "AMD", "8086": "Intel"}
MESA, SOFTWARE = "10005", "lavapipe"
"""VK_VENDOR_ID_MESA, and Mesa's Vulkan driver that computes on the CPU."""
_INTEGRATED = frozenset({
    # AMD's graphics inside a CPU (pci.ids): Raven, Renoir, Cezanne, Rembrandt, Raphael, Mendocino, Phoenix, Strix, Granite Ridge
    "15dd", "15d8", "1636", "1638", "164c", "1681", "164e", "1506", "15bf", "15c8", "1900", "1901", "150e", "13c0",
})  # fmt: skip


def named(name: str) -> Backend:
    """The backend of this name (``cuda``)."""
    return next(backend for backend in (CPU, *BACKENDS) if backend.name == name)


def of_device(device: str) -> Backend:
    """The backend whose device this is (``CUDA0``); one that is not in the table behaves like CUDA."""
    kind = device.rstrip("0123456789")
    return next((backend for backend in BACKENDS if backend.device == kind), Backend(kind.lower(), "", kind, kind.lower()))


def of_vendor(vendor_id: str) -> Backend | None:
    """The backend made for this vendor's GPUs (a PCI id), None for a vendor no backend computes on."""
    return next((backend for backend in BACKENDS if vendor_id in backend.vendors[:1]), None)


def usable(gpu: Gpu) -> bool:
    """Whether it is a GPU of its own that some backend computes on: not the graphics inside a CPU, no BMC."""
    if of_vendor(gpu.vendor_id) is None:
        return False
    if gpu.vendor_id == "8086":
        return not re.search(r"(^|:)00:02\.\d$", gpu.pci)
    return not (gpu.vendor_id == "1002" and gpu.device_id in _INTEGRATED)


@dataclass(frozen=True)
class Choice:
    """``main`` computes; ``more`` are compiled in beside it. ``gpus`` are those that ``main`` computes on; ``why`` is for the person."""

    main: Backend
    more: tuple[Backend, ...]
    gpus: tuple[Gpu, ...]
    why: str

    @property
    def all(self) -> tuple[Backend, ...]:
        """Every GPU backend of the build, main first."""
        return tuple(backend for backend in (self.main, *self.more) if backend != CPU)


def choose(
    machine: Machine,
    wanted: str = AUTO,
    more: Sequence[str] = (),
    software_bytes: int = 0,
    built: Collection[str] = NAMES,
) -> Choice:
    """The backends of ``machine``'s build: by its GPUs' PCI ids, driver or not, unless a person names one.

    ``built`` are the backends that there is a toolchain for: no other is chosen unasked. ``software_bytes``: a Vulkan driver that computes
    on the CPU stands in for a GPU of that much memory, where there is no other.
    """
    gpus = [gpu for gpu in machine.gpus if usable(gpu)]
    if wanted != AUTO:
        main = named(wanted)
        mine = tuple(gpu for gpu in gpus if gpu.vendor_id in main.vendors)
        if not mine and software_bytes and main.name == "vulkan":
            mine = (Gpu("", MESA, "0000", "Mesa", SOFTWARE, software_bytes, "", "llvmpipe"),)
        why = f"as asked (llama_cpp_backend); {_names(mine) or 'no GPU of its own'} here"
    elif gpus:
        main = max(map(_own, gpus), key=lambda backend: sum(gpu.memory_bytes or 1 for gpu in gpus if _own(gpu) == backend))
        mine = tuple(gpu for gpu in gpus if _own(gpu) == main)
        if main.name not in built:
            return Choice(CPU, (), (), f"{_names(gpus)} left alone: this version of bigiron has no toolchain for {main.name}")
        left = [gpu for gpu in gpus if gpu not in mine]
        why = f"{_names(mine)} on the PCI bus{f'; left alone: {_names(left)}' if left else ''}"
    else:
        main, mine, why = CPU, (), "no GPU that a backend computes on"
    return Choice(main, tuple(named(each) for each in dict.fromkeys(more) if each not in ("cpu", main.name)), mine, why)


def _own(gpu: Gpu) -> Backend:
    return of_vendor(gpu.vendor_id) or CPU


def _names(gpus: Sequence[Gpu]) -> str:
    names = [gpu.name or f"{_VENDORS.get(gpu.vendor_id, gpu.vendor_id)} {gpu.device_id}" for gpu in gpus]
    return ", ".join(f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names))
