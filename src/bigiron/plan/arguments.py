"""The arguments of llama-server for a placement, in the words the installed build understands; and advice about anybody's."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from bigiron.errors import Refused, UsageError
from bigiron.gguf.cache import CACHE_TYPES
from bigiron.gguf.facts import ModelFacts
from bigiron.machine.hardware import Hardware
from bigiron.plan.capabilities import Capabilities
from bigiron.plan.overrides import ALL_EXPERTS, layer_pattern, lint, summary
from bigiron.plan.placement import STREAMS, Placement, Wanted

QUANTISED = frozenset(CACHE_TYPES) - {"f32", "f16", "bf16"}


@dataclass(frozen=True)
class Argument:
    """One option with its value ("" for a switch) and why it is there."""

    option: str
    value: str
    reason: str

    def words(self) -> list[str]:
        """As it stands in argv."""
        return [self.option, self.value] if self.value else [self.option]


def check_cache_types(facts: ModelFacts, type_k: str, type_v: str, flash_attention: str = "auto") -> None:
    """Raise UsageError where llama.cpp would refuse the context (src/llama-context.cpp).

    That is: unknown types, MLA with unequal types, rows that are not whole blocks, a quantised V cache without flash attention.
    """
    where = "cache type"
    for name in (type_k, type_v):
        if name not in CACHE_TYPES:
            raise UsageError(f"{name!r} is no cache type", where=where, hint=f"choose one of: {', '.join(CACHE_TYPES)}")
        if name not in facts.cache.legal_types():
            raise UsageError(f"{name} does not divide this model's cache rows", where=where, hint="use f16")
    if facts.cache.mla and type_k != type_v:
        raise UsageError(
            f"{facts.architecture} keeps K and V in one cache (MLA), so their types must be equal, not {type_k} and {type_v}",
            where=where,
            hint=f"set both to {type_k}",
        )
    if type_v in QUANTISED and flash_attention == "off":
        raise UsageError(
            f"a {type_v} V cache needs flash attention, which is off", where=where, hint="turn it on, or use f16 for V"
        )


def arguments(
    facts: ModelFacts, hardware: Hardware, placement: Placement, wanted: Wanted, build: Capabilities | None, threads: int = 0
) -> list[Argument]:
    """Everything the placement needs, valid for ``build`` (None: a build of late 2026). Model path, host and port are the caller's.

    Raises Refused when the build lacks an option without which the plan would not hold.
    """
    words = _Words(build)
    count = min(threads or hardware.cores, hardware.threads)
    result = [
        Argument(
            "--ctx-size", str(wanted.context), f"{wanted.context // wanted.slots} tokens for each of {wanted.slots} slot(s)"
        ),
        Argument("--parallel", str(wanted.slots), "an explicit number, so that each slot has its own part of the context"),
        Argument("--cache-type-k", wanted.type_k, "cache type of K"),
        Argument("--cache-type-v", wanted.type_v, "cache type of V; equal for MLA, quantised only with flash attention"),
        Argument("--threads", str(count), f"physical cores ({hardware.cores}); hyper-threads slow generation down"),
        Argument("--threads-batch", str(count), "the same for prefill"),
    ]
    if placement.ubatch != 512:
        result.append(Argument("--ubatch-size", str(placement.ubatch), "experts are copied to the GPU once per physical batch"))
    result += words.flash_attention(wanted)
    if hardware.numa_nodes > 1:
        result.append(
            Argument("--numa", "distribute", f"{hardware.numa_nodes} NUMA nodes with memory: threads spread over all")
        )
    result += words.load_mode(placement.load_mode)
    if not placement.repack:
        result += words.no_repack(placement)
    result += words.optional(
        ("--cache-ram", "-cram"), str(wanted.cache_ram_mib), "prompt cache in main memory, MiB, part of the budget"
    )
    result += _gpu_arguments(facts, hardware, placement, words)
    result += words.optional(("--fit", "-fit"), "off", "the plan decided; llama.cpp must not change it")
    if build and (wrong := build.problems([word for argument in result for word in argument.words()])):
        raise UsageError("; ".join(wrong), where="the plan")
    return result


def _gpu_arguments(facts: ModelFacts, hardware: Hardware, placement: Placement, words: _Words) -> list[Argument]:
    if hardware.unified:
        return [
            Argument(
                "--n-gpu-layers", "99" if placement.gpu_layers else "0", "unified memory: the GPU computes, nothing is copied"
            )
        ]
    if not hardware.gpus:
        return []
    if not placement.split:
        return [Argument("--n-gpu-layers", "0", "no GPU has room for a layer")]
    result = [Argument("--n-gpu-layers", str(placement.gpu_layers), "layers and output on GPUs")]
    used = [(gpu.device, units) for gpu, units in zip(hardware.gpus, placement.split, strict=True) if units]
    if len(used) < len(hardware.gpus):
        result.append(Argument("--device", ",".join(device for device, _ in used), "GPUs without a layer are left alone"))
    if len(used) > 1:
        split = ",".join(str(units) for _, units in used)
        result.append(Argument("--split-mode", "layer", "whole layers per GPU"))
        result.append(Argument("--tensor-split", split, "layers per GPU, as the memory table shows"))
    on_gpus = sum(map(len, placement.gpu_experts))
    if facts.routed_layer_bytes and (on_gpus < len(facts.routed_layer_bytes) or len(used) > 1):
        rules = [
            f"{layer_pattern(layers)}={gpu.device}"
            for gpu, layers in zip(hardware.gpus, placement.gpu_experts, strict=True)
            if layers
        ]
        if on_gpus < len(facts.routed_layer_bytes):
            rules.append(f"{ALL_EXPERTS}=CPU")
        result.append(
            Argument("--override-tensor", ",".join(rules), "routed experts: these layers on GPUs, all others in main memory")
        )
    left = placement.gpu_layers <= facts.layers or on_gpus < len(facts.routed_layer_bytes)
    if left and not placement.op_offload:
        result += words.optional(("--no-op-offload",), "", "no room on the GPU for copies of weights in main memory")
    return result


class _Words:
    """Spellings of the installed build."""

    def __init__(self, build: Capabilities | None) -> None:
        self.build = build

    def has(self, *names: str) -> str | None:
        return names[0] if self.build is None else self.build.first(*names)

    def optional(self, names: tuple[str, ...], value: str, reason: str) -> list[Argument]:
        name = self.has(*names)
        return [Argument(name, value, reason)] if name else []

    def flash_attention(self, wanted: Wanted) -> list[Argument]:
        name = self.has("--flash-attn", "-fa")
        needed = wanted.type_v in QUANTISED
        flag = self.build.find(name) if self.build and name else None
        if flag is None and self.build is not None:
            if needed:
                raise Refused("this build has no flash attention, which a quantised V cache needs", where=self.build.source)
            return []
        if flag is not None and not flag.takes_value:
            return [Argument(name or "--flash-attn", "", "a switch in this build")]
        value = "on" if needed else "auto"
        return [Argument(name or "--flash-attn", value, "the compute buffer of the plan counts on it")]

    def load_mode(self, mode: str) -> list[Argument]:
        why = {"mmap": "weights are mapped from the file", "none": "weights are read into (pinned) memory"}[mode]
        if name := self.has("--load-mode", "-lm"):
            return [Argument(name, mode, why)]
        if mode == "none" and (name := self.has("--no-mmap")):
            return [Argument(name, "", why)]
        return []

    def no_repack(self, placement: Placement) -> list[Argument]:
        if name := self.has("--no-repack", "-nr"):
            mapped = placement.load_mode == "mmap"
            why = (
                "weights must stay the mapped file, not become copies"
                if mapped
                else "pinned buffers, which the GPU reads, hold plain weights"
            )
            return [Argument(name, "", why)]
        if placement.verdict == STREAMS:
            raise Refused(
                "this build cannot turn weight repacking off, so weights larger than memory would be copied into it",
                where=self.build.source if self.build else None,
                hint="build a newer llama.cpp",
            )
        return []


def advise(words: Sequence[str], facts: ModelFacts, hardware: Hardware, *, prefix: Sequence[str] = ()) -> list[str]:
    """Warnings about a person's own arguments: override rules that do nothing, NUMA settings that fight, memory left out of the budget."""
    devices = {"CPU": sys.maxsize, **{gpu.device: gpu.bound for gpu in hardware.gpus}}
    values = [words[index + 1] for index, word in enumerate(words[:-1]) if word in {"-ot", "--override-tensor"}]
    found = [summary(report) for report in lint(values, facts.tensors, devices) if report.error]
    numa = [words[index + 1] for index, word in enumerate(words[:-1]) if word == "--numa"]
    if prefix and prefix[0].endswith("numactl") and numa and numa[0] != "numactl":
        found.append(f"numactl already places threads and memory: --numa {numa[0]} works against it; use --numa numactl")
    if numa and hardware.numa_nodes == 1:
        found.append("--numa on a machine with one NUMA node only turns read-ahead off")
    return found
