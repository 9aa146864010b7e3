"""The model plan: which quant, where its tensors go, with which arguments, how fast, and why. A pure function of machine, model, wish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bigiron.errors import Refused, UsageError
from bigiron.gguf.facts import ModelFacts
from bigiron.machine.description import Machine
from bigiron.machine.hardware import Hardware, from_machine
from bigiron.plan.arguments import Argument, arguments, check_cache_types
from bigiron.plan.capabilities import Capabilities
from bigiron.plan.memory import DeviceMemory, padded_context
from bigiron.plan.placement import FITS, NO, STREAMS, Placement, Wanted, place
from bigiron.plan.quant import by_quality, named
from bigiron.plan.roofline import Prediction, predict
from bigiron.units import MIB, gib

AUTO = "auto"
_DISK_BYTES_PER_S = 200 * MIB
"""A slow disk: the start timeout must hold there."""
_SHADERS_S = 600
"""For the shaders of one model at their slowest: Mesa's lavapipe on two busy cores took more than two minutes."""


@dataclass(frozen=True)
class Wish:
    """What a person wants of the model.

    ``context`` is in tokens over all ``slots`` (llama-server's ``-c`` and ``-np``); ``quant``
    "auto" takes the best that fits; ``backend`` "cpu" ignores GPUs; ``streaming`` False refuses to read weights from disk per token.
    """

    context: int = 4096
    slots: int = 1
    quant: str = AUTO
    type_k: str = "f16"
    type_v: str = "f16"
    cache_ram_mib: int = 0
    threads: int = 0
    backend: str = AUTO
    streaming: bool = True

    def check(self) -> None:
        """Raise UsageError for numbers that mean nothing."""
        for name, value, low in (
            ("context", self.context, 1),
            ("slots", self.slots, 1),
            ("cache RAM", self.cache_ram_mib, 0),
            ("threads", self.threads, 0),
        ):
            if value < low:
                raise UsageError(f"{name} is {value}", where="plan", hint=f"it must be at least {low}")
        if self.context < self.slots:
            raise UsageError(
                f"{self.context} tokens cannot be shared by {self.slots} slots", where="plan", hint="raise the context"
            )
        if self.backend not in {AUTO, "cpu"}:
            raise UsageError(f"backend is {self.backend!r}", where="plan", hint="auto or cpu")

    def wanted(self) -> Wanted:
        """The part the placement needs."""
        return Wanted(self.context, self.slots, self.type_k, self.type_v, self.cache_ram_mib, streaming=self.streaming)


