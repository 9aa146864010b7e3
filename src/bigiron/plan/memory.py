"""What a running llama-server keeps in each memory: weights, KV cache, compute buffers, prompt cache. Pure arithmetic.

The compute buffer formula is fitted to ``llama-fit-params --fit-print on`` of build 11434 (benchmarks/plan_vs_fit_params.py).
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any

from bigiron.gguf.cache import CacheLayer, CacheShape, cache_type
from bigiron.gguf.facts import ModelFacts
from bigiron.units import MIB, gib

PAD_CELLS = 256
"""llama.cpp rounds the context of every slot up to this many cells (GGML_PAD in src/llama-context.cpp)."""
F32, F16 = 4, 2


@dataclass(frozen=True)
class Term:
    """One number of a memory table with its arithmetic."""

    name: str
    nbytes: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The term as data."""
        return {"name": self.name, "bytes": self.nbytes, "reason": self.reason}


@dataclass(frozen=True)
class DeviceMemory:
    """What the plan puts on one device, in bytes. ``streamed`` weights are mapped from disk and count as page cache, not here."""

    device: str
    model: str
    total: int
    weights: Term
    kv: Term
    compute: Term
    other: Term
    reserve: Term
    streamed: int = 0

    @property
    def used(self) -> int:
        """Everything but the reserve."""
        return self.weights.nbytes + self.kv.nbytes + self.compute.nbytes + self.other.nbytes

    @property
    def free(self) -> int:
        """What is left; negative when the device is too small."""
        return self.total - self.used - self.reserve.nbytes

    def terms(self) -> tuple[Term, ...]:
        """The rows of the table in reading order."""
        return (self.weights, self.kv, self.compute, self.other, self.reserve)

    def to_json(self) -> dict[str, Any]:
        """The table row as data."""
        return {
            "device": self.device,
            "model": self.model,
            "total_bytes": self.total,
            "streamed_bytes": self.streamed,
            "free_bytes": self.free,
            **{term.name: term.to_json() for term in self.terms()},
        }


@dataclass(frozen=True)
class Shape:
    """Widths that decide the compute buffers, read from the tensors' own shapes."""

    width: int
    vocabulary: int
    query: int
    absorbed: int
    expert_hidden: int
    experts_used: int
    hidden: int


def shape_of(facts: ModelFacts) -> Shape:
    """The widths of the model with these ``facts``."""
    by_end = {re.sub(r"^blk\.\d+\.", "", tensor.name): tensor for tensor in facts.tensors}

    def rows(*names: str) -> int:
        return max((by_end[name].shape[1] for name in names if name in by_end and len(by_end[name].shape) > 1), default=0)

    table = by_end.get("token_embd.weight")
    width = table.shape[0] if table else 0
    query = rows("attn_q.weight", "attn_qkv.weight", "attn_q_b.weight")
    absorbed = 0
    if (keys := by_end.get("attn_k_b.weight")) is not None and len(keys.shape) > 2:
        rope = rows("attn_kv_a_mqa.weight") - keys.shape[1]
        query = keys.shape[2] * (keys.shape[1] + max(rope, 0))
        absorbed = keys.shape[2] * (keys.shape[1] + rows("attn_v_b.weight"))
    return Shape(
        width=width,
        vocabulary=facts.vocabulary or (table.shape[1] if table and len(table.shape) > 1 else 0),
        query=query,
        absorbed=absorbed,
        expert_hidden=rows("ffn_up_exps.weight", "ffn_gate_exps.weight", "ffn_gate_up_exps.weight"),
        experts_used=facts.experts_used,
        hidden=rows("ffn_up.weight", "ffn_gate.weight"),
    )


