from __future__ import annotations

import math
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigiron.gguf import types as t
from bigiron.gguf.encode import encode_string, encode_tensor, encode_value
from bigiron.gguf.errors import GgufError, Malformed, NotGguf, SourceError, TooLarge, Truncated, UnknownType, UnsupportedVersion
from bigiron.gguf.reader import MAX_STRINGS, Header, read_file, read_header
from bigiron.gguf.source import CHUNK_BYTES, BytesSource
from fixtures.gguf import GgufFile

SRC = Path(__file__).resolve().parents[3] / "src"


def parse(data: bytes) -> Header:
    return read_header(BytesSource(data, "m.gguf"))


def verdict(data: bytes) -> GgufError | None:
    try:
        parse(data)
    except GgufError as error:
        return error
    return None


def raw(*parts: bytes, keys: int = 0, tensors: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


def sample(order: str = "<", version: int = 3) -> GgufFile:
    file = GgufFile(order=order, version=version)
    for kind, value in (
        (t.UINT8, 200),
        (t.INT8, -3),
        (t.UINT16, 60000),
        (t.INT16, -9),
        (t.UINT32, 4_000_000_000),
        (t.INT32, -7),
    ):
        file.add(f"scalar.{kind}", value, kind)
    file.add("scalar.6", 0.5, t.FLOAT32).add("scalar.7", value=True).add("scalar.10", 2**63, t.UINT64)
    file.add("scalar.11", -(2**62), t.INT64).add("scalar.12", 0.1, t.FLOAT64).add("general.architecture", "llama")
    file.add("numbers", [1, 2, 3], t.UINT32).add("flags", [True, False], t.BOOL).add("strings", ["a", "", "é" * 300])
    return file.tensor("a.weight", (256, 3), "Q4_K").tensor("b", (5,))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type_in_both_byte_orders_and_both_versions(order: str, version: int) -> None:
    header = parse(sample(order, version).bytes())
    assert (header.version, header.big_endian) == (version, order == ">")
    assert [header.get(f"scalar.{kind}") for kind in (0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12)] == [
        200, -3, 60000, -9, 4_000_000_000, -7, 0.5, True, 2**63, -(2**62), 0.1,
    ]  # fmt: skip
    assert header.text("general.architecture") == "llama"
    assert header.get("numbers") == (1, 2, 3)
    assert header.get("flags") == (True, False)
    assert (header.keys["strings"].items, header.get("strings")) == (3, None)
    assert [(x.name, x.shape, x.kind.name, x.nbytes, x.offset) for x in header.tensors] == [
        ("a.weight", (256, 3), "Q4_K", 432, 0),
        ("b", (5,), "F32", 20, 448),
    ]
    assert header.data_offset + header.data_bytes == header.file_bytes


def test_the_type_table_equals_the_structs_of_ggml() -> None:
    half, k = 2, 256
    sizes = {
        "Q4_0": half + 16, "Q4_1": 2 * half + 16, "Q5_0": half + 4 + 16, "Q5_1": 2 * half + 4 + 16, "Q8_0": half + 32,
        "Q8_1": 2 * half + 32, "Q2_K": 2 * half + k // 16 + k // 4, "Q3_K": half + k // 4 + k // 8 + 12,
        "Q4_K": 2 * half + 12 + k // 2, "Q5_K": 2 * half + 12 + k // 2 + k // 8, "Q6_K": half + k // 16 + 3 * k // 4,
        "Q8_K": 4 + k + k // 16 * 2, "IQ2_XXS": half + k // 8 * 2, "IQ2_XS": half + k // 8 * 2 + k // 32,
        "IQ2_S": half + k // 4 + k // 16, "IQ3_XXS": half + 3 * (k // 8), "IQ3_S": half + 13 * (k // 32) + k // 64,
        "IQ1_S": half + k // 8 + k // 16, "IQ1_M": k // 8 + k // 16 + k // 32, "IQ4_NL": half + 16,
        "IQ4_XS": half + 2 + k // 64 + k // 2, "TQ1_0": half + k // 64 + (k - 4 * k // 64) // 5, "TQ2_0": half + k // 4,
        "MXFP4": 1 + 16, "NVFP4": 4 + 32, "Q1_0": half + 16, "Q2_0": half + 16,
    }  # fmt: skip
    assert {name: t.TYPE_BY_NAME[name].block_bytes for name in sizes} == sizes
    assert len(t.TENSOR_TYPES) + len(t.REMOVED_TENSOR_TYPES) == 43


KEY = encode_value("k", 1, t.UINT32)
TENSOR = encode_tensor("x", (32,), 0, 0)
BAD = {
    "kv_count 2^63-1": (raw(keys=2**63 - 1), TooLarge, "key count at byte 16"),
    "negative count": (raw(keys=2**63), Malformed, "key count at byte 16"),
    "5e8 tensors": (raw(tensors=500_000_000), TooLarge, "tensor count at byte 8"),
    "10000 tensors in nothing": (raw(tensors=10_000), Truncated, "tensor count at byte 8"),
    "key of 2^48-1 bytes": (raw(struct.pack("<Q", 2**48 - 1) + bytes(32), keys=1), Truncated, "key 0 length at byte 24"),
    "long key": (raw(encode_string(b"k" * 70_000) + bytes(99), keys=1), Malformed, "at most 65535"),
    "array of 2^32 strings": (
        raw(encode_string(b"k") + struct.pack("<IIQ", 9, 8, 2**32) + bytes(64), keys=1),
        Truncated,
        "key 'k' count at byte 41",
    ),
    "array of 2^62 numbers": (
        raw(encode_string(b"k") + struct.pack("<IIQ", 9, 4, 2**62) + bytes(64), keys=1), Truncated, "key 'k' count",
    ),
    "string in an array leaves the file": (
        raw(encode_string(b"k") + struct.pack("<IIQQQ", 9, 8, 2, 0, 2**63) + bytes(64), keys=1), Truncated, "at byte 57",
    ),
    "1 GiB string": (raw(encode_string(b"k") + struct.pack("<IQ", 8, 1 << 30) + bytes(9), keys=1), Truncated, "'k' length"),
    "empty key": (raw(encode_value("", 1, t.UINT32), keys=1), Malformed, "empty"),
    "duplicate key": (raw(KEY, KEY, keys=2), Malformed, "'k' occurs twice"),
    "key not UTF-8": (raw(encode_string(b"\xff\xfe") + struct.pack("<II", 4, 1), keys=1), Malformed, "not UTF-8"),
    "value type 13": (raw(encode_string(b"k") + struct.pack("<IQQ", 13, 1, 1), keys=1), UnknownType, "value type 13"),
    "array of arrays": (raw(encode_string(b"k") + struct.pack("<IIQQ", 9, 9, 1, 1), keys=1), Malformed, "array of arrays"),
    "alignment 0": (raw(encode_value("general.alignment", 0, t.UINT32), keys=1), Malformed, "not a power of two"),
    "alignment 48": (raw(encode_value("general.alignment", 48, t.UINT32), keys=1), Malformed, "not a power of two"),
    "alignment u64": (raw(encode_value("general.alignment", 32, t.UINT64), keys=1), Malformed, "must be u32, is u64"),
    "alignment 2^30": (
        raw(encode_value("general.alignment", 1 << 30, t.UINT32), TENSOR, bytes(160), keys=1, tensors=1),
        Truncated,
        "data section",
    ),
    "5 dimensions": (raw(encode_tensor("x", (2, 2, 2, 2, 2), 0, 0), bytes(64), tensors=1), Malformed, "5 dimensions"),
    "negative dimension": (raw(encode_tensor("x", (-1,), 0, 0), bytes(64), tensors=1), Malformed, "negative"),
    "shape over 2^63": (raw(encode_tensor("x", (2**40, 2**40), 0, 0), bytes(64), tensors=1), Malformed, "2\\^63"),
    "type 250": (raw(encode_tensor("x", (32,), 250, 0), bytes(64), tensors=1), UnknownType, "tensor type 250 is not known"),
    "type 4": (raw(encode_tensor("x", (32,), 4, 0), bytes(64), tensors=1), UnknownType, "removed"),
    "half a block": (raw(encode_tensor("x", (40,), 2, 0), bytes(64), tensors=1), Malformed, "not whole blocks of 32"),
    "duplicate tensor": (
        raw(TENSOR, encode_tensor("x", (32,), 0, 128), bytes(999), tensors=2), Malformed, "'x' occurs twice",
    ),
    "gap in the data": (raw(TENSOR, encode_tensor("y", (1,), 0, 160), bytes(999), tensors=2), Malformed, "puts it at 128"),
    "overlap": (raw(TENSOR, encode_tensor("y", (1,), 0, 0), bytes(999), tensors=2), Malformed, "puts it at 128"),
    "name of 64 bytes": (raw(encode_tensor("n" * 64, (32,), 0, 0), bytes(64), tensors=1), Malformed, "64 bytes long"),
    "version 0": (raw(version=0), UnsupportedVersion, "no longer supported"),
    "version 1": (b"GGUF" + struct.pack("<III", 1, 2, 3) + bytes(200), UnsupportedVersion, "version 1"),
    "version 4": (raw(version=4), UnsupportedVersion, "newer than supported"),
    "web page": (b"<!doctype html><html>", NotGguf, "magic at byte 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_typed_error_with_file_field_and_offset(case: str) -> None:
    data, kind, pattern = BAD[case]
    with pytest.raises(kind, match=pattern) as caught:
        parse(data)
    assert caught.value.file == "m.gguf"
    assert 0 <= caught.value.offset <= len(data)
    assert str(caught.value).startswith("m.gguf: ")


def test_old_and_new_versions_say_what_to_do() -> None:
    for version, hint in ((1, "re-convert"), (0, "re-convert"), (4, "update")):
        with pytest.raises(UnsupportedVersion) as caught:
            parse(raw(version=version))
        assert hint in (caught.value.hint or "")


def test_a_header_cut_anywhere_is_truncated() -> None:
    data = sample().header()
    end = parse(sample().bytes()).header_bytes
    for cut in range(end):
        with pytest.raises(Truncated):
            parse(data[:cut])


def test_a_missing_file_and_a_broken_link_are_typed(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        read_file(tmp_path / "none.gguf")
    (tmp_path / "link.gguf").symlink_to("blobs/abc")
    with pytest.raises(SourceError, match="broken link: it points to blobs/abc"):
        read_file(tmp_path / "link.gguf")
    with pytest.raises(SourceError):
        read_file(tmp_path)


class Counted(BytesSource):
    """Bytes that note how many are asked for at a time."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, "m.gguf")
        self.asked: list[int] = []

    def read(self, offset: int, count: int) -> bytes:
        self.asked.append(count)
        return super().read(offset, count)


def test_long_legal_metadata_is_read_once_in_large_pieces_and_skipped() -> None:
    file = GgufFile().add("tokenizer.ggml.tokens", [f"token{index}" for index in range(200_000)])
    file.add("tokenizer.ggml.merges", [f"a{index} b" for index in range(300_000)])
    file.add("tokenizer.chat_template", "{{ x }}\0\n" * 8192).add("general.architecture", "llama").tensor("x", (32,))
    source = Counted(file.bytes())
    header = read_header(source)
    assert sum(source.asked) <= source.size
    assert len(source.asked) <= source.size // CHUNK_BYTES + 2
    assert header.keys["tokenizer.ggml.merges"].items == 300_000
    assert header.keys["tokenizer.chat_template"].size == 9 * 8192
    assert header.get("tokenizer.chat_template") is None
    assert header.text("general.architecture") == "llama"


def bombs() -> dict[str, tuple[bytes, int]]:
    """Start of the file and its size (the rest is a hole): files that are huge on paper."""
    strings = encode_string(b"k") + struct.pack("<IIQ", 9, 8, 1 << 30)
    many = encode_string(b"k") + struct.pack("<IIQ", 9, 8, 1 << 22)
    numbers = encode_string(b"k") + struct.pack("<IIQ", 9, 4, 1 << 38)
    long = encode_string(b"k") + struct.pack("<IQ", 8, 1 << 39)
    return {
        "2^30 empty strings": (raw(strings, keys=1), 1 << 40),
        "2^22 empty strings, then nothing": (raw(many, keys=2), 1 << 40),
        "1 TiB of numbers": (raw(numbers, keys=2), 1 << 41),
        "512 GiB string": (raw(long, keys=2), 1 << 40),
        "16384 keys of nothing": (raw(keys=16_384), 1 << 40),
        "65536 tensors of nothing": (raw(tensors=65_536), 1 << 40),
    }


PROBE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))  # the worst takes half a second
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from bigiron.gguf.reader import read_file
from bigiron.gguf.errors import GgufError
before = int(Path("/proc/self/io").read_text().split()[1])
try:
    read_file(Path(sys.argv[2])); print("read", end=" ")
except GgufError as error:
    print(type(error).__name__, end=" ")
print(int(Path("/proc/self/io").read_text().split()[1]) - before, Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


def probe(path: Path) -> tuple[str, int, int]:
    """What became of reading ``path`` in a process of its own, the bytes it read, and its peak of memory in KiB."""
    argv = [sys.executable, "-I", "-S", "-c", PROBE, str(SRC), str(path)]
    kind, read, peak_kib = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    return kind, int(read), int(peak_kib)


@pytest.mark.parametrize("name", bombs())
def test_bombs_cost_little_reading_and_memory(tmp_path: Path, name: str) -> None:
    start, size = bombs()[name]
    path = tmp_path / "bomb.gguf"
    with path.open("wb") as out:
        out.write(start)
        out.truncate(size)
    kind, read, peak_kib = probe(path)
    assert kind in {"Truncated", "TooLarge", "Malformed"}
    assert read < (8 * MAX_STRINGS if "2^22" in name else 0) + 2 * CHUNK_BYTES
    assert peak_kib < 64 << 10


def test_the_most_keys_and_tensors_allowed_stay_under_64_mb(tmp_path: Path) -> None:
    keys = [encode_value(f"key.{index:06d}", index, t.UINT32) for index in range(16_384)]
    tensors = [encode_tensor(f"blk.{index}.some_tensor_name.weight", (0,), 0, 0) for index in range(65_536)]
    path = tmp_path / "many.gguf"
    path.write_bytes(raw(*keys, *tensors, bytes(64), keys=len(keys), tensors=len(tensors)))
    kind, _, peak_kib = probe(path)
    assert kind == "read"
    assert peak_kib < 64 << 10


NAMES = st.text(min_size=1, max_size=30)
VALUES = st.one_of(
    st.tuples(st.just(t.UINT32), st.integers(0, 2**32 - 1)),
    st.tuples(st.just(t.INT64), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(t.BOOL), st.booleans()),
    st.tuples(st.just(t.STRING), st.text(max_size=80)),
    st.tuples(st.just(t.FLOAT64), st.floats(allow_nan=False)),
)


@given(
    keys=st.dictionaries(NAMES.filter(lambda name: name != "general.alignment"), VALUES, max_size=8),
    arrays=st.lists(st.lists(st.text(max_size=20), max_size=20), max_size=3),
    shapes=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), max_size=5),
    order=st.sampled_from("<>"),
)
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_what_is_read(
    keys: dict[str, tuple[int, object]], arrays: list[list[str]], shapes: list[list[int]], order: str
) -> None:
    file = GgufFile(order=order)
    file.keys = [(name, value, kind, None) for name, (kind, value) in keys.items()]
    names = [f"\0array{index}" for index in range(len(arrays))]
    file.keys += [(name, items, t.ARRAY, t.STRING) for name, items in zip(names, arrays, strict=True)]
    for index, shape in enumerate(shapes):
        file.tensor(f"t{index}", tuple(shape))
    header = parse(file.bytes())
    assert {name: header.get(name) for name in keys} == {name: value for name, (_, value) in keys.items()}
    assert [header.keys[name].items for name in names] == [len(items) for items in arrays]
    assert [tensor.elements for tensor in header.tensors] == [math.prod(shape) for shape in shapes]
    assert header.data_offset + header.data_bytes == header.file_bytes


BASE = sample().bytes()


@given(
    edits=st.lists(st.tuples(st.integers(0, len(BASE) - 1), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.integers(0, len(BASE)),
)
@settings(max_examples=500, deadline=None)
def test_damage_never_crashes(edits: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(BASE)
    for place, byte in edits:
        data[place] = byte
    for candidate in (bytes(data), bytes(data[:cut])):
        error = verdict(candidate)
        assert error is None or (error.file == "m.gguf" and 0 <= error.offset <= len(candidate))


@given(
    tail=st.binary(max_size=300), keys=st.integers(0, 2**64 - 1), tensors=st.integers(0, 2**64 - 1), version=st.integers(0, 9)
)
@settings(max_examples=400, deadline=None)
def test_noise_never_crashes(tail: bytes, keys: int, tensors: int, version: int) -> None:
    for data in (tail, raw(tail, keys=keys, tensors=tensors, version=version), raw(tail, keys=2, tensors=1)):
        error = verdict(data)
        assert error is None or error.field


def test_reading_leaves_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw(keys=2**63))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        for _ in range(200):
            with pytest.raises(Malformed):
                read_file(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
