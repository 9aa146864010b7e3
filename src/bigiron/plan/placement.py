"""Which tensors go to which memory: CPU only, GPU hybrid, several GPUs, all in VRAM, unified memory, streamed from disk.

Pure functions. The best placement keeps everything in memory, then has the most layers and the most routed experts on GPUs.
"""

from __future__ import annotations

from dataclasses import replace

from bigiron.gguf.facts import ModelFacts
from bigiron.machine.hardware import Accelerator, Hardware, gpu_reserve
from bigiron.plan.memory import DeviceMemory, Role, Term
from bigiron.plan.on_gpus import on_gpus
from bigiron.plan.pieces import (
    FITS,
    HYBRID_UBATCH,
    NO,
    STREAMS,
    Host,
    Model,
    Placement,
    Wanted,
    buffers_of,
    cut,
    host_row,
    largest_needed,
    memory_row,
)
from bigiron.units import gib

__all__ = ["FITS", "NO", "STREAMS", "Placement", "Wanted", "place"]


def place(facts: ModelFacts, hardware: Hardware, wanted: Wanted) -> Placement:
    """The best placement of the model on the machine. Check ``verdict``: a plan that does not fit is returned with what is short."""
    if hardware.unified or not hardware.gpus:
        return _on_host(facts, hardware, wanted)
    best: Placement | None = None
    sizes = _batches(cut(facts, wanted), hardware, wanted)
    for ubatch in sizes:
        model = cut(facts, replace(wanted, ubatch=ubatch))
        for op_offload in (True, False) if ubatch == sizes[-1] else (True,):
            if best and not op_offload and not model.is_moe:
                break  # copies of a dense model's layers are small and make prefill many times faster
            found = on_gpus(model, hardware, replace(wanted, ubatch=ubatch), op_offload=op_offload)
            if found and (best is None or _rank(found) > _rank(best)):
                best = found
        if best and best.verdict == FITS and best.gpu_layers == model.layers + 1:
            break
    on_host = _on_host(facts, hardware.cpu_only(), wanted)
    if best is None:
        idle = tuple(_idle(gpu) for gpu in hardware.gpus)
        return replace(
            on_host,
            memory=(*idle, *on_host.memory),
            notes=(*on_host.notes, _why_unused(cut(facts, wanted), hardware, wanted)),
        )
    return best


def _batches(model: Model, hardware: Hardware, wanted: Wanted) -> list[int]:
    """Tokens per physical batch to try: large ones where experts are copied to a GPU, if the results do not outgrow the backend's blocks."""
    if wanted.ubatch != 512 or not model.is_moe:
        return [wanted.ubatch]
    block = min(min(gpu.backend.largest_block or gpu.bound, gpu.bound) for gpu in hardware.gpus)
    large, all_on_one = HYBRID_UBATCH, Role(layers=True, output=True)
    while large > 512 and buffers_of(model, replace(wanted, ubatch=large), all_on_one).nbytes > block:
        large //= 2
    return [large, 512] if large > 512 else [512]


def _why_unused(model: Model, hardware: Hardware, wanted: Wanted) -> str:
    least = largest_needed(model, wanted)
    if (limit := max(gpu.bound for gpu in hardware.gpus)) < least:
        return (
            f"the GPUs stay unused: a tensor of {gib(least)} is more than they take ({gib(limit)}); a shorter context may help"
        )
    return "no GPU has room for a layer with its cache and buffers: they stay unused"


def _rank(placement: Placement) -> tuple[int, int, bool, int]:
    order = {NO: 0, STREAMS: 1, FITS: 2}[placement.verdict]
    return order, placement.gpu_layers, placement.op_offload, sum(len(layers) for layers in placement.gpu_experts)


def _idle(gpu: Accelerator) -> DeviceMemory:
    nothing = Term("", 0, "unused")
    size, reason = gpu_reserve(gpu)
    return memory_row(
        gpu.device, gpu.model, gpu.memory_bytes, nothing, nothing, nothing, nothing, Term("reserve", size, reason)
    )


def _on_host(facts: ModelFacts, hardware: Hardware, wanted: Wanted) -> Placement:
    model = cut(facts, wanted)
    compute = buffers_of(model, wanted, Role(layers=True, output=True, host=True))
    host = Host(weights=model.weights, routed=sum(model.experts), kv=sum(model.kv), compute=compute)
    row, verdict, resident, short, notes = host_row(model, hardware, wanted, host)
    streams = verdict == STREAMS
    unified = hardware.unified
    profile: str | None = "C" if streams else "A"
    if unified:
        profile = None
    return Placement(
        kind="unified memory" if unified else "CPU only",
        profile=profile,
        verdict=verdict,
        gpu_layers=model.layers + 1 if unified and not streams else 0,
        split=(),
        gpu_experts=(),
        memory=(row,),
        ubatch=wanted.ubatch,
        repack=not streams and not unified,
        load_mode="mmap",
        op_offload=True,
        resident=resident,
        short_bytes=short,
        notes=notes,
    )
