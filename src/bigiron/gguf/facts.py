"""What the headers of a model say about it: size, classes of tensors, cache, quant. Never the file name.

Runs on hosts: standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from .cache import CACHE_TYPES, CacheShape, cache_shape
from .errors import SplitError
from .reader import Header
from .split import SPLIT_TENSORS

ROUTED = "routed experts"
SHARED = "attention and shared"
EMBEDDINGS = "embeddings"
OUTPUT = "output"
CLASSES = (SHARED, ROUTED, EMBEDDINGS, OUTPUT)

# The expression behind --cpu-moe (LLM_FFN_EXPS_REGEX, common/common.h, build 11434).
_ROUTED = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")
_LAYER = re.compile(r"^blk\.(\d+)\.")
_EMBEDDING = re.compile(r"^(token_embd|per_layer_token_embd|position_embd|token_types)\b")
_OUTPUT = re.compile(r"^output(_norm)?\.")


@dataclass(frozen=True)
class TensorFact:
    """One tensor: ``shape`` fastest dimension first, ``nbytes`` without padding, ``layer`` None outside blk.N."""

    name: str
    type: str
    shape: tuple[int, ...]
    elements: int
    nbytes: int
    layer: Optional[int]
    tensor_class: str


@dataclass(frozen=True)
class ModelFacts:
    """Facts of one model, from headers alone. Sizes in bytes of tensor data without padding.

    ``parameters`` counts every weight (as llama.cpp's model_n_params); ``active_parameters`` those that one token multiplies:
    routed experts by their used share, the input table not at all (one row is read) unless it is the output matrix too
    (``tied_output``); ``active_bytes`` are their bytes, which is what a generated token reads. ``quant`` is the tensor type
    with the most bytes, ``quant_mix`` all types with their bytes, largest first.
    """

    architecture: str
    name: str
    layers: int
    tensor_count: int
    parameters: int
    active_parameters: int
    total_bytes: int
    active_bytes: int
    class_bytes: dict[str, int]
    routed_layer_bytes: dict[int, int]
    experts: int
    experts_used: int
    context_trained: int
    vocabulary: int
    chat_template: bool
    tied_output: bool
    quant: str
    bits_per_weight: float
    quant_mix: tuple[tuple[str, int], ...]
    cache: CacheShape
    tensors: tuple[TensorFact, ...]

    def kv_bytes_per_token(self) -> dict[str, int]:
        """Bytes per token of context for every cache type the model can use (K and V alike, layers that see everything)."""
        return {name: self.cache.bytes_per_token(name) for name in CACHE_TYPES if name in self.cache.legal_types()}

    def to_json(self) -> dict[str, Any]:
        """The facts as data, without the list of tensors."""
        return {
            "architecture": self.architecture,
            "name": self.name,
            "layers": self.layers,
            "tensors": self.tensor_count,
            "parameters": self.parameters,
            "active_parameters": self.active_parameters,
            "total_bytes": self.total_bytes,
            "active_bytes": self.active_bytes,
            "class_bytes": self.class_bytes,
            "routed_layer_bytes": {str(layer): size for layer, size in self.routed_layer_bytes.items()},
            "experts": self.experts,
            "experts_used": self.experts_used,
            "context_trained": self.context_trained,
            "vocabulary": self.vocabulary,
            "chat_template": self.chat_template,
            "tied_output": self.tied_output,
            "quant": self.quant,
            "bits_per_weight": round(self.bits_per_weight, 4),
            "quant_mix": dict(self.quant_mix),
            "kv_bytes_per_token": self.kv_bytes_per_token(),
            "kv_window_tokens": self.cache.window,
            "kv_window_bytes_per_token": {
                name: self.cache.window_bytes_per_token(name) for name in CACHE_TYPES if name in self.cache.legal_types()
            },
            "state_bytes_per_sequence": self.cache.state_bytes_per_sequence,
            "cache_exact": self.cache.exact,
        }


def tensor_class(name: str) -> str:
    """The class of a tensor by its name: routed experts, embeddings, output, or attention and shared (all else)."""
    if _ROUTED.search(name):
        return ROUTED
    if _EMBEDDING.match(name):
        return EMBEDDINGS
    return OUTPUT if _OUTPUT.match(name) else SHARED


def model_facts(headers: Sequence[Header]) -> ModelFacts:
    """Facts of the model whose shards have these headers, first shard first.

    Raises:
        GgufError: no header, no architecture, no tensors, or fewer tensors than the first shard promises.

    """
    if not headers:
        raise SplitError("no header was given", file="", field="set", offset=0)
    first = headers[0]
    arch = first.text("general.architecture")
    tensors = tuple(_tensor_fact(tensor) for header in headers for tensor in header.tensors)
    promised = first.integer(SPLIT_TENSORS, len(tensors))
    what = ""
    if not arch:
        what = "no general.architecture: is this the first shard?"
    elif not tensors:
        what = "no tensors: are the other shards missing?"
    elif promised != len(tensors):
        what = f"{SPLIT_TENSORS} is {promised}, these headers hold {len(tensors)} tensors"
    if what:
        raise SplitError(what, file=first.name, field="set", offset=0)

    sizes = dict.fromkeys(CLASSES, 0)
    weights = dict.fromkeys(CLASSES, 0)
    mix: dict[str, int] = {}
    routed_layers: dict[int, int] = {}
    for tensor in tensors:
        sizes[tensor.tensor_class] += tensor.nbytes
        weights[tensor.tensor_class] += tensor.elements
        mix[tensor.type] = mix.get(tensor.type, 0) + tensor.nbytes
        if tensor.tensor_class == ROUTED and tensor.layer is not None:
            routed_layers[tensor.layer] = routed_layers.get(tensor.layer, 0) + tensor.nbytes
    parameters, total = sum(weights.values()), sum(sizes.values())
    experts, used = _count(first, f"{arch}.expert_count"), _count(first, f"{arch}.expert_used_count")
    share = (used, experts) if 0 < used <= experts else (1, 1)
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    quants = tuple(sorted(mix.items(), key=lambda item: (-item[1], item[0])))
    token_table = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)

    def active(per_class: dict[str, int], table: int) -> int:
        routed = per_class[ROUTED] * share[0] // share[1]
        return per_class[SHARED] + routed + per_class[OUTPUT] + (table if tied else 0)

    return ModelFacts(
        architecture=arch,
        name=first.text("general.name"),
        layers=_count(first, f"{arch}.block_count"),
        tensor_count=len(tensors),
        parameters=parameters,
        active_parameters=active(weights, 0 if token_table is None else token_table.elements),
        total_bytes=total,
        active_bytes=active(sizes, 0 if token_table is None else token_table.nbytes),
        class_bytes=sizes,
        routed_layer_bytes=dict(sorted(routed_layers.items())),
        experts=experts,
        experts_used=used,
        context_trained=_count(first, f"{arch}.context_length"),
        vocabulary=_vocabulary(first, token_table),
        chat_template="tokenizer.chat_template" in first.keys,
        tied_output=tied,
        quant=quants[0][0],
        bits_per_weight=total * 8 / parameters if parameters else 0.0,
        quant_mix=quants,
        cache=cache_shape(first),
        tensors=tensors,
    )


def _tensor_fact(tensor: Any) -> TensorFact:
    layer = _LAYER.match(tensor.name)
    return TensorFact(
        name=tensor.name,
        type=tensor.kind.name,
        shape=tensor.shape,
        elements=tensor.elements,
        nbytes=tensor.nbytes,
        layer=None if layer is None else int(layer[1]),
        tensor_class=tensor_class(tensor.name),
    )


def _count(header: Header, key: str) -> int:
    """A count that some architectures give per layer: then the largest."""
    value = header.get(key, 0)
    return max(value, default=0) if isinstance(value, tuple) else header.integer(key, 0)


def _vocabulary(header: Header, table: Optional[TensorFact]) -> int:
    tokens = header.keys.get("tokenizer.ggml.tokens")
    if tokens is not None:
        return tokens.items
    return table.shape[1] if table is not None and len(table.shape) > 1 else 0
