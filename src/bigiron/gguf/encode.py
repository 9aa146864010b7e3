"""Bytes of GGUF keys and tensor entries, as ``gguf_write_out`` (ggml/src/gguf.cpp, build 11434) writes them.

Runs on hosts: standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Optional

from . import types as t


def encode_string(text: bytes, order: str = "<") -> bytes:
    """A 64-bit length and the bytes."""
    return struct.pack(order + "Q", len(text)) + text


def encode_value(key: str, value: Any, kind: int, item_kind: Optional[int] = None, order: str = "<") -> bytes:
    """One key with its value; ``kind`` and ``item_kind`` are value types of ``types``, ``order`` is '<' or '>'."""
    parts = [encode_string(key.encode(), order), struct.pack(order + "I", kind)]
    if kind != t.ARRAY:
        parts.append(_scalar(value, kind, order))
    else:
        if item_kind is None:
            raise ValueError("an array needs an item type")
        parts.append(struct.pack(order + "IQ", item_kind, len(value)))
        if item_kind == t.STRING:
            parts.extend(_scalar(item, t.STRING, order) for item in value)
        else:
            parts.append(struct.pack(f"{order}{len(value)}{t.VALUE_FORMATS[item_kind]}", *value))
    return b"".join(parts)


def encode_tensor(name: str, shape: Sequence[int], kind_id: int, offset: int, order: str = "<") -> bytes:
    """One tensor entry. Trailing dimensions of 1 are left out, as ggml_n_dims does."""
    dimensions = list(shape)
    while len(dimensions) > 1 and dimensions[-1] == 1:
        dimensions.pop()
    head = encode_string(name.encode(), order)
    return head + struct.pack(f"{order}I{len(dimensions)}qIQ", len(dimensions), *dimensions, kind_id, offset)


def _scalar(value: Any, kind: int, order: str) -> bytes:
    if kind == t.STRING:
        return encode_string(value if isinstance(value, bytes) else value.encode(), order)
    return struct.pack(order + t.VALUE_FORMATS[kind], value)
