"""Split one GGUF into the shards that llama.cpp loads, byte for byte as llama-gguf-split writes them.

Source: ``split_strategy`` in tools/gguf-split/gguf-split.cpp and ``gguf_write_out`` in ggml/src/gguf.cpp (build 11434): the
first shard carries all keys, every shard ``split.no`` (from 0), ``split.tensors.count`` (of the whole set) and ``split.count``;
tensors keep their order, offsets start at 0 in each shard. Runs on hosts: standard library only.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

from . import types as t
from .encode import encode_tensor, encode_value
from .errors import SplitError
from .reader import Header, Tensor, read_header
from .source import CHUNK_BYTES, FileSource, Source

SPLIT_NO = "split.no"
SPLIT_COUNT = "split.count"
SPLIT_TENSORS = "split.tensors.count"
MAX_SHARDS = 65_535


def shard_name(stem: str, number: int, count: int) -> str:
    """File name of shard ``number`` (from 1) of ``count``, as llama_split_path builds it."""
    return f"{stem}-{number:05d}-of-{count:05d}.gguf"


def split_file(source: Path, directory: Path, stem: str, *, max_bytes: int, metadata_first: bool = False) -> list[Path]:
    """Write the shards of ``source`` into ``directory`` and return their paths, first shard first.

    ``max_bytes`` bounds the tensor data of a shard (padded to 32, without the header, as ``--split-max-size`` counts); a tensor
    larger than that gets a shard of its own. With ``metadata_first`` the first shard holds no tensors
    (``--no-tensor-first-split``). Same input, same bytes. Data is streamed; a shard appears under its name only when complete.

    Raises:
        GgufError: the source is not a sound little-endian GGUF, is itself a shard, or a shard exists already.

    """
    with FileSource(source) as opened:
        header = read_header(opened)
        _refuse_unsplittable(header, max_bytes)
        groups = _groups(header.tensors, max_bytes, metadata_first=metadata_first)
        if len(groups) > MAX_SHARDS:
            raise SplitError(
                f"{len(groups)} shards, at most {MAX_SHARDS} are possible", file=header.name, field=SPLIT_COUNT, offset=0
            )
        directory.mkdir(parents=True, exist_ok=True)
        paths = [directory / shard_name(stem, number, len(groups)) for number in range(1, len(groups) + 1)]
        for path in paths:
            if path.exists():
                raise SplitError("a shard of this name exists already", file=str(path), field="file", offset=0)
        for number, (path, tensors) in enumerate(zip(paths, groups, strict=True)):
            _write_shard(opened, header, path, tensors, number=number, count=len(groups))
    return paths


def _refuse_unsplittable(header: Header, max_bytes: int) -> None:
    what, offset = "", 0
    if max_bytes <= 0:
        what = f"a shard of at most {max_bytes} bytes cannot be written"
    elif header.big_endian:
        what = "the file is big-endian; only little-endian files are split"
    elif SPLIT_COUNT in header.keys and header.integer(SPLIT_COUNT, 0) > 1:
        what, offset = "the file is itself a shard of a set", header.keys[SPLIT_COUNT].start
    elif header.tensors and header.data_end > header.file_bytes:
        what, offset = f"the data of tensor {header.tensors[-1].name!r} ends behind the end of the file", header.file_bytes
    if what:
        raise SplitError(what, file=header.name, field="file", offset=offset)


def _groups(tensors: tuple[Tensor, ...], max_bytes: int, *, metadata_first: bool) -> list[list[Tensor]]:
    groups: list[list[Tensor]] = [[], []] if metadata_first and tensors else [[]]
    size = 0
    for tensor in tensors:
        step = t.padded(tensor.nbytes, t.GGUF_DEFAULT_ALIGNMENT)
        if groups[-1] and size + step > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += step
    return groups


def _write_shard(source: Source, header: Header, path: Path, tensors: list[Tensor], *, number: int, count: int) -> None:
    alignment = header.alignment if number == 0 else t.GGUF_DEFAULT_ALIGNMENT
    kept = [entry for entry in header.keys.values() if number == 0 and entry.key not in (SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS)]
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as out:
            out.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(kept) + 3))
            for entry in kept:
                _copy(source, out, entry.start, entry.end - entry.start)
            out.write(encode_value(SPLIT_NO, number, t.UINT16))
            out.write(encode_value(SPLIT_TENSORS, len(header.tensors), t.INT32))
            out.write(encode_value(SPLIT_COUNT, count, t.UINT16))
            offset = 0
            for tensor in tensors:
                out.write(encode_tensor(tensor.name, tensor.shape, tensor.kind.id, offset))
                offset += t.padded(tensor.nbytes, alignment)
            _pad(out, out.tell(), alignment)
            for tensor in tensors:
                _copy(source, out, header.data_offset + tensor.offset, tensor.nbytes)
                _pad(out, tensor.nbytes, alignment)
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _pad(out: BinaryIO, size: int, alignment: int) -> None:
    out.write(bytes(t.padded(size, alignment) - size))


def _copy(source: Source, out: BinaryIO, offset: int, count: int) -> None:
    while count:
        piece = source.read(offset, min(count, CHUNK_BYTES))
        if not piece:
            raise SplitError("the file became shorter while it was read", file=source.name, field="data", offset=offset)
        out.write(piece)
        offset += len(piece)
        count -= len(piece)
