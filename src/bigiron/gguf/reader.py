"""Read the header of a GGUF and nothing else.

The rules are those of ``gguf_init_from_reader`` (llama.cpp build 11434, ggml/src/gguf.cpp). Arrays of strings are stepped over
by their lengths, never decoded; long strings and arrays of numbers are skipped. What is read or kept is bounded by the bytes
that remain in the file and by the limits below, so hostile counts cost nothing. Runs on hosts: standard library only.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Optional

from . import types as t
from .errors import Malformed, NotGguf, TooLarge, Truncated, UnknownType, UnsupportedVersion
from .header import Header, KeyValue, Tensor
from .source import Cursor, FileSource, Source

__all__ = ["Header", "KeyValue", "Tensor", "read_file", "read_header"]

MAX_HEADER_BYTES = 256 << 20
MAX_KEYS = 16_384
MAX_TENSORS = 65_536
MAX_STRINGS = 4 << 20
MAX_KEY_BYTES = 65_535
MAX_KEPT_STRING_BYTES = 64 << 10
MAX_KEPT_ITEMS = 4_096
MAX_KEPT_BYTES = 8 << 20
INT64_MAX = (1 << 63) - 1
SIZE_MAX = (1 << 64) - 1

FIRST_FETCH = 8 << 10
_MIN_KEY_VALUE = 13  # length, one letter, type, one byte
_MIN_TENSOR = 40  # length, a short name, dimension count, one dimension, type, offset


def read_file(path: Path) -> Header:
    """The header of a local file. Raises GgufError."""
    with FileSource(path) as source:
        return read_header(source)


def read_header(source: Source) -> Header:
    """The header of ``source``. Raises GgufError: the message names file, field and byte."""
    return _Reader(source).read()


class _Reader:
    def __init__(self, source: Source) -> None:
        self.cursor = Cursor(source, FIRST_FETCH)
        self.name = source.name
        self.order = "<"
        self.kept = 0
        self.strings = 0
        self.tail = 0
        self.u32 = struct.Struct("<I").unpack_from
        self.u64 = struct.Struct("<Q").unpack_from

    def read(self) -> Header:
        cursor = self.cursor
        version = self._version()
        tensor_count = self._count("tensor count", MAX_TENSORS)
        key_count = self._count("key count", MAX_KEYS)
        self._fits(key_count, _MIN_KEY_VALUE, "key count", 16)
        self._fits(tensor_count, _MIN_TENSOR - 15, "tensor count", 8)
        kv_start = cursor.tell()
        keys: dict[str, KeyValue] = {}
        for index in range(key_count):
            self.tail = (key_count - index) * _MIN_KEY_VALUE + tensor_count * _MIN_TENSOR
            found = self._key_value(index)
            if found.key in keys:
                raise self._bad(f"the key {found.key!r} occurs twice", f"key {index}", found.start)
            keys[found.key] = found
        kv_end = cursor.tell()
        alignment = self._alignment(keys)
        tensors = self._tensors(tensor_count, alignment)
        header_bytes = cursor.tell()
        data_offset = t.padded(header_bytes, alignment)
        if tensors and data_offset > cursor.source.size:
            raise Truncated(
                f"it should start at {data_offset} (alignment {alignment}), the file has {cursor.source.size} bytes",
                file=self.name,
                field="data section",
                offset=header_bytes,
            )
        return Header(
            name=self.name,
            file_bytes=cursor.source.size,
            version=version,
            big_endian=self.order == ">",
            keys=keys,
            tensors=tensors,
            alignment=alignment,
            kv_start=kv_start,
            kv_end=kv_end,
            header_bytes=header_bytes,
            data_offset=data_offset,
        )

    def _bad(self, what: str, field: str, offset: int, hint: Optional[str] = None) -> Malformed:
        return Malformed(what, file=self.name, field=field, offset=offset, hint=hint)

    def _version(self) -> int:
        cursor = self.cursor
        cursor.require(4, "magic")
        magic = cursor.window[:4]
        if magic != b"GGUF":
            hint = "an HTML page or an error text instead of the file?" if magic.lstrip()[:1] in (b"<", b"{") else None
            raise NotGguf(f"starts with {magic!r}, not with b'GGUF'", file=self.name, field="magic", offset=0, hint=hint)
        cursor.at = 4
        version = int(self._u32("version"))
        if version and not version & 0xFFFF:  # the other byte order puts the small number into the high bytes
            self.order = ">"
            self.u32 = struct.Struct(">I").unpack_from
            self.u64 = struct.Struct(">Q").unpack_from
            version = int.from_bytes(version.to_bytes(4, "little"), "big")
        if version in (2, 3):
            return version
        if version < 2:
            what, hint = (
                f"GGUF version {version} is no longer supported by llama.cpp",
                "re-convert the model",
            )
        else:
            what, hint = f"GGUF version {version} is newer than supported (2 and 3)", "update bigiron, and llama.cpp with it"
        raise UnsupportedVersion(what, file=self.name, field="version", offset=4, hint=hint)

    def _u32(self, field: str) -> int:
        cursor = self.cursor
        cursor.require(4, field, self.tail)
        value: int = self.u32(cursor.window, cursor.at)[0]
        cursor.at += 4
        return value

    def _u64(self, field: str) -> int:
        cursor = self.cursor
        cursor.require(8, field, self.tail)
        value: int = self.u64(cursor.window, cursor.at)[0]
        cursor.at += 8
        return value

    def _count(self, field: str, limit: int) -> int:
        offset = self.cursor.tell()
        count = self._u64(field)
        if count > INT64_MAX:
            raise self._bad(f"{count} is not a count (negative as a signed number)", field, offset)
        if count > limit:
            raise TooLarge(f"{count} is over the limit of {limit}", file=self.name, field=field, offset=offset)
        return count

    def _fits(self, count: int, each: int, field: str, offset: int) -> None:
        if count * each > self.cursor.remaining():
            raise Truncated(
                f"{count} entries need at least {count * each} bytes, {self.cursor.remaining()} follow",
                file=self.name,
                field=field,
                offset=offset,
                hint="the file is incomplete (an interrupted download?) or damaged",
            )

    def _skip(self, size: int, field: str) -> None:
        cursor = self.cursor
        cursor.skip(size, field)
        if cursor.tell() > MAX_HEADER_BYTES:
            raise TooLarge(
                f"the header goes on beyond {MAX_HEADER_BYTES >> 20} MiB",
                file=self.name,
                field=field,
                offset=cursor.tell() - size,
            )

    def _keep(self, size: int, field: str) -> None:
        self.kept += size
        if self.kept > MAX_KEPT_BYTES:
            raise TooLarge(
                f"keys and short values take more than {MAX_KEPT_BYTES >> 20} MiB",
                file=self.name,
                field=field,
                offset=self.cursor.tell(),
            )

    def _name(self, field: str, limit: int, reason: str) -> str:
        cursor = self.cursor
        offset = cursor.tell()
        length = self._u64(f"{field} length")
        if length > cursor.remaining():
            raise Truncated(
                f"claims {length} bytes, {cursor.remaining()} follow", file=self.name, field=f"{field} length", offset=offset
            )
        if length > limit:
            raise self._bad(f"{length} bytes long, {reason}", field, offset)
        cursor.require(length, field, self.tail)
        raw = cursor.window[cursor.at : cursor.at + length]
        cursor.at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self._bad(f"not UTF-8: {raw[:40]!r}", field, offset) from None

    def _key_value(self, index: int) -> KeyValue:
        cursor = self.cursor
        start = cursor.tell()
        key = self._name(f"key {index}", MAX_KEY_BYTES, f"at most {MAX_KEY_BYTES} are allowed")
        if not key:
            raise self._bad("the key is empty", f"key {index}", start)
        shown = f"key {key[:80]!r}"
        self._keep(len(key), shown)
        kind = self._kind(shown)
        if kind == t.ARRAY:
            item_kind, count, size, value = self._array(shown)
            return KeyValue(key, kind, item_kind, count, start, cursor.tell(), size, value)
        if kind == t.STRING:
            size, text = self._string(shown)
            return KeyValue(key, kind, None, 1, start, cursor.tell(), size, text)
        size = t.VALUE_SIZES[kind]
        cursor.require(size, shown, self.tail)
        value = struct.unpack_from(self.order + t.VALUE_FORMATS[kind], cursor.window, cursor.at)[0]
        cursor.at += size
        return KeyValue(key, kind, None, 1, start, cursor.tell(), size, value)

    def _kind(self, shown: str) -> int:
        offset = self.cursor.tell()
        kind = self._u32(f"{shown} type")
        if kind >= len(t.VALUE_NAMES):
            raise UnknownType(
                f"value type {kind} does not exist (0 to 12 do)", file=self.name, field=f"{shown} type", offset=offset
            )
        return kind

    def _string(self, shown: str) -> tuple[int, Optional[str]]:
        cursor = self.cursor
        offset = cursor.tell()
        length = self._u64(f"{shown} length")
        if length > cursor.remaining():
            raise Truncated(
                f"a string of {length} bytes, {cursor.remaining()} follow",
                file=self.name,
                field=f"{shown} length",
                offset=offset,
            )
        if length > MAX_KEPT_STRING_BYTES:
            self._skip(length, shown)
            return length, None
        self._keep(length, shown)
        cursor.require(length, shown, length + self.tail)
        raw = cursor.window[cursor.at : cursor.at + length]
        cursor.at += length
        return length, raw.decode("utf-8", "replace")

    def _array(self, shown: str) -> tuple[int, int, int, Optional[tuple[Any, ...]]]:
        cursor = self.cursor
        offset = cursor.tell()
        item_kind = self._kind(f"{shown} items")
        if item_kind == t.ARRAY:
            raise self._bad("an array of arrays, which llama.cpp refuses", f"{shown} items", offset)
        count = self._u64(f"{shown} count")
        each = 8 if item_kind == t.STRING else t.VALUE_SIZES[item_kind]
        if count * each > cursor.remaining():
            raise Truncated(
                f"{count} items need at least {count * each} bytes, {cursor.remaining()} follow",
                file=self.name,
                field=f"{shown} count",
                offset=offset + 4,
            )
        if item_kind == t.STRING:
            begin = cursor.tell()
            self._skip_strings(count, shown)
            return item_kind, count, cursor.tell() - begin, None
        size = count * each
        if count > MAX_KEPT_ITEMS:
            self._skip(size, shown)
            return item_kind, count, size, None
        self._keep(count * 40, shown)
        cursor.require(size, shown, size + self.tail)
        values = struct.unpack_from(f"{self.order}{count}{t.VALUE_FORMATS[item_kind]}", cursor.window, cursor.at)
        cursor.at += size
        return item_kind, count, size, values

    def _skip_strings(self, count: int, shown: str) -> None:
        cursor, length_at = self.cursor, self.u64
        self.strings += count
        if self.strings > MAX_STRINGS:
            raise TooLarge(f"more than {MAX_STRINGS} strings", file=self.name, field=shown, offset=cursor.tell())
        begin, total = cursor.tell(), count
        while count:
            done = total - count
            average = (cursor.tell() - begin) // done if done else 8
            cursor.require(8, shown, count * average + self.tail)
            window, at, left = cursor.window, cursor.at, count
            try:
                # The one hot loop: unpack_from raises at the end of the window, which is cheaper than a test in every turn.
                for left in range(count, 0, -1):  # noqa: B007
                    at += 8 + length_at(window, at)[0]
                left = 0
            except (struct.error, OverflowError):
                pass
            if at - cursor.at > cursor.remaining():
                self._explain(count, shown)
            self._skip(at - cursor.at, shown)
            count = left

    def _explain(self, count: int, shown: str) -> None:
        """Walk again, slowly, to name the string that leaves the file."""
        for _ in range(count):
            offset = self.cursor.tell()
            length = self._u64(f"{shown} string length")
            if length > self.cursor.remaining():
                raise Truncated(
                    f"a string of {length} bytes, {self.cursor.remaining()} follow",
                    file=self.name,
                    field=f"{shown} string length",
                    offset=offset,
                )
            self.cursor.skip(length, shown)

    def _alignment(self, keys: dict[str, KeyValue]) -> int:
        found = keys.get("general.alignment")
        if found is None:
            return t.GGUF_DEFAULT_ALIGNMENT
        field = "key 'general.alignment'"
        if found.kind != t.UINT32:
            raise self._bad(f"must be u32, is {t.VALUE_NAMES[found.kind]}", field, found.start)
        alignment = int(found.value)
        if alignment == 0 or alignment & (alignment - 1):
            raise self._bad(f"{alignment} is not a power of two", field, found.start)
        return alignment

    def _tensors(self, count: int, alignment: int) -> tuple[Tensor, ...]:
        cursor = self.cursor
        begin = cursor.tell()
        tensors: list[Tensor] = []
        seen: set[str] = set()
        expected_offset = 0
        for index in range(count):
            average = (cursor.tell() - begin) // index if index else _MIN_TENSOR
            self.tail = (count - index) * average
            start = cursor.tell()
            tensor = self._tensor(index)
            if tensor.name in seen:
                raise self._bad(f"the tensor {tensor.name!r} occurs twice", f"tensor {index}", start)
            seen.add(tensor.name)
            if tensor.offset != expected_offset:
                raise self._bad(
                    f"its data is said to start at {tensor.offset}, contiguous data puts it at {expected_offset}",
                    f"tensor {tensor.name!r} offset",
                    cursor.tell() - 8,
                )
            expected_offset += t.padded(tensor.nbytes, alignment)
            if expected_offset > SIZE_MAX:
                raise self._bad("the sizes so far do not fit into 64 bits", f"tensor {tensor.name!r}", start)
            tensors.append(tensor)
        return tuple(tensors)

    def _tensor(self, index: int) -> Tensor:
        cursor = self.cursor
        limit = t.GGML_MAX_NAME - 1
        name = self._name(f"tensor {index} name", limit, f"llama.cpp allows {limit}")
        field = f"tensor {name!r}"
        offset = cursor.tell()
        dimensions = self._u32(f"{field} dimension count")
        if dimensions > t.GGML_MAX_DIMS:
            raise self._bad(f"{dimensions} dimensions, at most {t.GGML_MAX_DIMS} are allowed", field, offset)
        cursor.require(8 * dimensions + 12, field, self.tail)
        shape: tuple[int, ...] = struct.unpack_from(f"{self.order}{dimensions}q", cursor.window, cursor.at)
        cursor.at += 8 * dimensions
        elements = 1
        for dimension in shape:
            if dimension < 0:
                raise self._bad(f"dimension {dimension} is negative", f"{field} shape", offset + 4)
            elements *= max(dimension, 1)
        if elements > INT64_MAX:
            raise self._bad(f"the shape {list(shape)} has more than 2^63 elements", f"{field} shape", offset + 4)
        kind_id = self._u32(f"{field} type")
        kind = t.TENSOR_TYPES.get(kind_id)
        if kind is None:
            removed = kind_id in t.REMOVED_TENSOR_TYPES
            raise UnknownType(
                f"tensor type {kind_id} was removed from the format" if removed else f"tensor type {kind_id} is not known",
                file=self.name,
                field=f"{field} type",
                offset=cursor.tell() - 4,
                hint="re-quantize the model" if removed else "written for ik_llama.cpp or for a newer llama.cpp?",
            )
        row = shape[0] if shape else 1
        if row % kind.block:
            raise self._bad(
                f"rows of {row} elements are not whole blocks of {kind.block} ({kind.name})", f"{field} shape", offset + 4
            )
        if elements // kind.block * kind.block_bytes > SIZE_MAX - (1 << 32):
            raise self._bad("its size in bytes does not fit into 64 bits", f"{field} shape", offset + 4)
        return Tensor(name, shape, kind, self._u64(f"{field} offset"))
