from __future__ import annotations

import shutil
import subprocess
import tracemalloc
from pathlib import Path

import pytest

from bigiron.gguf import types as t
from bigiron.gguf.errors import SplitError
from bigiron.gguf.reader import read_file
from bigiron.gguf.split import split_file
from fixtures.gguf import GgufFile


def model(path: Path) -> Path:
    file = GgufFile().add("general.architecture", "llama").add("tokenizer.ggml.tokens", ["a", "b\0c", "d"])
    file.add("split.count", 1, t.UINT16)
    for name, rows in (
        ("token_embd.weight", 30),
        ("blk.0.attn_q.weight", 3),
        ("blk.0.attn_k.weight", 1),
        ("output.weight", 30),
    ):
        file.tensor(name, (32, rows), "Q8_0")
    file.tensor("output_norm.weight", (33,))
    path.write_bytes(file.bytes(fill=bytes(range(251))))
    return path


def payload(paths: list[Path]) -> dict[str, bytes]:
    found = {}
    for path in paths:
        header, raw = read_file(path), path.read_bytes()
        for tensor in header.tensors:
            start = header.data_offset + tensor.offset
            found[tensor.name] = raw[start : start + tensor.nbytes]
    return found


def test_every_byte_of_every_tensor_arrives(tmp_path: Path) -> None:
    source = model(tmp_path / "whole.gguf")
    shards = split_file(source, tmp_path / "out", "m", max_bytes=600)
    assert [path.name for path in shards] == [f"m-{n:05d}-of-00004.gguf" for n in (1, 2, 3, 4)]
    assert payload(shards) == payload([source])
    headers = [read_file(path) for path in shards]
    assert [len(header.tensors) for header in headers] == [1, 2, 1, 1]
    assert [header.get("split.no") for header in headers] == [0, 1, 2, 3]
    assert {header.get("split.count") for header in headers} == {4}
    assert {header.get("split.tensors.count") for header in headers} == {5}
    assert [header.data_offset + header.data_bytes - header.file_bytes for header in headers] == [0] * 4


def test_keys_are_in_the_first_shard_only_and_verbatim(tmp_path: Path) -> None:
    source = model(tmp_path / "whole.gguf")
    first, second = (read_file(path) for path in split_file(source, tmp_path, "m", max_bytes=2300))
    before = read_file(source).keys["tokenizer.ggml.tokens"]
    after = first.keys["tokenizer.ggml.tokens"]
    old, new = source.read_bytes(), Path(first.name).read_bytes()
    assert new[after.start : after.end] == old[before.start : before.end]
    assert list(first.keys)[-3:] == ["split.no", "split.tensors.count", "split.count"]
    assert list(second.keys) == ["split.no", "split.tensors.count", "split.count"]
    assert [first.keys[name].kind for name in second.keys] == [t.UINT16, t.INT32, t.UINT16]


def test_metadata_first_shard_holds_no_tensor(tmp_path: Path) -> None:
    shards = split_file(model(tmp_path / "whole.gguf"), tmp_path, "m", max_bytes=10**6, metadata_first=True)
    assert [len(read_file(path).tensors) for path in shards] == [0, 5]
    assert shards[0].stat().st_size % 32 == 0


def test_same_input_same_bytes(tmp_path: Path) -> None:
    source = model(tmp_path / "whole.gguf")
    once, twice = (split_file(source, tmp_path / name, "m", max_bytes=700) for name in ("a", "b"))
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in twice]


def test_the_alignment_of_the_source_holds_in_the_shard_that_states_it(tmp_path: Path) -> None:
    file = GgufFile(alignment=128).add("general.alignment", 128)
    file.tensor("a", (3,)).tensor("b", (5,)).tensor("c", (7,))
    source = tmp_path / "whole.gguf"
    source.write_bytes(file.bytes(fill=b"abcdefg"))
    shards = split_file(source, tmp_path, "m", max_bytes=64)
    assert [read_file(path).alignment for path in shards] == [128, 32]
    assert payload(shards) == payload([source])


def test_a_file_that_lost_its_end_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = model(tmp_path / "whole.gguf")
    header = read_file(source)
    source.write_bytes(source.read_bytes()[: header.data_end - 1])
    with pytest.raises(SplitError, match=r"output_norm\.weight"):
        split_file(source, tmp_path / "out", "m", max_bytes=600)
    assert not (tmp_path / "out").exists()


def test_a_shard_is_not_split_again_and_nothing_is_overwritten(tmp_path: Path) -> None:
    shards = split_file(model(tmp_path / "whole.gguf"), tmp_path, "m", max_bytes=600)
    with pytest.raises(SplitError, match="itself a shard"):
        split_file(shards[0], tmp_path / "again", "m", max_bytes=600)
    with pytest.raises(SplitError, match="exists already"):
        split_file(tmp_path / "whole.gguf", tmp_path, "m", max_bytes=600)


@pytest.mark.parametrize(("option", "metadata_first"), [([], False), (["--no-tensor-first-split"], True)])
def test_the_bytes_are_those_of_llama_gguf_split(tmp_path: Path, option: list[str], metadata_first: bool) -> None:
    """Needs a built release: put its bin folder on PATH."""
    tool = shutil.which("llama-gguf-split")
    if tool is None:
        pytest.skip("llama-gguf-split is not on PATH")
    file = GgufFile().add("general.architecture", "llama").add("words", ["a", "b", "d"]).add("general.alignment", 32)
    for index in range(40):
        file.tensor(f"blk.{index}.attn_q.weight", (32, 1000 + index), "Q8_0").tensor(f"blk.{index}.attn_norm.weight", (33, 1))
    source = tmp_path / "whole.gguf"
    source.write_bytes(file.bytes(fill=bytes(range(251))))
    (tmp_path / "theirs").mkdir()
    command = [tool, "--split", "--split-max-size", "1M", *option, str(source), str(tmp_path / "theirs" / "m")]
    subprocess.run(command, check=True, capture_output=True)
    ours = split_file(source, tmp_path / "ours", "m", max_bytes=10**6, metadata_first=metadata_first)
    theirs = sorted((tmp_path / "theirs").iterdir())
    assert len(ours) >= 2
    assert [path.name for path in ours] == [path.name for path in theirs]
    assert [path.read_bytes() for path in ours] == [path.read_bytes() for path in theirs]


def test_data_is_streamed(tmp_path: Path) -> None:
    source = GgufFile().tensor("big", (64 << 20,), "I8").write(tmp_path / "whole.gguf")
    tracemalloc.start()
    split_file(source, tmp_path, "m", max_bytes=10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
