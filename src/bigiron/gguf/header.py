"""What a GGUF header holds, as data. Runs on hosts: standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from . import types as t
from .errors import Malformed


class KeyValue(NamedTuple):
    """One key of the header: ``items`` values (1 for a scalar) in the bytes ``start`` to ``end`` of the file.

    ``value`` is an int, float, bool or str, a tuple of numbers for a short array, or None when it was skipped (arrays of
    strings, strings over 64 KiB, arrays of more than 4,096 numbers). ``size`` is the bytes of the value without its length.
    """

    key: str
    kind: int
    item_kind: Optional[int]
    items: int
    start: int
    end: int
    size: int
    value: Any


class Tensor(NamedTuple):
    """One tensor: ``shape`` as in GGML (fastest dimension first), ``offset`` in bytes from the start of the data section."""

    name: str
    shape: tuple[int, ...]
    kind: t.TensorType
    offset: int

    @property
    def elements(self) -> int:
        """Number of weights."""
        product = 1
        for dimension in self.shape:
            product *= dimension
        return product

    @property
    def nbytes(self) -> int:
        """Bytes of the data, without padding (ggml_nbytes)."""
        return self.elements // self.kind.block * self.kind.block_bytes


@dataclass(frozen=True)
class Header:
    """The header of one GGUF file. All sizes and offsets are bytes from the start of the file."""

    name: str
    file_bytes: int
    version: int
    big_endian: bool
    keys: dict[str, KeyValue]
    tensors: tuple[Tensor, ...]
    alignment: int
    kv_start: int
    kv_end: int
    header_bytes: int
    data_offset: int

    def get(self, key: str, default: Any = None) -> Any:
        """The value of ``key``, or ``default`` when it is absent or was skipped."""
        found = self.keys.get(key)
        return default if found is None or found.value is None else found.value

    def integer(self, key: str, default: int) -> int:
        """The value of ``key`` as a whole number. Raises Malformed when it is something else."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            found = self.keys[key]
            raise Malformed("must be a whole number", file=self.name, field=f"key {key!r}", offset=found.start)
        return value

    def text(self, key: str) -> str:
        """The value of ``key`` when it is a string, else ''."""
        value = self.get(key, "")
        return value if isinstance(value, str) else ""

    @property
    def data_end(self) -> int:
        """Where the data of the last tensor ends, without padding: a file that is shorter lost weights."""
        if not self.tensors:
            return self.header_bytes
        return self.data_offset + self.tensors[-1].offset + self.tensors[-1].nbytes

    @property
    def data_bytes(self) -> int:
        """Bytes of the data section the tensors ask for, each padded to the alignment."""
        if not self.tensors:
            return 0
        last = self.tensors[-1]
        return last.offset + t.padded(last.nbytes, self.alignment)