@dataclass(frozen=True)
class ModelPlan:
    """The answer.

    ``arguments`` are llama-server's, without model path, host and port; ``verdict`` is "fits", "streams from disk" or
    "does not fit"; ``suggestions`` say what would fit when it does not.
    """

    quant: str
    facts: ModelFacts
    hardware: Hardware
    wish: Wish
    placement: Placement
    reasoned_arguments: tuple[Argument, ...]
    prediction: Prediction
    reasons: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    suggestions: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        """The words for argv."""
        return [word for argument in self.reasoned_arguments for word in argument.words()]

    @property
    def memory(self) -> tuple[DeviceMemory, ...]:
        """One row per device, GPUs first, main memory last."""
        return self.placement.memory

    @property
    def verdict(self) -> str:
        """``fits``, ``streams from disk`` or ``does not fit``."""
        return self.placement.verdict

    @property
    def fits(self) -> bool:
        """True when the server will start and answer (a streamed plan does, slowly)."""
        return self.placement.verdict != NO

    @property
    def slot_context(self) -> int:
        """Tokens one request can use, as llama.cpp rounds them."""
        return padded_context(self.wish.context, self.wish.slots)[0]

    @property
    def memory_needed(self) -> int:
        """Bytes of main memory that must never be reclaimed from the server: the lower bound for systemd's MemoryMax."""
        return self.placement.memory[-1].used

    @property
    def start_timeout_s(self) -> int:
        """Seconds to wait for the load: all weights from a slow disk, three times as long where a NUMA mode turns read-ahead off.

        And a first start on a Vulkan device, whose driver compiles every shader.
        """
        factor = 3 if "--numa" in self.arguments else 1
        shaders = _SHADERS_S if any(gpu.device.startswith("Vulkan") for gpu in self.hardware.gpus) else 0
        return 120 + shaders + factor * self.facts.total_bytes // _DISK_BYTES_PER_S

    def require(self) -> ModelPlan:
        """The plan itself. Raises Refused when it does not fit, with what would."""
        if self.fits:
            return self
        short = gib(self.placement.short_bytes)
        raise Refused(
            f"{self.facts.name or 'the model'} {self.quant} with {self.wish.context} tokens does not fit: {short} of memory are missing",
            where=self.hardware.name,
            hint="; ".join(self.suggestions) or f"add {short} of memory",
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as data; the shape is src/bigiron/plan/schemas/plan.schema.json."""
        return {
            "machine": self.hardware.name,
            "model": self.facts.to_json(),
            "quant": self.quant,
            "verdict": self.verdict,
            "fits": self.fits,
            "placement": {
                "kind": self.placement.kind,
                "profile": self.placement.profile,
                "gpu_layers": self.placement.gpu_layers,
                "split": list(self.placement.split),
                "gpu_expert_layers": [list(layers) for layers in self.placement.gpu_experts],
                "repack": self.placement.repack,
                "load_mode": self.placement.load_mode,
                "resident_share": round(self.placement.resident, 4),
                "short_bytes": max(self.placement.short_bytes, 0),
            },
            "context": {"total": self.wish.context, "slots": self.wish.slots, "per_slot": self.slot_context},
            "cache_types": {"k": self.wish.type_k, "v": self.wish.type_v},
            "memory": [row.to_json() for row in self.memory],
            "memory_needed_bytes": self.memory_needed,
            "start_timeout_s": self.start_timeout_s,
            "arguments": self.arguments,
            "prediction": self.prediction.to_json(),
            "reasons": [{"topic": topic, "text": text} for topic, text in self.reasons],
            "warnings": list(self.warnings),
            "suggestions": list(self.suggestions),
        }


def choose(
    machine: Machine | Hardware,
    facts: ModelFacts | Mapping[str, ModelFacts],
    wish: Wish,
    *,
    build: Capabilities | None = None,
) -> ModelPlan:
    """The plan for ``wish`` on ``machine``. ``facts`` of one model file, or of each quant of a repository by its name.

    With several quants and ``wish.quant`` "auto": the best quality that fits in memory; when none does, the smallest, streamed from disk if
    that is allowed. Raises UsageError for a wish that means nothing and for an unknown quant; a plan that does not fit is returned
    (``fits`` False), so that it can be shown: call ``require()`` before acting on it.
    """
    wish.check()
    hardware = from_machine(machine) if isinstance(machine, Machine) else machine
    if wish.backend == "cpu" and not hardware.unified:
        hardware = hardware.cpu_only()
    quants = {facts.quant if wish.quant == AUTO else wish.quant: facts} if isinstance(facts, ModelFacts) else dict(facts)
    if not quants:
        raise UsageError("no quant to choose from", where="plan")
    for each in quants.values():
        check_cache_types(each, wish.type_k, wish.type_v)
    reasons: list[tuple[str, str]] = []
    if wish.quant == AUTO or isinstance(facts, ModelFacts):
        name, placement = _best(quants, hardware, wish, reasons)
    else:
        name, one = named(quants, wish.quant)
        placement = place(one, hardware, wish.wanted())
        reasons.append(("quant", f"{name}, as asked"))
    return _plan(name, quants, hardware, wish, placement, reasons, build)


def _best(
    quants: Mapping[str, ModelFacts], hardware: Hardware, wish: Wish, reasons: list[tuple[str, str]]
) -> tuple[str, Placement]:
    order = by_quality({name: facts.bits_per_weight for name, facts in quants.items()})
    placements = {}
    for name in order:
        placements[name] = place(quants[name], hardware, wish.wanted())
        bits = quants[name].bits_per_weight
        if placements[name].verdict == FITS:
            reasons.append(("quant", f"{name}: {bits:.2f} bits per weight, the best of {len(order)} that fits in memory"))
            return name, placements[name]
        reasons.append(
            ("quant", f"{name}: {bits:.2f} bits per weight, {gib(placements[name].short_bytes)} too large for memory")
        )
    small = min(order, key=lambda name: quants[name].total_bytes)
    if placements[small].verdict == STREAMS:
        reasons.append(("quant", f"{small}: no quant fits in memory, so the smallest, which reads least from disk"))
    return small, placements[small]


def _plan(
    name: str,
    quants: Mapping[str, ModelFacts],
    hardware: Hardware,
    wish: Wish,
    placement: Placement,
    reasons: list[tuple[str, str]],
    build: Capabilities | None,
) -> ModelPlan:
    facts = quants[name]
    wanted = replace(wish.wanted(), ubatch=placement.ubatch)
    reasoned = tuple(arguments(facts, hardware, placement, wanted, build, wish.threads))
    unknown = Prediction(None, None, (("speed", "it does not fit, so it has none"),))
    prediction = unknown if placement.verdict == NO else predict(facts, hardware, placement, wish.threads)
    for row in placement.memory:
        reasons += [(f"{row.device} {term.name}", f"{gib(term.nbytes)}: {term.reason}") for term in row.terms()]
    reasons += [(argument.option, f"{argument.value} — {argument.reason}".lstrip(" —")) for argument in reasoned]
    reasons += list(prediction.reasons)
    return ModelPlan(
        quant=name,
        facts=facts,
        hardware=hardware,
        wish=wish,
        placement=placement,
        reasoned_arguments=reasoned,
        prediction=prediction,
        reasons=tuple(reasons),
        warnings=tuple(_warnings(facts, hardware, wish, placement)),
        suggestions=tuple(_suggestions(name, quants, hardware, wish)) if placement.verdict != FITS else (),
    )


def _warnings(facts: ModelFacts, hardware: Hardware, wish: Wish, placement: Placement) -> list[str]:
    found = [*hardware.notes, *placement.notes]
    per_slot = wish.context // wish.slots
    if facts.context_trained and per_slot > facts.context_trained:
        found.append(f"{per_slot} tokens per slot, but the model was trained for {facts.context_trained}")
    if not facts.cache.exact:
        found.append(f"{facts.architecture} keeps more per token than is counted here: the KV cache is a lower bound")
    if hardware.numa_nodes > 1:
        found.append(
            "pages cached on one NUMA node stay there: after another server used the file, drop the page cache before a start"
        )
    if placement.verdict == STREAMS and hardware.nvme_read is None:
        found.append("weights stream from a disk whose read speed is not known")
    return found


def _suggestions(name: str, quants: Mapping[str, ModelFacts], hardware: Hardware, wish: Wish) -> list[str]:
    """What would fit in memory: another quant, a smaller context, a smaller cache type, more memory."""
    found = []
    facts = quants[name]
    wanted = wish.wanted()
    for other in by_quality({key: value.bits_per_weight for key, value in quants.items()}):
        if other != name and place(quants[other], hardware, wanted).verdict == FITS:
            found.append(f"quant {other} fits")
            break
    low, high = 0, wish.context // 256
    while low < high:
        middle = (low + high + 1) // 2
        if place(facts, hardware, replace(wanted, context=middle * 256)).verdict == FITS:
            low = middle
        else:
            high = middle - 1
    if low * 256 >= wish.slots and 0 < low * 256 < wish.context:
        found.append(f"a context of {low * 256} fits")
    if wish.type_k not in {"q8_0", "q4_0"} and "q8_0" in facts.cache.legal_types():
        smaller = place(facts, hardware, replace(wanted, type_k="q8_0", type_v="q8_0"))
        if smaller.verdict == FITS:
            found.append("cache type q8_0 fits")
    short = place(facts, hardware, replace(wanted, streaming=False)).short_bytes
    if short > 0:
        found.append(f"{gib(short * 1.05)} more memory would hold it")
    return found
