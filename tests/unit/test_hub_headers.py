"""Facts of the quants on a hub, from headers; what a file is, its header says and not its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bigiron.errors import Refused
from bigiron.gguf.errors import SourceError
from bigiron.gguf.reader import read_file
from bigiron.hub import headers, tree
from bigiron.hub.quants import RepoFile
from bigiron.hub.tree import RepoTree
from fixtures.command import bigiron
from fixtures.gguf_models import SMALL_MOE
from fixtures.model_shapes import shape

COMMIT = "c" * 40


def listing(*quants: str, bare: str = "") -> RepoTree:
    """A repository with these quants; the hub knows no SHA-256 of ``bare``. A name with " 1/2" has only its first shard."""
    files = []
    for name in quants:
        stem = name.replace(" 1/2", "-00001-of-00002")
        files.append(RepoFile(f"model-{stem}.gguf", len(files) + 1, None if name == bare else "a" * 64))
    return RepoTree("http://hub", "lab/repo", COMMIT, tuple(files))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good Q4_K_M, a Q8_0 with four bytes of one tensor's description changed, and a projector under the name of an F16."""
    for name in ("F16", "Q8_0", "Q4_K_M"):
        model = shape(SMALL_MOE, name, layers=2)
        if name == "F16":
            model.keys = [(key, "mmproj" if key == "general.type" else value, *rest) for key, value, *rest in model.keys]
        model.write(tmp_path / f"model-{name}.gguf")
    damaged = tmp_path / "model-Q8_0.gguf"
    header = read_file(damaged).header_bytes
    with damaged.open("r+b") as file:
        file.seek(header - 12)  # the last tensor's type, before its offset
        file.write(b"\xff" * 4)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("bigiron.gguf.remote.read_url", lambda url, **_: read_file(tmp_path / url.rsplit("/", 1)[-1]))
    return tmp_path


def test_a_projector_with_a_models_name_is_no_quant(hub: Path) -> None:
    with pytest.raises(Refused, match=r"model-F16.gguf is no model but mmproj"):
        headers.candidates(listing("F16", "Q4_K_M"), "F16")


def test_every_quant_that_is_left_out_is_named_with_its_reason(hub: Path) -> None:
    found = headers.candidates(listing("Q2_K", "IQ1_S 1/2", "F16", "Q8_0", "Q4_K_M", bare="Q2_K"), None)
    assert list(found.quants) == list(found.facts) == ["Q4_K_M"]
    no_sum, incomplete, projector, damaged = found.left_out
    assert no_sum == "quant Q2_K is left out: the hub gives no SHA-256 for model-Q2_K.gguf, so a copy could not be checked"
    assert incomplete.startswith("quant IQ1_S is left out: 1 of 2 shards are missing (model-IQ1_S-00002-of-00002")
    assert "quant F16 is left out" in projector
    assert "no model but mmproj" in projector
    assert damaged.startswith("quant Q8_0 is left out: ")
    assert "model-Q8_0.gguf" in damaged
    assert "tensor type 4294967295 is not known" in damaged


def test_no_quant_left_is_an_error_that_names_each(hub: Path) -> None:
    with pytest.raises(Refused, match=r"no quant can be used: quant Q8_0 is left out: .* type 4294967295") as caught:
        headers.candidates(listing("Q8_0"), None)
    assert caught.value.where == f"lab/repo@{COMMIT[:12]}"


def test_a_hub_that_does_not_answer_says_nothing_about_a_quant(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(url: str, **_: Any) -> Any:
        if "Q8_0" in url:
            raise SourceError("the server did not answer", file=url, field="range", offset=0)
        return read_file(hub / url.rsplit("/", 1)[-1])

    monkeypatch.setattr("bigiron.gguf.remote.read_url", read)
    with pytest.raises(SourceError, match="did not answer"):
        headers.candidates(listing("Q8_0", "Q4_K_M"), None)


def test_a_plan_says_what_it_could_not_consider(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "list_files", lambda *_: listing("Q8_0", "Q4_K_M"))
    words = ("plan", "--machine", "epyc-9354p", "--model", f"lab/repo@{COMMIT}")
    done = bigiron(*words)
    assert done.returncode == 0, done.stderr
    assert "note: quant Q8_0 is left out: " in done.stdout
    document = json.loads(bigiron(*words, "--json").stdout)
    assert document["quant"] == "Q4_K_M"
    assert document["warnings"][0].startswith("quant Q8_0 is left out: ")


def test_facts_come_from_the_cache_the_second_time(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = listing("Q4_K_M")
    first = headers.candidates(repository, "Q4_K_M")

    def none(*_: object, **__: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("bigiron.gguf.remote.read_url", none)
    assert headers.candidates(repository, "Q4_K_M") == first
