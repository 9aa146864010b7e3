"""What a model keeps per token of context (KV cache) and per sequence (recurrent state), layer by layer.

Source: llama.cpp build 11434: ``create_memory`` and ``load_hparams`` in src/llama-model.cpp, src/llama-kv-cache.cpp,
src/llama-kv-cache-iswa.cpp, src/llama-memory-recurrent.cpp, src/llama-hparams.cpp; src/models/*.cpp for which layers slide.
Runs on hosts: standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from . import types as t
from .reader import Header

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""Values of --cache-type-k and -v (common/arg.cpp)."""

_PAD_CELLS = 256

# Sliding layers where the header has no pattern: (period, full layer first, window when the header has none). A period of 0
# means that every layer slides. None as window: without the key the model does not slide.
_SLIDING: dict[str, tuple[int, bool, Optional[int]]] = {
    "afmoe": (4, False, None),
    "cohere2": (4, False, None),
    "cohere2moe": (4, True, None),
    "exaone-moe": (4, False, 128),
    "exaone4": (4, False, 4096),
    "gemma2": (2, False, 4096),
    "gemma3": (6, False, None),
    "gemma3n": (5, False, None),
    "gpt-oss": (2, False, None),
    "laguna": (4, True, None),
    "llama4": (4, False, 8192),
    "mellum": (4, False, None),
    "muse-glimmer": (4, False, None),
    "olmo2": (4, False, None),
    "plamo3": (8, False, None),
    "smallthinker": (4, True, None),
}
_SLIDING_BY_KEY = frozenset({"gemma4", "mimo2", "step35", "granite_swa", "maple", "spark2_5"})
_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_HYBRID_BY_HEADS = frozenset({"jamba", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "kimi-linear", "kimi-k3", "bailingmoe3"})
_HYBRID_BY_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
_HYBRID_NEMOTRON = frozenset({"nemotron_h", "nemotron_h_moe"})
_NO_CACHE = frozenset(
    {
        "bert",
        "jina-bert-v2",
        "jina-bert-v3",
        "nomic-bert",
        "nomic-bert-moe",
        "neo-bert",
        "eurobert",
        "modern-bert",
        "gemma-embedding",
        "wavtokenizer-dec",
        "dream",
        "llada",
        "llada-moe",
        "rnd1",
    }
)
_SECOND_CACHE = frozenset(
    {"deepseek32", "deepseek4", "glm-dsa", "glm5-next", "minimax-m3", "hy-v4", "dots3note", "qwen4exp", "dflash", "nanbeige"}
)
"""These keep more than is counted here (indexer or compressed caches, looped layers): their figures are a lower bound."""


@dataclass(frozen=True)
class CacheLayer:
    """Cache of one layer: ``k`` and ``v`` elements per token (in the window when ``sliding``), ``state`` f32 per sequence."""

    index: int
    k: int
    v: int
    sliding: bool
    state: int


