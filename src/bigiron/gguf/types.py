"""GGUF value types and GGML tensor types.

Source: llama.cpp build 11434: ``enum ggml_type`` in ggml/include/ggml.h, ``type_traits`` in ggml/src/ggml.c with the block
structs of ggml/src/ggml-common.h, ``enum gguf_type`` in ggml/include/gguf.h. Runs on hosts: standard library only.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

GGML_MAX_DIMS = 4
GGML_MAX_NAME = 64
GGUF_DEFAULT_ALIGNMENT = 32

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)

VALUE_FORMATS = {
    UINT8: "B",
    INT8: "b",
    UINT16: "H",
    INT16: "h",
    UINT32: "I",
    INT32: "i",
    FLOAT32: "f",
    BOOL: "?",
    UINT64: "Q",
    INT64: "q",
    FLOAT64: "d",
}
"""struct format letter of every scalar value type, without byte order."""

VALUE_SIZES = {kind: struct.calcsize("<" + letter) for kind, letter in VALUE_FORMATS.items()}
"""Bytes of every scalar value type."""

VALUE_NAMES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "arr", "u64", "i64", "f64")


class TensorType(NamedTuple):
    """A GGML type: rows are made of blocks of ``block`` elements that take ``block_bytes`` bytes."""

    id: int
    name: str
    block: int
    block_bytes: int

    @property
    def bits(self) -> float:
        """Bits per weight."""
        return self.block_bytes * 8 / self.block

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row (ggml_row_size); ``elements`` must be a multiple of the block.

        Raises:
            ValueError: it is not.

        """
        if elements % self.block:
            raise ValueError(f"{elements} elements are not whole blocks of {self.block} ({self.name})")
        return elements // self.block * self.block_bytes


TENSOR_TYPES = {
    entry[0]: TensorType(*entry)
    for entry in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 36),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
        (42, "Q2_0", 64, 18),
    )
}
"""By id. 4, 5, 31-33 and 36-38 were removed from the format (31-33 and 36-38: repacked at load time instead)."""

REMOVED_TENSOR_TYPES = frozenset({4, 5, 31, 32, 33, 36, 37, 38})

TYPE_BY_NAME = {kind.name: kind for kind in TENSOR_TYPES.values()}


def padded(size: int, alignment: int) -> int:
    """``size`` rounded up to a multiple of ``alignment`` (GGML_PAD), both in bytes."""
    return -(-size // alignment) * alignment
