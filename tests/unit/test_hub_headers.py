"""Facts of the quants on a hub, from headers; what a file is, its header says and not its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bigiron.errors import Refused
from bigiron.gguf.reader import read_file
from bigiron.hub import headers
from bigiron.hub.quants import QuantFiles, RepoFile
from bigiron.hub.tree import RepoTree
from fixtures.gguf_models import SMALL_MOE
from fixtures.model_shapes import shape

TREE = RepoTree("http://hub", "lab/repo", "c" * 40, ())


@pytest.fixture
def quants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, QuantFiles]:
    """A model and, under a name that says nothing, a projector; read_url reads the local files."""
    shape(SMALL_MOE, "Q4_K_M", layers=2).write(tmp_path / "model-Q4_K_M.gguf")
    other = shape(SMALL_MOE, "F16", layers=2)
    other.keys = [
        ("general.type", "mmproj", *rest) if name == "general.type" else (name, value, *rest)
        for name, value, *rest in other.keys
    ]
    other.write(tmp_path / "model-F16.gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def read(url: str, **_: Any) -> Any:
        return read_file(tmp_path / url.rsplit("/", 1)[-1])

    monkeypatch.setattr("bigiron.gguf.remote.read_url", read)
    return {name: QuantFiles(name, name, (RepoFile(f"model-{name}.gguf", 1, "a" * 64),)) for name in ("F16", "Q4_K_M")}


def test_a_projector_with_a_models_name_is_no_quant(quants: dict[str, QuantFiles]) -> None:
    assert list(headers.of_quants(TREE, quants)) == ["Q4_K_M"]
    with pytest.raises(Refused, match=r"model-F16.gguf is no model but mmproj"):
        headers.facts(TREE, quants["F16"])


def test_facts_come_from_the_cache_the_second_time(quants: dict[str, QuantFiles], monkeypatch: pytest.MonkeyPatch) -> None:
    first = headers.facts(TREE, quants["Q4_K_M"])

    def none(*_: object, **__: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("bigiron.gguf.remote.read_url", none)
    assert headers.facts(TREE, quants["Q4_K_M"]) == first