@dataclass(frozen=True)
class CacheShape:
    """The cache of a model. ``window`` is in tokens (0: nothing slides); ``exact`` is False where more is kept than counted."""

    layers: tuple[CacheLayer, ...]
    window: int
    mla: bool
    exact: bool

    def bytes_per_token(self, type_k: str, type_v: Optional[str] = None) -> int:
        """Bytes that every token of context costs, in layers that see the whole context.

        Raises:
            ValueError: the type is no cache type, the rows are not whole blocks of it, or MLA with unequal types.

        """
        return self._per_token(type_k, type_v, sliding=False)

    def window_bytes_per_token(self, type_k: str, type_v: Optional[str] = None) -> int:
        """Bytes per token in the layers that slide, where only about ``window`` tokens are kept. Raises ValueError."""
        return self._per_token(type_k, type_v, sliding=True)

    @property
    def state_bytes_per_sequence(self) -> int:
        """Bytes of recurrent state per slot, whatever the context (always f32)."""
        return sum(layer.state for layer in self.layers) * 4

    def legal_types(self) -> tuple[str, ...]:
        """Cache types whose blocks fit the rows of every layer, for K and V alike."""
        return tuple(name for name in CACHE_TYPES if all(_fits(layer, name) for layer in self.layers))

    def total_bytes(
        self,
        context: int,
        type_k: str,
        type_v: Optional[str] = None,
        *,
        slots: int = 1,
        unified: bool = False,
        ubatch: int = 512,
        swa_full: bool = False,
    ) -> int:
        """Bytes for ``context`` tokens over all ``slots`` (``-c``, ``-np``), as llama.cpp allocates them. Raises ValueError."""
        if context <= 0 or slots <= 0 or ubatch <= 0:
            raise ValueError("context, slots and ubatch are positive")
        whole = t.padded(context, _PAD_CELLS)
        cells = whole if unified else t.padded(max(whole // slots, 1), _PAD_CELLS)
        streams = 1 if unified else slots
        windowed = cells
        if not swa_full:
            windowed = t.padded(min(cells, self.window * (slots if unified else 1) + ubatch), _PAD_CELLS)
        full = self.bytes_per_token(type_k, type_v) * cells
        sliding = self.window_bytes_per_token(type_k, type_v) * windowed
        return (full + sliding) * streams + self.state_bytes_per_sequence * slots

    def _per_token(self, type_k: str, type_v: Optional[str], *, sliding: bool) -> int:
        type_v = type_k if type_v is None else type_v
        if self.mla and type_k != type_v:
            raise ValueError(f"this model needs equal cache types for K and V, not {type_k} and {type_v}")
        kind_k, kind_v = cache_type(type_k), cache_type(type_v)
        return sum(kind_k.row_bytes(layer.k) + kind_v.row_bytes(layer.v) for layer in self.layers if layer.sliding == sliding)


def cache_type(name: str) -> t.TensorType:
    """The tensor type of a cache type name, in any case. Raises ValueError for names llama-server does not take."""
    if name.lower() not in CACHE_TYPES:
        raise ValueError(f"{name!r} is no cache type (there are {', '.join(CACHE_TYPES)})")
    return t.TYPE_BY_NAME[name.upper()]


def _fits(layer: CacheLayer, name: str) -> bool:
    block = cache_type(name).block
    return layer.k % block == 0 and layer.v % block == 0


def cache_shape(header: Header) -> CacheShape:
    """The cache of the model whose first shard has this header. Raises Malformed for keys of the wrong kind."""
    arch = header.text("general.architecture")
    layers = _Hparams(header, arch)
    mla = layers.number("attention.key_length_mla", 0) > 0 and layers.number("attention.value_length_mla", 0) > 0
    window, slides = _sliding(layers)
    recurrent = _recurrent(layers)
    state = _state_elements(layers) if any(recurrent) else 0
    found = []
    for index in range(layers.trunk):
        heads = 0 if arch in _NO_CACHE or arch in _RECURRENT else layers.kv_heads(index)
        if recurrent[index] and arch != "falcon-h1":
            heads = 0
        if arch in _HYBRID_NEMOTRON and layers.feed_forward(index):
            heads = 0
        if index >= layers.with_cache:
            heads = 0
        key, value = layers.head_sizes(sliding=slides[index])
        has_state = state if recurrent[index] else 0
        if heads or has_state:
            found.append(CacheLayer(index, heads * key, 0 if mla else heads * value, bool(heads) and slides[index], has_state))
    return CacheShape(tuple(found), window if any(layer.sliding for layer in found) else 0, mla, arch not in _SECOND_CACHE)


class _Hparams:
    """Keys of one architecture, scalars or one value per layer, with llama.cpp's defaults."""

    def __init__(self, header: Header, arch: str) -> None:
        self.header = header
        self.arch = arch
        self.layers = min(max(self.number("block_count", 0), 0), 4096)
        self.trunk = max(self.layers - self.number("nextn_predict_layers", 0), 0)
        self.with_cache = self.trunk
        if arch == "gemma3n":
            self.with_cache = 20
        elif arch == "gemma4":
            self.with_cache = self.layers - self.number("attention.shared_kv_layers", 0)

    def number(self, key: str, default: int) -> int:
        value = self.header.get(f"{self.arch}.{key}", default)
        if isinstance(value, tuple):
            value = value[0] if value else default
        if isinstance(value, bool) or not isinstance(value, int):
            return self.header.integer(f"{self.arch}.{key}", default)
        return value

    def per_layer(self, key: str, index: int, default: int) -> int:
        value = self.header.get(f"{self.arch}.{key}", default)
        if isinstance(value, tuple):
            return int(value[index]) if index < len(value) else default
        return self.number(key, default)

    def kv_heads(self, index: int) -> int:
        return self.per_layer("attention.head_count_kv", index, self.per_layer("attention.head_count", index, 0))

    def feed_forward(self, index: int) -> int:
        return self.per_layer("feed_forward_length", index, 0)

    def head_sizes(self, *, sliding: bool) -> tuple[int, int]:
        heads = self.number("attention.head_count", 0)
        if heads <= 0:
            return 0, 0
        plain = self.number("embedding_length", 0) // heads
        key = self.number("attention.key_length", plain)
        value = self.number("attention.value_length", plain)
        if sliding:
            return self.number("attention.key_length_swa", key), self.number("attention.value_length_swa", value)
        return key, value


def _sliding(hparams: _Hparams) -> tuple[int, list[bool]]:
    none = [False] * hparams.trunk
    stated = f"{hparams.arch}.attention.sliding_window"
    pattern = hparams.header.get(f"{stated}_pattern")
    if hparams.arch in ("lfm2", "lfm2moe"):
        window = hparams.number("attention.sliding_window", 0)
        return window, [window > 0 and hparams.kv_heads(index) > 0 for index in range(hparams.trunk)]
    if hparams.arch in _SLIDING:
        period, full_first, window_default = _SLIDING[hparams.arch]
        if hparams.arch == "exaone4" and hparams.trunk != 64:
            return 0, none
        window = hparams.number("attention.sliding_window", 0 if window_default is None else window_default)
        if window > 0 and hparams.arch in ("llama4", "smallthinker"):
            window = 8192 if hparams.arch == "llama4" else 4096
        if window <= 0:
            return 0, none
        if isinstance(pattern, int) and not isinstance(pattern, bool):
            period = pattern
        elif isinstance(pattern, tuple):
            return window, [bool(pattern[index]) if index < len(pattern) else False for index in range(hparams.trunk)]
        return window, [_in_pattern(index, period, full_first=full_first) for index in range(hparams.trunk)]
    if hparams.arch in _SLIDING_BY_KEY and isinstance(pattern, tuple):
        window = hparams.number("attention.sliding_window", 0)
        return window, [bool(pattern[index]) if index < len(pattern) else False for index in range(hparams.trunk)]
    return 0, none


def _in_pattern(index: int, period: int, *, full_first: bool) -> bool:
    if period <= 0:
        return True
    return index % period != 0 if full_first else index % period < period - 1


def _recurrent(hparams: _Hparams) -> list[bool]:
    arch, layers = hparams.arch, range(hparams.trunk)
    if arch in _RECURRENT or arch == "falcon-h1":
        return [True for _ in layers]
    if arch in _HYBRID_BY_HEADS:
        return [hparams.kv_heads(index) == 0 for index in layers]
    if arch in _HYBRID_NEMOTRON:
        return [hparams.kv_heads(index) == 0 and hparams.feed_forward(index) == 0 for index in layers]
    if arch in _HYBRID_BY_INTERVAL:
        stated = hparams.header.get(f"{arch}.attention.recurrent_layers")
        if isinstance(stated, tuple):
            return [bool(stated[index]) if index < len(stated) else False for index in layers]
        interval = max(hparams.number("full_attention_interval", _HYBRID_BY_INTERVAL[arch]), 1)
        return [(index + 1) % interval != 0 for index in layers]
    return [False for _ in layers]


def _state_elements(hparams: _Hparams) -> int:
    """n_embd_r + n_embd_s of llama_hparams: convolution and recurrent state of one layer for one sequence."""
    embedding = hparams.number("embedding_length", 0)
    heads = hparams.number("attention.head_count", 0)
    conv = hparams.number("ssm.conv_kernel", 0)
    inner, state = hparams.number("ssm.inner_size", 0), hparams.number("ssm.state_size", 0)
    if wkv := hparams.number("wkv.head_size", 0):
        return hparams.number("token_shift_count", 2) * embedding + embedding * wkv
    if short := hparams.number("shortconv.l_cache", 0):
        return embedding * (short - 1) + state * inner
    if kda := hparams.number("kda.head_dim", 0):
        return 3 * (conv - 1 if conv > 0 else 3) * heads * kda + kda * kda * heads
    convolution = max(conv - 1, 0) * (inner + 2 * hparams.number("ssm.group_count", 0) * state)
    if hparams.arch == "minimax-01":
        key, _ = hparams.head_sizes(sliding=False)
        return convolution + key * key * heads
    return convolution + state * inner
