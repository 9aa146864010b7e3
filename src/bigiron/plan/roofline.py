"""How fast it will be: bytes and weights per token on each device against what the device can move and multiply.

Estimates, always a range. The constants are calibrated on public measurements and on one machine of our own; docs/plan.md shows the fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from bigiron.gguf.facts import EMBEDDINGS, OUTPUT, ROUTED, ModelFacts
from bigiron.machine.hardware import NVME_RANDOM_SHARE, Hardware
from bigiron.plan.placement import STREAMS, Placement
from bigiron.units import GB, gib

SPREAD = 1.38
"""The range is point / SPREAD to point x SPREAD: 1.9x wide."""
WORKING_CONTEXT = 1024
"""Tokens in the cache that a typical measurement has behind it."""

THEORY_SHARE = 0.75
"""Part of channels x MT/s x 8 that reads reach on one socket (STREAM and mlc results: 70 to 85 %)."""
MEASURED_SHARE = 0.95
"""llama.cpp's reads against a bandwidth benchmark: 0.85 of mlc on an EPYC 9965 (ik_llama.cpp#612), 1.2 of our memchr scan on one core."""
SECOND_SOCKET_SHARE = 0.6
"""What remains per socket when threads of two sockets read one mapping without NUMA placement (llama.cpp#14642 against its datasheet)."""
GPU_SHARE = 0.65
UNIFIED_SHARE = 0.6
"""Part of a GPU's datasheet bandwidth that single-token matrix-vector kernels reach."""
GPU_LAYER_S = 100e-6
"""Kernel launches of one layer on a GPU, about 40 kernels."""
HANDOVER_S = 50e-6
"""GPU to CPU and back, once per layer whose experts stay in main memory."""
BARRIER_S, BARRIER_PER_THREAD_S = 1.5e-6, 0.05e-6
"""One barrier of ggml's thread pool, growing with the threads."""
NODES_FULL, NODES_EXPERTS = 30, 8
"""Barriers per layer on the CPU: a whole layer, only its routed experts."""
THREAD_DECAY = 0.88
"""What each doubling of threads keeps: 2 threads on our VM 0.88, 32 on an EPYC 9354P 0.53 (the guide's figure), 192 on an EPYC 9965 0.38."""
HOT_EXPONENT = 2.0
"""Experts are not used evenly, so the page cache serves more than its share: misses = (1 - resident share) ** 2 (guide, Ryzen 7950X row)."""
PINNED_PCIE_SHARE = 0.75
GPU_FLOPS_SHARE = 0.3
BATCH_GAIN, BATCH_GAIN_EXPERTS = 5.0, 3.0
"""Weights multiplied per cycle in prefill against generation: whole batches, and the few tokens each expert gets (same VM)."""

# Weights per cycle and core in generation by tensor type: llama-bench of build 11434 on one core of a Sapphire Rapids VM at 3.0 GHz,
# 2026-12-01, types that were not run taken from their nearest kin.
_PER_CYCLE = {
    "F32": 1.5,
    "F16": 2.3,
    "BF16": 2.0,
    "Q8_0": 3.6,
    "Q4_0": 4.2,
    "Q4_1": 4.0,
    "Q5_0": 3.0,
    "Q5_1": 3.0,
    "Q2_K": 5.0,
    "Q3_K": 5.0,
    "Q4_K": 4.5,
    "Q5_K": 3.0,
    "Q6_K": 4.5,
    "IQ4_NL": 3.5,
    "IQ4_XS": 3.0,
    "IQ1_S": 2.7,
    "IQ1_M": 2.7,
    "IQ2_XXS": 1.8,
    "IQ2_XS": 1.8,
    "IQ2_S": 3.0,
    "IQ3_XXS": 2.1,
    "IQ3_S": 2.0,
    "TQ1_0": 5.0,
    "TQ2_0": 5.0,
    "MXFP4": 3.3,
    "NVFP4": 3.0,
}
_ISA = {"avx512-full": 1.15, "avx512": 1.0, "avx2": 0.9, "neon": 0.9, "none": 0.15}
_DEFAULT_PER_CYCLE = 1.5


