from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bigiron.gguf import types as t
from bigiron.gguf.errors import GgufError
from bigiron.gguf.reader import read_file
from bigiron.gguf.sets import classify, entry_of, find_entries, inspect_set, resolve_entry
from fixtures.gguf import GgufFile, shard_set

MODEL = "kimi"


def shards(*, first_empty: bool = True) -> list[GgufFile]:
    files = [GgufFile().add("general.architecture", "deepseek2"), GgufFile(), GgufFile()]
    if not first_empty:
        files[0].tensor("token_embd.weight", (32,))
    files[1].tensor("blk.0.a", (3200,)).tensor("blk.0.b", (33,))
    files[2].tensor("blk.1.a", (5,))
    return files


def failed(path: Path) -> dict[str, str]:
    report = inspect_set(path)
    json.dumps(report.to_json())
    return {finding.id: finding.detail for finding in report.findings if not finding.ok}


def test_b04_a_first_shard_without_tensors_is_sound(tmp_path: Path) -> None:
    paths = shard_set(tmp_path, MODEL, shards())
    assert read_file(paths[0]).tensors == ()
    report = inspect_set(paths[0])
    assert report.ok
    assert (report.kind, report.architecture, len(report.shards)) == ("model", "deepseek2", 3)
    assert report.findings[-1].detail == "3 files, 3 tensors"


def test_b04_split_no_off_by_one(tmp_path: Path) -> None:
    files = shards()
    files[1].add("split.no", 2, t.UINT16)
    shard_set(tmp_path, MODEL, files)
    found = failed(tmp_path)
    assert list(found) == ["split-no"]
    assert "kimi-00002-of-00003.gguf has split.no 2, expected 1" in found["split-no"]


