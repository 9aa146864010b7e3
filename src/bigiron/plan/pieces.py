"""The model cut into what can be placed by itself, the shape of a placement, and what is left for main memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bigiron.gguf.facts import EMBEDDINGS, OUTPUT, ROUTED, ModelFacts
from bigiron.machine.hardware import Hardware, host_reserve
from bigiron.plan.memory import (
    NOTHING,
    Borrowed,
    DeviceMemory,
    Role,
    Shape,
    Term,
    compute_bytes,
    kv_by_layer,
    largest_cache,
    largest_result,
    runtime_bytes,
    shape_of,
)
from bigiron.units import MIB, gib

FITS, STREAMS, NO = "fits", "streams from disk", "does not fit"
HYBRID_UBATCH = 2048
"""Tokens per physical batch where experts are copied to a GPU for prefill: each copy then serves four times the default 512 tokens."""


@dataclass(frozen=True)
class Wanted:
    """What is to be placed: ``context`` tokens over all ``slots`` (-c, -np), cache types, prompt cache in MiB."""

    context: int
    slots: int = 1
    type_k: str = "f16"
    type_v: str = "f16"
    cache_ram_mib: int = 0
    ubatch: int = 512
    streaming: bool = True


@dataclass(frozen=True)
class Placement:
    """Where everything goes.

    ``gpu_layers`` counts layers and the output matrix on GPUs (last ones first), ``split`` how many of
    them each GPU holds, ``gpu_experts`` the layers whose routed experts are on each GPU; ``resident`` is the part of the streamed
    weights that memory can keep (1 when nothing is streamed).
    """

    kind: str
    profile: str | None
    verdict: str
    gpu_layers: int
    split: tuple[int, ...]
    gpu_experts: tuple[tuple[int, ...], ...]
    memory: tuple[DeviceMemory, ...]
    ubatch: int
    repack: bool
    load_mode: str
    op_offload: bool
    resident: float
    short_bytes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    """The model cut into what can be placed by itself; bytes by layer index, ``units`` = layers, then the output matrix.

    ``largest_experts``: the largest tensor of routed experts of each layer; ``largest_shared``: of its others.
    """

    facts: ModelFacts
    shape: Shape
    layers: int
    shared: tuple[int, ...]
    experts: tuple[int, ...]
    kv: tuple[int, ...]
    output: int
    output_copy: int
    table: int
    elsewhere: int
    largest_experts: tuple[int, ...]
    largest_shared: tuple[int, ...]
    largest_output: int

    @property
    def largest_expert(self) -> int:
        """Bytes of the largest tensor of routed experts; 0 without any."""
        return max(self.largest_experts)

    @property
    def largest_other(self) -> int:
        """Bytes of the largest tensor that units bring along."""
        return max(*self.largest_shared, self.largest_output)

    @property
    def weights(self) -> int:
        return sum(self.shared) + sum(self.experts) + self.output + self.table + self.elsewhere

    @property
    def is_moe(self) -> bool:
        """True when it has routed experts."""
        return self.largest_expert > 0

    def unit(self, index: int) -> int:
        """Bytes that unit ``index`` brings to a GPU: shared weights and cache of a layer, or the output matrix.

        A model without an output matrix of its own uses the input table, which is then copied to the GPU as well.
        """
        return self.shared[index] + self.kv[index] if index < self.layers else self.output + self.output_copy


def cut(facts: ModelFacts, wanted: Wanted) -> Model:
    count = max(facts.layers, 1)
    shared, experts, largest, others = [0] * count, [0] * count, [0] * count, [0] * count
    output = table = tied = elsewhere = largest_output = 0
    for tensor in facts.tensors:
        if tensor.layer is not None and tensor.layer < count:
            if tensor.tensor_class == ROUTED:
                experts[tensor.layer] += tensor.nbytes
                largest[tensor.layer] = max(largest[tensor.layer], tensor.nbytes)
            else:
                shared[tensor.layer] += tensor.nbytes
                others[tensor.layer] = max(others[tensor.layer], tensor.nbytes)
        elif tensor.tensor_class == OUTPUT:
            output += tensor.nbytes
            largest_output = max(largest_output, tensor.nbytes)
        elif tensor.tensor_class == EMBEDDINGS:
            table += tensor.nbytes
            if tensor.name == "token_embd.weight":
                tied = tensor.nbytes
        else:
            elsewhere += tensor.nbytes
    kv = kv_by_layer(facts, wanted.context, wanted.type_k, wanted.type_v, wanted.slots, wanted.ubatch)
    return Model(
        facts=facts,
        shape=shape_of(facts),
        layers=count,
        shared=tuple(shared),
        experts=tuple(experts),
        kv=tuple(kv.get(index, 0) for index in range(count)),
        output=output,
        output_copy=tied if facts.tied_output else 0,
        table=table,
        elsewhere=elsewhere,
        largest_experts=tuple(largest),
        largest_shared=tuple(others),
        largest_output=max(largest_output, tied if facts.tied_output else 0),
    )


def memory_row(
    device: str, model: str, total: int, weights: Term, kv: Term, compute: Term, other: Term, reserve: Term, streamed: int = 0
) -> DeviceMemory:
    """A row of the memory table; the terms get their names here."""
    return DeviceMemory(
        device=device,
        model=model,
        total=total,
        weights=replace(weights, name="weights"),
        kv=replace(kv, name="kv"),
        compute=replace(compute, name="compute"),
        other=replace(other, name="other"),
        reserve=replace(reserve, name="reserve"),
        streamed=streamed,
    )


def buffers_of(model: Model, wanted: Wanted, role: Role, borrowed: Borrowed = NOTHING) -> Term:
    """The compute buffer of a device in ``role`` that works on copies of what is ``borrowed`` from main memory."""
    return compute_bytes(model.facts, model.shape, wanted.context, wanted.slots, wanted.ubatch, role, borrowed)


def largest_needed(model: Model, wanted: Wanted) -> int:
    """Bytes of the largest tensor a GPU with a layer must be able to work on: weights but routed experts, cache, results."""
    cache = largest_cache(model.facts, wanted.context, wanted.type_k, wanted.type_v, wanted.slots)
    return max(model.largest_other, cache, largest_result(model.shape, wanted.context, wanted.slots, wanted.ubatch))


@dataclass(frozen=True)
class Host:
    """What is left for main memory: bytes of ``weights`` (of them ``routed``), ``kv``, its compute buffer."""

    weights: int
    routed: int
    kv: int
    compute: Term


def host_row(
    model: Model, hardware: Hardware, wanted: Wanted, host: Host
) -> tuple[DeviceMemory, str, float, int, tuple[str, ...]]:
    """The memory row of the host, its verdict, the resident share of streamed weights, the bytes short, notes."""
    reserve, why = host_reserve(hardware)
    runtime = runtime_bytes(model.facts)
    cache = wanted.cache_ram_mib * MIB
    other = Term("other", runtime.nbytes + cache, f"{runtime.reason}; prompt cache {wanted.cache_ram_mib} MiB (--cache-ram)")
    anonymous = host.kv + host.compute.nbytes + other.nbytes
    kv = Term("kv", host.kv, kv_reason(model, wanted, host.kv))
    name = hardware.cpu_model if not hardware.unified else f"{hardware.cpu_model} (unified)"
    budget = hardware.memory_bytes - reserve
    reserve_term = Term("reserve", reserve, why)
    device = "memory"
    notes: tuple[str, ...] = ()
    if host.weights + anonymous <= budget:
        reason = f"{gib(host.weights)} of tensors stay in main memory, counted once (repacked copies replace the mapped pages)"
        row = memory_row(
            device, name, hardware.memory_bytes, Term("", host.weights, reason), kv, host.compute, other, reserve_term
        )
        if hardware.available_bytes is not None and host.weights + anonymous > hardware.available_bytes:
            notes = (f"fits only without other load: {gib(hardware.available_bytes)} are available now",)
        return row, FITS, 1.0, 0, notes
    # Streaming: routed experts come from the page cache or the disk; what every token needs must stay.
    reserve, why = host_reserve(hardware, streams=True)
    reserve_term = Term("reserve", reserve, why)
    budget = hardware.memory_bytes - reserve
    streamed = host.routed or host.weights - max((s for s in model.shared if s), default=0)
    hot = host.weights - streamed
    row = memory_row(
        device,
        name,
        hardware.memory_bytes,
        Term("", hot, f"read for every token, must stay in memory; {gib(streamed)} more are mapped from disk"),
        kv,
        host.compute,
        other,
        reserve_term,
        streamed,
    )
    if hot + anonymous <= budget and wanted.streaming and streamed:
        resident = (budget - hot - anonymous) / streamed
        notes = (f"memory keeps {100 * resident:.0f} % of the mapped weights; the rest is read again and again from disk",)
        return row, STREAMS, resident, host.weights + anonymous - budget, notes
    short = (hot if wanted.streaming else host.weights) + anonymous - budget
    row = replace(row, weights=Term("weights", host.weights, f"{gib(host.weights)} of tensors"), streamed=0)
    return row, NO, 0.0, short, notes


def kv_reason(model: Model, wanted: Wanted, total: int) -> str:
    per_token = model.facts.cache.bytes_per_token(wanted.type_k, wanted.type_v)
    window = ", sliding layers hold their window only" if model.facts.cache.window else ""
    share = "" if total == sum(model.kv) else f" (its layers' part of {gib(sum(model.kv))})"
    return (
        f"{wanted.context} tokens x {per_token} bytes ({wanted.type_k}/{wanted.type_v}), {wanted.slots} slot(s){window}{share}"
    )
