"""The hub's HTTP API laid out as static files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from bigiron.lab import hubfiles

WEIGHTS = b"GGUF" * 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    top = tmp_path / "content"
    (top / "Q4/deep").mkdir(parents=True)
    (top / "Q4/deep/x-00001-of-00002.gguf").write_bytes(WEIGHTS)
    (top / "README.md").write_text("hello\n")
    return top


def test_git_names_content_as_git_does() -> None:
    # `printf 'hello\n' | git hash-object --stdin`
    assert hubfiles.git_blob(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_weights_are_lfs_files_and_text_is_not(folder: Path) -> None:
    weights, readme = hubfiles.describe(folder)
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    assert (weights.path, weights.size, weights.etag, weights.lfs) == ("Q4/deep/x-00001-of-00002.gguf", 400, digest, True)
    assert weights.entry()["lfs"] == {"oid": digest, "size": 400, "pointerSize": 128}
    assert readme.etag == hubfiles.git_blob(b"hello\n")
    assert "lfs" not in readme.entry()


def test_the_revision_depends_on_names_and_contents_only(folder: Path) -> None:
    files = hubfiles.describe(folder)
    before = hubfiles.revision_of(files)
    assert len(before) == 40
    assert hubfiles.revision_of(files[::-1]) == before
    (folder / "README.md").write_text("other\n")
    assert hubfiles.revision_of(hubfiles.describe(folder)) != before


def paths(entries: list[dict[str, object]]) -> list[tuple[object, object]]:
    return [(entry["type"], entry["path"]) for entry in entries]


def test_listings_show_directories_as_the_hub_does(folder: Path) -> None:
    files = hubfiles.describe(folder)
    shard = ("file", "Q4/deep/x-00001-of-00002.gguf")
    everything = [("directory", "Q4"), ("directory", "Q4/deep"), shard, ("file", "README.md")]
    assert paths(hubfiles.listing(files, "", recursive=True)) == everything
    assert paths(hubfiles.listing(files, "", recursive=False)) == [("directory", "Q4"), ("file", "README.md")]
    assert paths(hubfiles.listing(files, "Q4", recursive=True)) == [("directory", "Q4/deep"), shard]
    assert paths(hubfiles.listing(files, "Q4/deep", recursive=False)) == [shard]


def test_publishing_twice_changes_nothing_and_is_read_back(folder: Path, tmp_path: Path) -> None:
    root, files = tmp_path / "root", hubfiles.describe(folder)
    (root / "repos/o/r").mkdir(parents=True)
    for _ in range(2):
        hubfiles.publish(root, "o/r", "c" * 40, files)
    assert hubfiles.published(root) == {"o/r": {"c" * 40: ("c" * 40, files), "main": ("c" * 40, files)}}
    assert (root / "repos/o/r/main").readlink() == Path("c" * 40)
    assert json.loads((root / "api/models/o/r.json").read_text())["sha"] == "c" * 40
    assert len(json.loads((root / "api/models/o/r/tree/main.json").read_text())) == 4


def test_the_maps_carry_the_hubs_headers(folder: Path) -> None:
    text = hubfiles.maps({"o/r.x": {"main": ("c" * 40, hubfiles.describe(folder))}}, {"a.tar.gz": "d" * 64})
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    assert f"'/repos/o/r.x/main/Q4/deep/x-00001-of-00002.gguf' '\"{digest}\"';" in text
    assert f"'/repos/o/r.x/main/README.md' '{'c' * 40}';" in text
    assert f"'/sources/a.tar.gz' '\"{'d' * 64}\"';" in text
    assert "'/repos/o/r.x/main/README.md' '400'" not in text


def test_a_repository_name_is_no_pattern(folder: Path) -> None:
    text = hubfiles.maps({"o/r.x": {"main": ("c" * 40, [])}}, {})
    assert r"~^/o/r\\.x/resolve/main/" in text


def test_quotes_in_a_file_name_do_not_end_the_string(folder: Path) -> None:
    odd = hubfiles.RepoFile("it's $5.gguf", 1, "e" * 64, "f" * 40, lfs=True)
    text = hubfiles.maps({"o/r": {"main": ("c" * 40, [odd])}}, {})
    assert r"'/repos/o/r/main/it\'s $5.gguf'" in text
