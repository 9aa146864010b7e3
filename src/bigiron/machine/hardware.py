"""The machine as the planner sees it: memories, the speeds between them, and where each number comes from.

Built from an observed :class:`bigiron.machine.description.Machine` or from a machine file (:mod:`bigiron.machine.machinefile`).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection
from dataclasses import dataclass

from bigiron.errors import UsageError
from bigiron.machine import backends, tables
from bigiron.machine.backends import Backend
from bigiron.machine.description import Gpu as PciGpu
from bigiron.machine.description import Machine
from bigiron.units import GB, GIB, MIB

DEFAULT_CLOCK_GHZ = 3.0
"""All-core clock assumed for a CPU the table does not know; only the speed estimate uses it."""
NVME_RANDOM_SHARE = 0.75
"""Part of a drive's sequential read speed that page faults of mmap reach (readahead 128 KiB, several threads)."""


@dataclass(frozen=True)
class Accelerator:
    """A GPU with memory of its own. ``device`` is llama.cpp's name for it (CUDA0); speeds in bytes/s and FLOP/s.

    ``largest_tensor`` is a bound in bytes where the driver's is lower than the backend's own.
    """

    device: str
    model: str
    memory_bytes: int
    bandwidth: float
    pcie: float
    flops: float
    source: str
    largest_tensor: int | None = None

    @property
    def backend(self) -> Backend:
        """How llama.cpp's backend of this GPU uses memory."""
        return backends.of_device(self.device)

    @property
    def bound(self) -> int:
        """The most bytes that one tensor may have for this GPU to work on it."""
        return self.largest_tensor or self.backend.largest_tensor or sys.maxsize


@dataclass(frozen=True)
class Hardware:
    """What decides a plan.

    ``memory_bytes`` is what services may take together (cgroup limits count); ``available_bytes`` what is free today,
    None for a machine that does not run; ``bandwidth`` of main memory in bytes/s, None when nothing tells it;
    ``bandwidth_measured`` True when it was measured rather than computed; ``nvme_read`` bytes/s, None without a drive.
    """

    name: str
    cpu_model: str
    sockets: int
    cores: int
    threads: int
    clock_ghz: float
    isa: str
    numa_nodes: int
    memory_bytes: int
    available_bytes: int | None
    bandwidth: float | None
    bandwidth_measured: bool
    bandwidth_source: str
    gpus: tuple[Accelerator, ...] = ()
    unified: bool = False
    unified_flops: float = 0.0
    nvme_read: float | None = None
    nvme_source: str = "no NVMe drive is known"
    notes: tuple[str, ...] = ()

    def cpu_only(self) -> Hardware:
        """The same machine for a build without a GPU backend."""
        return dataclasses.replace(self, gpus=(), unified=False)


def isa_of(flags: Collection[str], arch: str) -> str:
    """The vector unit class the speed estimate knows: avx512-full, avx512, avx2, neon, none."""
    have = set(flags)
    if arch in {"aarch64", "arm64"}:
        return "neon"
    if {"avx512f", "avx512_vnni"} <= have:
        return "avx512"
    if "avx2" in have:
        return "avx2"
    return "none"


def from_machine(
    machine: Machine,
    *,
    bandwidth: float | None = None,
    nvme_read: float | None = None,
    gpu_memory: tuple[int, ...] = (),
    backend: backends.Choice | None = None,
) -> Hardware:
    """The observed ``machine``.

    ``bandwidth`` and ``nvme_read`` (bytes/s) are measurements on the host, where there are any; ``gpu_memory``
    (bytes, in PCI order) is what a person says of GPUs that neither driver nor table knows; ``backend`` is what computes (None: each
    GPU with its vendor's own).

    Raises UsageError for a GPU whose memory nobody knows.
    """
    known = tables.cpu_by_model(machine.cpu.model)
    unified = tables.unified_by_model(machine.cpu.model)
    notes = []
    nodes = [node for node in machine.cpu.numa_nodes if node.memory_bytes]
    if bandwidth is not None:
        measured, source = True, "measured on this host"
    elif unified:
        bandwidth, measured, source = float(unified.bandwidth), False, unified.source
    else:
        bandwidth, source = _bandwidth_of_dimms(machine, known)
        measured = False
        if bandwidth is None:
            notes.append("memory speed unknown (the firmware shows no DIMMs): measure it, or the speed cannot be predicted")
    if machine.memory.cgroup_limit_bytes is not None and machine.memory.cgroup_limit_bytes < machine.memory.total_bytes:
        notes.append("a cgroup limits memory below what the machine has")
    isa = isa_of(machine.cpu.flags, machine.arch)
    return Hardware(
        name=machine.hostname,
        cpu_model=machine.cpu.model,
        sockets=max(1, machine.cpu.sockets),
        cores=max(1, machine.cpu.cores),
        threads=max(1, machine.cpu.threads),
        clock_ghz=unified.clock_ghz if unified else known.clock_ghz if known else DEFAULT_CLOCK_GHZ,
        isa=known.isa if known and isa.startswith("avx512") else isa,
        numa_nodes=max(1, len(nodes)),
        memory_bytes=machine.memory.usable_bytes,
        available_bytes=min(machine.memory.available_bytes, machine.memory.usable_bytes),
        bandwidth=bandwidth,
        bandwidth_measured=measured,
        bandwidth_source=source,
        gpus=_accelerators(machine.gpus, gpu_memory, backend),
        unified=unified is not None and (backend is None or backend.main != backends.CPU),
        unified_flops=float(unified.flops_fp16) if unified else 0.0,
        nvme_read=nvme_read,
        nvme_source="measured on this host" if nvme_read else "not measured",
        notes=tuple(notes),
    )