@dataclass(frozen=True)
class Rate:
    """Tokens per second: ``low`` to ``high``, and what holds it back."""

    low: float
    high: float
    bottleneck: str

    def to_json(self) -> dict[str, Any]:
        """The range as data."""
        return {"low": round(self.low, 3), "high": round(self.high, 3), "bottleneck": self.bottleneck, "estimated": True}


@dataclass(frozen=True)
class Prediction:
    """Estimated speeds of one request; ``reasons`` is the arithmetic. A rate is None when the machine says too little."""

    generation: Rate | None
    prefill: Rate | None
    reasons: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """Both ranges as data."""
        return {
            "generation_tps": self.generation.to_json() if self.generation else None,
            "prefill_tps": self.prefill.to_json() if self.prefill else None,
            "reasons": [{"topic": topic, "text": text} for topic, text in self.reasons],
        }


@dataclass(frozen=True)
class _Work:
    """What one generated token touches on a device: ``nbytes`` of weights, and core cycles to multiply them on one CPU core."""

    nbytes: float = 0.0
    cycles: float = 0.0
    weights: float = 0.0

    def plus(self, other: _Work) -> _Work:
        return _Work(self.nbytes + other.nbytes, self.cycles + other.cycles, self.weights + other.weights)


def predict(facts: ModelFacts, hardware: Hardware, placement: Placement, threads: int = 0) -> Prediction:
    """The speeds of ``placement`` with ``threads`` CPU threads (0: the physical cores)."""
    threads = min(threads or hardware.cores, hardware.threads)
    gpu_units, gpu_experts = _on_gpu(facts, placement)
    device, host, host_routed = _Work(), _Work(), _Work()
    tied_table = facts.tied_output
    share = facts.experts_used / facts.experts if facts.experts else 1.0
    for tensor in facts.tensors:
        if tensor.tensor_class == EMBEDDINGS and not (tied_table and tensor.name == "token_embd.weight"):
            continue
        part = share if tensor.tensor_class == ROUTED else 1.0
        rate = _PER_CYCLE.get(tensor.type, _DEFAULT_PER_CYCLE) * _ISA[hardware.isa]
        work = _Work(tensor.nbytes * part, tensor.elements * part / rate, tensor.elements * part)
        if tensor.tensor_class == ROUTED:
            on_gpu = tensor.layer in gpu_experts
        else:
            unit = facts.layers if tensor.layer is None or tensor.tensor_class == OUTPUT else tensor.layer
            on_gpu = unit in gpu_units
        if on_gpu:
            device = device.plus(work)
        else:
            host = host.plus(work)
            if tensor.tensor_class == ROUTED:
                host_routed = host_routed.plus(work)
    if hardware.unified and placement.gpu_layers:
        return _unified(facts, hardware, placement, device.plus(host))
    if hardware.bandwidth is None:
        text = "the memory bandwidth of this machine is unknown: measure it on the host"
        return Prediction(None, None, (("speed", text),))
    return _Estimate(facts, hardware, placement, threads, device, host, host_routed, gpu_units, gpu_experts).result()


def _on_gpu(facts: ModelFacts, placement: Placement) -> tuple[set[int], set[int]]:
    units = set(range(facts.layers + 1 - placement.gpu_layers, facts.layers + 1)) if placement.split else set()
    experts = {layer for layers in placement.gpu_experts for layer in layers}
    if not facts.experts:
        experts = units
    return units, experts


def _rate(seconds: float, tokens: float, bottleneck: str) -> Rate:
    point = tokens / seconds
    return Rate(point / SPREAD, point * SPREAD, bottleneck)