def test_b05_three_different_failures_name_file_and_both_numbers(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for folder in (one, two, three):
        folder.mkdir()
    files = shards()
    files[2].add("split.count", 4, t.UINT16)
    shard_set(one, MODEL, files)
    assert failed(one) == {"split-count": "kimi-00003-of-00003.gguf: the name says 3 shards, its header says split.count 4"}
    files = shards()
    for file in files:
        file.add("split.count", 4, t.UINT16)
    shard_set(two, MODEL, files)
    assert "the name says 3 shards, every header says split.count 4" in failed(two)["split-count-name"]
    shard_set(three, MODEL, shards(), total=5)
    assert failed(three) == {"tensor-count": "kimi-00001-of-00003.gguf says split.tensors.count 5, the shards hold 3 tensors"}


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shard_set(tmp_path, MODEL, shards())[1].unlink()
    assert failed(tmp_path) == {"missing": f"kimi-00002-of-00003.gguf is missing from {tmp_path}"}


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    files = shards()
    files[2].tensor("blk.0.a", (5,))
    shard_set(tmp_path, MODEL, files)
    assert "blk.0.a" in failed(tmp_path)["duplicate-tensor"]


def test_b01_shards_joined_with_cat_are_refused(tmp_path: Path) -> None:
    parts = shard_set(tmp_path, MODEL, shards(first_empty=False))
    joined = tmp_path / "joined.gguf"
    joined.write_bytes(b"".join(path.read_bytes() for path in parts))
    found = failed(joined)
    assert "declares itself part 1 of 3 but the name is not a split name" in found["split-name"]
    assert "trailing-bytes" in found
    assert "join" not in found["split-name"].partition("name:")[2]


@pytest.mark.parametrize("name", ["m.gguf.part1of2", "m.gguf.part2of2", "m.gguf-split-a", "m.gguf.part00", "m.gguf.001"])
def test_b01_raw_byte_splits_are_another_verdict(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    report = inspect_set(tmp_path / name)
    assert [finding.id for finding in report.findings] == ["raw-split"]
    assert "join all pieces" in report.findings[0].detail
    with pytest.raises(GgufError, match=r"holds no model; .* piece of a raw byte split"):
        inspect_set(tmp_path)


def test_b03_the_entry_is_the_first_shard_whatever_is_given(tmp_path: Path) -> None:
    paths = shard_set(tmp_path, MODEL, shards())
    os.utime(paths[2], (2_000_000_000, 2_000_000_000))
    assert paths[1].stat().st_size > paths[0].stat().st_size
    for given in (tmp_path, *paths):
        assert resolve_entry(given) == paths[0]
        assert inspect_set(given).entry == paths[0]


def test_b15_the_last_byte_of_a_tensor_and_the_padding_behind_it(tmp_path: Path) -> None:
    path = GgufFile().add("general.architecture", "llama").tensor("a", (8,)).tensor("b", (9,)).write(tmp_path / "m.gguf")
    header, whole = read_file(path), path.read_bytes()
    assert len(whole) - header.data_end == 28
    path.write_bytes(whole[: header.data_end - 1])
    found = failed(path)
    assert f"tensor 'b' ends at byte {header.data_end}, the file at {header.data_end - 1}" in found["truncated"]
    path.write_bytes(whole[: header.data_end])
    report = inspect_set(path)
    assert report.ok
    assert [finding.id for finding in report.findings] == ["padding", "sound"]


def test_b16_links_keep_their_names_and_broken_ones_are_named(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for index, path in enumerate(shard_set(blobs, MODEL, shards())):
        path.rename(blobs / f"hash{index}")
        (snapshot / path.name).symlink_to(f"../../blobs/hash{index}")
    report = inspect_set(snapshot)
    assert report.ok
    assert report.entry == snapshot / "kimi-00001-of-00003.gguf"
    assert [shard.file_bytes for shard in report.shards] == [(blobs / f"hash{n}").stat().st_size for n in range(3)]
    (blobs / "hash1").unlink()
    assert "broken link: it points to ../../blobs/hash1" in failed(snapshot)["broken-link"]


def test_b18_mmproj_and_imatrix_are_told_by_their_headers(tmp_path: Path) -> None:
    paths = shard_set(tmp_path, MODEL, shards())
    others = {
        "mmproj": GgufFile().add("general.architecture", "clip").tensor("v.a", (4,)),
        "imatrix": GgufFile().add("general.type", "imatrix").tensor("blk.0.a.in_sum2", (4,)),
        "adapter": GgufFile().add("general.architecture", "llama").add("general.type", "adapter").tensor("x", (4,)),
        "vocabulary": GgufFile().add("general.architecture", "llama"),
    }
    for index, (kind, file) in enumerate(others.items()):
        path = file.write(tmp_path / f"innocent-{index}.gguf")
        assert classify(read_file(path)) == kind
    (tmp_path / "notes.gguf").write_text("not a model")
    assert len(find_entries(tmp_path)) == 6
    assert resolve_entry(tmp_path) == paths[0]


def test_two_models_or_none_are_refused_with_names(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="holds no model"):
        resolve_entry(tmp_path)
    for name in ("a", "b"):
        GgufFile().add("general.architecture", "llama").tensor("x", (4,)).write(tmp_path / f"{name}.gguf")
    with pytest.raises(GgufError, match=r"2 models: a\.gguf, b\.gguf"):
        resolve_entry(tmp_path)


def test_b23_zero_dimension_and_foreign_byte_order_are_findings(tmp_path: Path) -> None:
    zero = GgufFile().add("general.architecture", "llama").tensor("x", (0, 4)).tensor("y", (4,)).write(tmp_path / "zero.gguf")
    assert list(failed(zero)) == ["empty-tensor"]
    big = GgufFile(order=">").add("general.architecture", "llama").tensor("x", (4,)).write(tmp_path / "big.gguf")
    assert list(failed(big)) == ["byte-order"]


def test_b26_sound_is_one_finding_and_known_another(tmp_path: Path) -> None:
    path = GgufFile().add("general.architecture", "tomorrow").tensor("x", (4,)).write(tmp_path / "m.gguf")
    report = inspect_set(path, known_architectures={"llama"})
    assert [(finding.id, finding.ok) for finding in report.findings] == [("architecture-known", False)]
    assert inspect_set(path).ok
    assert inspect_set(path, known_architectures={"tomorrow"}).ok


def test_damage_in_one_shard_is_a_finding_not_an_error(tmp_path: Path) -> None:
    paths = shard_set(tmp_path, MODEL, shards())
    paths[1].write_bytes(b"<html>")
    assert "kimi-00002-of-00003.gguf: magic at byte 0" in failed(tmp_path)["header"]
    assert "No such file" not in failed(tmp_path)["header"]


def test_entry_of_touches_no_disk() -> None:
    assert entry_of(Path("/none/a-00007-of-00009.gguf")) == Path("/none/a-00001-of-00009.gguf")
    assert entry_of(Path("/none/a.gguf")) == Path("/none/a.gguf")
