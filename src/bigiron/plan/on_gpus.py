"""Dealing a model out to GPUs: as many layers as have room, then routed experts, the rest in main memory.

llama.cpp (build 11434): ``--n-gpu-layers N`` puts the last N of (layers + output) on GPUs, ``--tensor-split`` deals them out in order,
``--override-tensor`` moves routed experts of single layers, a layer's cache follows the layer, the input table stays in main memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bigiron.gguf.facts import ROUTED
from bigiron.machine.hardware import Accelerator, Hardware, gpu_reserve
from bigiron.plan.memory import NOTHING, Borrowed, Role, Term
from bigiron.plan.pieces import (
    STREAMS,
    Host,
    Model,
    Placement,
    Wanted,
    buffers_of,
    host_row,
    kv_reason,
    largest_needed,
    memory_row,
)
from bigiron.units import gib

_TRIES = 6
"""Ways to deal that are compared, from the one that leaves most room for experts."""


def on_gpus(model: Model, hardware: Hardware, wanted: Wanted, *, op_offload: bool) -> Placement | None:
    """The most layers on the GPUs, then the most routed experts; None when not even the last unit has room."""
    dealer = _Dealer(model, hardware.gpus, wanted, op_offload=op_offload)
    for count in range(model.layers + 1, 0, -1):
        if split := dealer.deal(count):
            return _assemble(dealer, hardware, split, op_offload=op_offload)
    return None


@dataclass(frozen=True)
class _Split:
    """The last ``count`` units dealt to GPUs: ``units`` of each in order, ``experts`` = layers whose routed experts each has too."""

    count: int
    units: tuple[range, ...]
    experts: tuple[tuple[int, ...], ...] = ()


class _Dealer:
    """Deals units out. The first GPU that is used works on copies of what stays in main memory.

    A GPU whose backend bounds the size of a tensor gets no experts beyond that, and nothing at all when it could not work on the rest.
    """

    def __init__(self, model: Model, gpus: tuple[Accelerator, ...], wanted: Wanted, *, op_offload: bool) -> None:
        self.model = model
        self.gpus = gpus
        self.wanted = wanted
        self.offloads = op_offload and any(gpu.backend.offloads for gpu in gpus)
        self.limits = [gpu.bound for gpu in gpus]
        self.absorbed = model.facts.cache.mla and wanted.slots > 1 and not all(gpu.backend.mla_slots for gpu in gpus)
        least = largest_needed(model, wanted)
        self.rooms = [
            gpu.memory_bytes - gpu_reserve(gpu)[0] if limit >= least else 0
            for gpu, limit in zip(gpus, self.limits, strict=True)
        ]
        self._asked: dict[tuple[range, int, bool], int] = {}
        self._sizes: dict[tuple[Role, Borrowed], int] = {}
        self._borrowed: dict[int, Borrowed] = {}

    def role(self, units: range, count: int, held: Sequence[int] | None = None) -> Role:
        """What a GPU with ``units`` of the last ``count`` does; ``held``: the layers whose experts it has (None: not dealt yet)."""
        own = sum(1 for unit in units if unit < self.model.layers and self.model.experts[unit])
        everything = count == self.model.layers + 1  # GPUs without units are left out by --device: one alone makes no pipeline
        return Role(
            layers=bool(units) and units.start < self.model.layers,
            output=self.model.layers in units,
            experts=held is None or bool(held),
            partial=not self.offloads and own > 0 and (held is None or len(held) < own),
            alone=everything and len(units) == count,
            pipelined=everything and 0 < len(units) < count and not self.model.is_moe,
        )

    def borrowed(self, count: int, placed: Sequence[int]) -> Borrowed:
        """What a GPU copies from main memory for prefill; ``placed``: layers whose experts are on GPUs."""
        if not self.offloads:
            return NOTHING
        below = self.model.layers + 1 - count
        experts = {
            tensor.nbytes
            for tensor in self.model.facts.tensors
            if tensor.tensor_class == ROUTED and tensor.layer not in placed and tensor.nbytes <= max(self.limits)
        }
        return Borrowed(
            experts=tuple(sorted(experts)),
            shared=max(self.model.largest_shared[:below], default=0),
            cache=max(self.model.kv[:below], default=0),
            block=min(gpu.backend.largest_block or sys.maxsize for gpu in self.gpus),
        )

    def host_role(self, count: int, dealt: tuple[range, ...], placed: Sequence[int]) -> Role:
        """What main memory does in the graph beside GPUs that hold the last ``count`` units."""
        left = [layer for layer, size in enumerate(self.model.experts) if size and layer not in placed]
        used = sum(1 for units in dealt if units)
        on_cpu = self.model.layers + 1 - count
        return Role(
            layers=on_cpu > 0 and not self.offloads,
            output=False,
            experts=bool(left) and not self.offloads,
            absorbed=self.absorbed,
            oversized=self.offloads and any(self.model.largest_experts[layer] > max(self.limits) for layer in left),
            alone=used < 2,
            host=True,
            pipelined=on_cpu == 0 and used > 1 and not self.model.is_moe,
        )

    def kept_off(self, dealt: tuple[range, ...], placed: Sequence[int]) -> Iterator[str]:
        """What the backend kept off the GPUs, for the notes."""
        if self.absorbed:
            yield f"{self.wanted.slots} slots of a model with MLA: a product of every layer's attention runs on the CPU; one slot is faster"
        for gpu, units, limit in zip(self.gpus, dealt, self.limits, strict=True):
            layers = [
                unit
                for unit in units
                if unit < self.model.layers and unit not in placed and self.model.largest_experts[unit] > limit
            ]
            if layers:
                yield (
                    f"routed experts of {len(layers)} layers stay in main memory: a tensor of "
                    f"{gib(max(self.model.largest_experts[layer] for layer in layers))} is more than {gpu.device} takes ({gib(limit)})"
                )

    def buffers(self, units: range, count: int, *, first: bool) -> int:
        """Bytes of the compute buffer before the experts are dealt, at most; ``first``: of the GPU that works on copies."""
        asked = (units, count, first)
        if asked not in self._asked:  # the ways to deal differ in few places
            self._asked[asked] = self._most(units, count, first)
        return self._asked[asked]

    def _most(self, units: range, count: int, first: bool) -> int:
        if count not in self._borrowed:
            self._borrowed[count] = self.borrowed(count, ())
        key = (self.role(units, count), self._borrowed[count] if first else NOTHING)
        if key not in self._sizes:
            role, most = key  # several copies of one size may need more than one of each size
            kinds = [most, *(replace(most, experts=(size,)) for size in most.experts)]
            self._sizes[key] = max(buffers_of(self.model, self.wanted, role, kind).nbytes for kind in kinds)
        return self._sizes[key]

    def deal(self, count: int) -> _Split | None:
        """The last ``count`` units dealt; None when they do not fit."""
        best: tuple[int, _Split] | None = None
        for units in self._ways(count):
            split = self._with_experts(count, units)
            placed = sum(self.model.experts[layer] for layers in split.experts for layer in layers)
            if best is None or placed > best[0]:
                best = (placed, split)
        return None if best is None else best[1]

    def _ways(self, count: int) -> Iterator[tuple[range, ...]]:
        """Ways to deal the units so that every GPU is left with room in proportion to its size.

        Filling the first GPUs to the brim is what leaves the last one short (ik_llama.cpp#1821). With routed experts: as if every
        layer brought the same share of its experts along, from all of them down. Without: every GPU to the same percentage, evenest last.
        """
        if self.model.is_moe:
            found = 0
            for percent in range(100, -1, -2):
                if (units := self._fill(count, 100, percent)) and found < _TRIES:
                    found += 1
                    yield units
            return
        evenest = None
        for percent in range(100, 0, -1):
            units = self._fill(count, percent, 0)
            if units is None:
                break
            evenest = units
        if evenest:
            yield evenest

    def _fill(self, count: int, percent: int, experts: int) -> tuple[range, ...] | None:
        """Units in order while they fit ``percent`` of a GPU's room, each with ``experts`` percent of its routed experts."""
        unit, end = self.model.layers + 1 - count, self.model.layers + 1
        dealt: list[range] = []
        for room in self.rooms:
            first, used = unit, 0
            alone = not any(dealt)
            while unit < end:
                used += self.model.unit(unit)
                used += self.model.experts[unit] * experts // 100 if unit < self.model.layers else 0
                if used > (room - self.buffers(range(first, unit + 1), count, first=alone)) * percent // 100:
                    break
                unit += 1
            dealt.append(range(first, unit))
        return tuple(dealt) if unit == end else None

    def _with_experts(self, count: int, dealt: tuple[range, ...]) -> _Split:
        """Routed experts beside their own layer, as many layers per GPU as its free bytes take."""
        chosen: list[tuple[int, ...]] = []
        first = True
        for room, units, limit in zip(self.rooms, dealt, self.limits, strict=True):
            left = room - self.buffers(units, count, first=first and bool(units)) - sum(self.model.unit(unit) for unit in units)
            first = first and not units
            layers = []
            for layer in units:
                if layer >= self.model.layers or self.model.largest_experts[layer] > limit:
                    continue
                if 0 < self.model.experts[layer] <= left:
                    left -= self.model.experts[layer]
                    layers.append(layer)
            chosen.append(tuple(layers))
        return _Split(count, dealt, tuple(chosen))


def _assemble(dealer: _Dealer, hardware: Hardware, split: _Split, *, op_offload: bool) -> Placement:
    model, wanted, count = dealer.model, dealer.wanted, split.count
    rows = []
    gpu_kv = gpu_weights = 0
    placed = [layer for layers in split.experts for layer in layers]
    borrowed = dealer.borrowed(count, placed)
    for gpu, units, layers in zip(hardware.gpus, split.units, split.experts, strict=True):
        kv = sum(model.kv[unit] for unit in units if unit < model.layers)
        dense = sum(model.unit(unit) for unit in units) - kv
        routed = sum(model.experts[layer] for layer in layers)
        gpu_kv, gpu_weights = gpu_kv + kv, gpu_weights + dense + routed
        size, why = gpu_reserve(gpu)
        reason = f"{len(units)} of {model.layers + 1} layers and output, without routed experts {gib(dense)}"
        if model.is_moe:
            reason += f" + routed experts of {len(layers)} layers {gib(routed)}"
        compute = buffers_of(model, wanted, dealer.role(units, count, layers), borrowed if units else NOTHING)
        borrowed = NOTHING if units else borrowed
        rows.append(
            memory_row(
                gpu.device,
                gpu.model,
                gpu.memory_bytes,
                Term("", dense + routed, reason),
                Term("", kv, kv_reason(model, wanted, kv)),
                compute,
                Term("", 0, "nothing"),
                Term("", size, why),
            )
        )
    routed_left = sum(model.experts) - sum(model.experts[layer] for layer in placed)
    on_cpu = model.layers + 1 - count
    compute = buffers_of(model, wanted, dealer.host_role(count, split.units, placed))
    host = Host(model.weights + model.output_copy - gpu_weights, routed_left, sum(model.kv) - gpu_kv, compute)
    row, verdict, resident, short, notes = host_row(model, hardware, wanted, host)
    all_in_vram = on_cpu == 0 and not routed_left
    if all_in_vram:
        kind = "all in VRAM"
    else:
        kind = "one GPU, hybrid" if len(hardware.gpus) == 1 else f"{len(hardware.gpus)} GPUs, hybrid"
    profile = None if all_in_vram else "C" if verdict == STREAMS else "B"
    return Placement(
        kind=kind,
        profile=profile,
        verdict=verdict,
        gpu_layers=count,
        split=tuple(len(units) for units in split.units),
        gpu_experts=split.experts,
        memory=(*rows, row),
        ubatch=wanted.ubatch,
        repack=False,
        load_mode="mmap" if verdict == STREAMS or all_in_vram else "none",
        op_offload=op_offload,
        resident=resident,
        short_bytes=short,
        notes=(*notes, *dealer.kept_off(split.units, placed)),
    )