def _unified(facts: ModelFacts, hardware: Hardware, placement: Placement, work: _Work) -> Prediction:
    bandwidth = hardware.bandwidth or 0.0
    kv = facts.cache.bytes_per_token("f16") * WORKING_CONTEXT
    moving = (work.nbytes + kv) / (bandwidth * (MEASURED_SHARE if hardware.bandwidth_measured else UNIFIED_SHARE))
    seconds = moving + facts.layers * GPU_LAYER_S
    multiply = 2 * work.weights * placement.ubatch / (hardware.unified_flops * GPU_FLOPS_SHARE)
    read = facts.total_bytes / (bandwidth * UNIFIED_SHARE)
    reasons = (
        (
            "generation",
            f"{gib(work.nbytes)} of weights + {gib(kv)} of cache per token over {bandwidth / GB:.0f} GB/s x {UNIFIED_SHARE}",
        ),
        ("prefill", f"{placement.ubatch} tokens: reading all weights {read:.2f} s, multiplying {multiply:.2f} s"),
    )
    prefill = _rate(max(read, multiply), placement.ubatch, "memory" if read > multiply else "compute")
    return Prediction(_rate(seconds, 1, "memory"), prefill, reasons)


@dataclass(frozen=True)
class _Estimate:
    """One machine with memory and CPU, perhaps GPUs; adds up a token's time device by device."""

    facts: ModelFacts
    hardware: Hardware
    placement: Placement
    threads: int
    device: _Work
    host: _Work
    host_routed: _Work
    gpu_units: set[int]
    gpu_experts: set[int]

    def result(self) -> Prediction:
        reasons: list[tuple[str, str]] = []
        parts = {**self._host_seconds(reasons), **self._disk_seconds(reasons), **self._gpu_seconds(reasons)}
        total = sum(parts.values())
        worst = max(parts, key=lambda name: parts[name])
        reasons.append(
            ("generation", " + ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in parts.items() if seconds))
        )
        if self._disk_unknown:
            reasons.append(("generation", "no read speed of the disk is known: a streamed plan cannot be predicted"))
            return Prediction(None, None, tuple(reasons))
        return Prediction(_rate(total, 1, worst), self._prefill(reasons), tuple(reasons))

    @property
    def _disk_unknown(self) -> bool:
        return self.placement.verdict == STREAMS and self.hardware.nvme_read is None

    def _bandwidth(self) -> tuple[float, str]:
        found = self.hardware.bandwidth or 1.0
        if self.hardware.bandwidth_measured:
            share = MEASURED_SHARE
        else:
            share = THEORY_SHARE * (SECOND_SOCKET_SHARE if self.hardware.sockets > 1 else 1.0)
        return found * share, f"{found / GB:.0f} GB/s ({self.hardware.bandwidth_source}) x {share:.2f}"

    def _cycles_per_second(self) -> float:
        decay: float = THREAD_DECAY ** math.log2(self.threads)
        return self.threads * self.hardware.clock_ghz * 1e9 * decay

    def _host_seconds(self, reasons: list[tuple[str, str]]) -> dict[str, float]:
        kv = self.facts.cache.bytes_per_token("f16") * WORKING_CONTEXT
        on_cpu = [index for index in range(self.facts.layers) if index not in self.gpu_units]
        kv = kv * len(on_cpu) // max(self.facts.layers, 1)
        bandwidth, why = self._bandwidth()
        moving = (self.host.nbytes + kv) / bandwidth
        multiplying = self.host.cycles / self._cycles_per_second()
        experts_only = sum(
            1 for layer in self.facts.routed_layer_bytes if layer in self.gpu_units and layer not in self.gpu_experts
        )
        barriers = len(on_cpu) * NODES_FULL + experts_only * NODES_EXPERTS
        waiting = barriers * (BARRIER_S + BARRIER_PER_THREAD_S * self.threads)
        reasons.append(("memory", f"{gib(self.host.nbytes + kv)} per token over {why} = {1000 * moving:.0f} ms"))
        cores = f"{self.threads} threads x {self.hardware.clock_ghz} GHz x {THREAD_DECAY} per doubling"
        cycles = f"{self.host.weights / 1e9:.2f} G weights, {self.host.cycles / 1e9:.2f} G cycles ({self.hardware.isa})"
        reasons.append(("compute", f"{cycles} over {cores} = {1000 * multiplying:.0f} ms"))
        reasons.append(("threads", f"{barriers} barriers of {self.threads} threads = {1000 * waiting:.1f} ms"))
        name = "memory" if moving >= multiplying else "compute"
        return {name: max(moving, multiplying), "threads": waiting}

    def _disk_seconds(self, reasons: list[tuple[str, str]]) -> dict[str, float]:
        if self.placement.verdict != STREAMS or self.hardware.nvme_read is None:
            return {}
        if self.facts.experts:
            miss = (1 - self.placement.resident) ** HOT_EXPONENT
            touched = self.host_routed.nbytes
        else:  # every token reads every layer in order, the worst case of a least-recently-used cache
            miss, touched = 1.0, self.host.nbytes
        speed = self.hardware.nvme_read * NVME_RANDOM_SHARE
        seconds = touched * miss / speed
        text = f"{gib(touched)} of streamed weights per token x {100 * miss:.0f} % not in memory"
        reasons.append(("NVMe", f"{text} over {speed / GB:.1f} GB/s ({self.hardware.nvme_source}) = {1000 * seconds:.0f} ms"))
        return {"NVMe": seconds}

    def _gpu_seconds(self, reasons: list[tuple[str, str]]) -> dict[str, float]:
        if not self.placement.split:
            return {}
        used = [(gpu, count) for gpu, count in zip(self.hardware.gpus, self.placement.split, strict=True) if count]
        units = sum(count for _, count in used)
        moving = sum(self.device.nbytes * count / units / (gpu.bandwidth * GPU_SHARE) for gpu, count in used)
        handed = sum(1 for layer in self.facts.routed_layer_bytes if layer in self.gpu_units and layer not in self.gpu_experts)
        seconds = moving + units * GPU_LAYER_S + handed * HANDOVER_S
        names = ", ".join(f"{gpu.device} {gpu.bandwidth / GB:.0f} GB/s" for gpu, _ in used)
        text = f"{gib(self.device.nbytes)} per token over {names} x {GPU_SHARE} + {units} layers x {1e6 * GPU_LAYER_S:.0f} us"
        reasons.append(("GPU", f"{text} + {handed} handovers = {1000 * seconds:.0f} ms"))
        return {"GPU": seconds}

    def _prefill(self, reasons: list[tuple[str, str]]) -> Rate:
        """One physical batch: every expert is used, so all weights are read once; multiplying takes its turn per token."""
        tokens = self.placement.ubatch
        bandwidth, _ = self._bandwidth()
        streamed = sum(row.streamed for row in self.placement.memory)
        parts: dict[str, float] = {}
        if streamed and self.hardware.nvme_read:
            parts["NVMe"] = streamed * (1 - self.placement.resident) / (self.hardware.nvme_read * NVME_RANDOM_SHARE)
        on_host = sum(row.weights.nbytes + row.streamed for row in self.placement.memory if row.device == "memory")
        first = self.hardware.gpus[0] if self.placement.split else None
        if first and self.placement.op_offload and self.host_routed.nbytes:
            share = self.facts.experts_used / max(self.facts.experts, 1)
            parts["PCIe"] = self.host_routed.nbytes / share / (first.pcie * PINNED_PCIE_SHARE)
            work = self.device.weights + self.host_routed.weights
            parts["GPU compute"] = 2 * work * tokens / (first.flops * GPU_FLOPS_SHARE)
        else:
            gain = BATCH_GAIN_EXPERTS if self.facts.experts else BATCH_GAIN
            cycles = self.host.cycles * tokens / gain / self._cycles_per_second()
            parts["compute" if cycles > on_host / bandwidth else "memory"] = max(cycles, on_host / bandwidth)
            if first:
                parts["GPU compute"] = 2 * self.device.weights * tokens / (first.flops * GPU_FLOPS_SHARE)
        reasons.append(
            ("prefill", f"{tokens} tokens: " + " + ".join(f"{name} {seconds:.2f} s" for name, seconds in parts.items()))
        )
        return _rate(sum(parts.values()), tokens, max(parts, key=lambda name: parts[name]))