def padded_context(context: int, slots: int) -> tuple[int, int]:
    """(cells of one slot, of all slots) for ``-c context -np slots`` without a unified cache, as llama.cpp rounds them."""
    whole = -(-context // PAD_CELLS) * PAD_CELLS
    each = max(-(-(whole // slots) // PAD_CELLS) * PAD_CELLS, PAD_CELLS)
    return each, each * slots


def kv_layer_bytes(
    cache: CacheShape, layer: CacheLayer, context: int, type_k: str, type_v: str, slots: int, ubatch: int
) -> int:
    """Bytes of one layer's cache and state for ``-c context -np slots``; summed over layers this is `CacheShape.total_bytes`."""
    cells, _ = padded_context(context, slots)
    if layer.sliding:
        cells = -(-min(cells, cache.window + ubatch) // PAD_CELLS) * PAD_CELLS
    row = cache_type(type_k).row_bytes(layer.k) + cache_type(type_v).row_bytes(layer.v)
    return (row * cells + layer.state * F32) * slots


def kv_by_layer(facts: ModelFacts, context: int, type_k: str, type_v: str, slots: int, ubatch: int) -> dict[int, int]:
    """Bytes of cache per layer index; layers without a cache are absent."""
    return {
        layer.index: kv_layer_bytes(facts.cache, layer, context, type_k, type_v, slots, ubatch) for layer in facts.cache.layers
    }


def largest_cache(facts: ModelFacts, context: int, type_k: str, type_v: str, slots: int) -> int:
    """Bytes of the largest cache tensor: K or V of one layer for all slots."""
    _, cells = padded_context(context, slots)
    types = cache_type(type_k), cache_type(type_v)
    return cells * max(
        (kind.row_bytes(row) for one in facts.cache.layers for kind, row in zip(types, (one.k, one.v), strict=True)), default=0
    )


def largest_result(shape: Shape, context: int, slots: int, ubatch: int) -> int:
    """Bytes of the largest tensor in the compute buffers: logits, activations, mask."""
    tokens = min(ubatch, context)
    cells, _ = padded_context(context, slots)
    chosen = shape.experts_used * max(shape.width, shape.expert_hidden)
    return max(max(shape.vocabulary, shape.query, shape.hidden, chosen) * tokens * F32, cells * tokens * F16)


@dataclass(frozen=True)
class Borrowed:
    """What a GPU works on that main memory holds, as copies, in large batches; all in bytes.

    ``experts``: the sizes of routed expert tensors, each once; ``shared``: the largest other weight; ``cache``: one layer's K and V;
    ``block``: what one block of the buffer holds at most (see `Backend`).
    """

    experts: tuple[int, ...] = ()
    shared: int = 0
    cache: int = 0
    block: int = sys.maxsize

    def beside(self, results: int, before: int, last: int, *, crowded: bool) -> int:
        """Bytes of expert copies and ``results`` at their peak; ``before`` the last product there are fewer, ``last`` is its result.

        A copy lives for one product, so the next takes its place, unless it or both do not fit one block. ``crowded``: no earlier
        moment left room for the results, so they move into the block of the first copy, and the next copy needs a block of its own.
        """
        only = len(self.experts) == 1
        large = [size for size in self.experts if size > self.block or (only and size + before > self.block)]
        fitting = [size for size in self.experts if size not in large]
        apart = sum(large) * (2 if only and crowded else 1)
        peak = results + max(fitting, default=0)
        if fitting and peak > self.block:
            second, first = sorted([0, *fitting])[-2:]
            peak = max(peak, (second + before + first) if second else first + before + last)
        return peak + apart


NOTHING = Borrowed()


@dataclass(frozen=True)
class Role:
    """What one device does in the graph: runs whole ``layers``, the ``output`` matrix, routed ``experts``.

    ``partial``: routed experts of some of its layers are worked on elsewhere. ``alone``: no other device runs layers. ``host``: main memory,
    which also feeds the inputs. ``pipelined``: several GPUs work on different batches at once, with four copies of every input
    (llama.cpp does so when all of a model without overrides is on GPUs). ``oversized``: of the routed experts, only those that no GPU can
    work on are left to this device. ``absorbed``: the product with attn_v_b is left to it in every layer (MLA, several slots, see `Backend`).
    """

    layers: bool
    output: bool
    experts: bool = True
    partial: bool = False
    alone: bool = True
    host: bool = False
    pipelined: bool = False
    oversized: bool = False
    absorbed: bool = False


PIPELINE_COPIES = 4
"""GGML_SCHED_MAX_COPIES."""


def compute_bytes(
    facts: ModelFacts, shape: Shape, context: int, slots: int, ubatch: int, role: Role, borrowed: Borrowed = NOTHING
) -> Term:
    """The compute buffer of a device, with flash attention on.

    Peaks: the logits (ubatch x vocabulary, f32) beside a few activations of the model's width, or one layer's attention, feed-forward
    or chosen experts; the f16 mask (ubatch x cells of a slot) lives beside them. Fitted to llama-fit-params of build 11434 on the CPU
    and on one and two RPC and Vulkan devices.
    """
    tokens = min(ubatch, context)
    cells, _ = padded_context(context, slots)
    window = min(cells, -(-(facts.cache.window + ubatch) // PAD_CELLS) * PAD_CELLS) if facts.cache.window else 0
    mask = (cells + window) * tokens * F16
    width = shape.width * tokens * F32
    logits = shape.vocabulary * tokens * F32
    inner = 2 * shape.experts_used * shape.expert_hidden * tokens * F32
    chosen = shape.experts_used * shape.width * tokens * F32 + inner
    moments = [
        (2 * shape.query * tokens * F32 + 6 * width + borrowed.shared, "attention of one layer"),
        (2 * shape.hidden * tokens * F32 + 5 * width + borrowed.shared, "feed-forward of one layer"),
        (5 * width + borrowed.cache, f"attention on a copy of one layer's cache, {gib(borrowed.cache)}"),
    ]
    if borrowed.experts:
        results = chosen + 2 * width
        crowded = results > moments[0][0]
        beside = borrowed.beside(results + mask, inner + 5 * width + mask, chosen - inner, crowded=crowded) - mask
        moments.append((beside, f"chosen experts of one layer and copies of experts ({gib(beside - results)})"))
    elif role.experts and chosen:
        chosen += 6 * width
        moments.append((chosen, "chosen experts of one layer"))
    one_layer, moment = max(moments)
    peak, masks = 0, 1
    if role.host and not role.layers:
        inputs = (10 if role.pipelined else 4) * width
        masks = PIPELINE_COPIES if role.pipelined else 1
        peak, moment = inputs, "inputs"
        if role.absorbed:
            peak, moment = max((peak, moment), (shape.absorbed * tokens * F32 + width, "attention of several slots"))
        if role.oversized:
            results = shape.experts_used * (shape.width + shape.expert_hidden) * tokens * F32 + 2 * width
            peak, moment = max((peak, moment), (results, "results of experts too large for a GPU"))
        elif role.experts and not role.alone:  # inputs of several GPUs live side by side with the experts' results
            peak, masks, moment = chosen - 3 * width // 2, 1, "chosen experts of one layer"
        elif role.experts and chosen >= inputs + mask:
            peak, masks, moment = chosen, 0, "chosen experts of one layer"
    elif role.pipelined and (role.layers or role.output):
        masks = PIPELINE_COPIES if role.layers else 0
        peak = max(logits + 10 * width if role.output else 0, one_layer + 12 * width if not role.output else one_layer)
    elif role.output and role.alone:
        beside = logits + (5 if role.host else 4) * width
        peak, moment = max((beside, "logits"), (one_layer, moment))
    elif role.output:
        beside = logits + (11 if role.partial else 1) * width
        peak, masks, moment = (beside, 0, "logits") if beside > one_layer + mask else (one_layer, 1, moment)
    elif role.layers:
        peak = one_layer
    else:
        return Term("compute", 0, "runs nothing")
    reason = f"{moment} for {tokens} tokens: {gib(peak)}"
    if masks:
        reason += f" + {masks} x attention mask {cells + window} x {tokens} x 2 bytes = {gib(mask)}"
    return Term("compute", peak + masks * mask, reason)


def runtime_bytes(facts: ModelFacts) -> Term:
    """Memory of the process beside weights, cache and buffers: program, threads, vocabulary with its merges.

    An upper bound: build 11434 with a vocabulary of 262,144 held 82 MiB of anonymous memory in all at 4,096 tokens, 27 MiB of it cache.
    """
    nbytes = 48 * MIB + 160 * facts.vocabulary
    return Term("runtime", nbytes, f"program 48 MiB + vocabulary {facts.vocabulary} x 160 bytes")