def _bandwidth_of_dimms(machine: Machine, known: tables.CpuModel | None) -> tuple[float | None, str]:
    """DIMMs x MT/s x 8 bytes, at most one DIMM per channel the CPU has."""
    dimms = [dimm for dimm in machine.memory.dimms if dimm.size_bytes and dimm.speed_mts]
    if not dimms:
        return None, "unknown"
    speed = min(dimm.speed_mts for dimm in dimms)
    channels = len(dimms)
    if known:
        channels = min(channels, known.channels * max(1, machine.cpu.sockets))
    return channels * speed * 1e6 * 8, f"{channels} channels x {speed} MT/s x 8 bytes (from the firmware's DIMM table)"


def _accelerators(gpus: tuple[PciGpu, ...], given: tuple[int, ...], choice: backends.Choice | None) -> tuple[Accelerator, ...]:
    found: list[Accelerator] = []
    counts: dict[str, int] = {}
    for index, gpu in enumerate(choice.gpus if choice else filter(backends.usable, gpus)):
        kind = choice.main if choice else backends.of_vendor(gpu.vendor_id)
        if kind is None:
            continue
        model = tables.gpu_by_pci(gpu.vendor_id, gpu.device_id) or (tables.gpu_by_name(gpu.name) if gpu.name else None)
        memory = gpu.memory_bytes or (given[index] if index < len(given) else None) or (model.memory_bytes if model else None)
        if memory is None:
            raise UsageError(
                f"the memory of GPU {gpu.name or f'{gpu.vendor_id}:{gpu.device_id}'} is unknown: no driver reports it and no table has it",
                where=gpu.pci,
                hint="install its driver, or give its VRAM",
            )
        number = counts.get(kind.device, 0)
        counts[kind.device] = number + 1
        if model:
            speeds = (float(model.bandwidth), float(model.pcie), float(model.flops_fp16), model.source)
        else:
            speeds = (300.0 * GB, float(tables.PCIE_GEN3_X16), 20e12, "not in the table: lowest speeds of its kind assumed")
        name = model.name if model else gpu.name or gpu.device_id
        # lavapipe's maxStorageBufferRange (Mesa, lvp_device.c)
        bound = 128 * MIB if gpu.driver == backends.SOFTWARE else None
        found.append(Accelerator(f"{kind.device}{number}", name, memory, *speeds, largest_tensor=bound))
    return tuple(found)


def host_reserve(hardware: Hardware, *, streams: bool = False) -> tuple[int, str]:
    """Bytes of main memory the plan leaves to the system, with the reason. A streamed model runs on the CPU, also on unified memory."""
    if hardware.unified and not streams:
        # macOS wires at most about three quarters of memory for the GPU (iogpu.wired_limit_mb default, > 36 GiB machines)
        return hardware.memory_bytes // 4, "unified memory: macOS lets the GPU wire three quarters of it"
    wanted = hardware.memory_bytes // 25
    reserve = min(max(wanted, 256 * MIB), 8 * GIB)
    return reserve, "4 % of memory for the system, at least 256 MiB, at most 8 GiB"


def gpu_reserve(gpu: Accelerator) -> tuple[int, str]:
    """Bytes of a GPU's memory left free (driver context, library workspaces): llama.cpp's own --fit-target is 1024 MiB."""
    return min(
        1024 * MIB, gpu.memory_bytes // 8
    ), "driver context and workspaces: llama.cpp's own margin, 1024 MiB (an eighth of a small GPU)"
