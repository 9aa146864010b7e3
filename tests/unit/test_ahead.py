import json

import jsonschema
import pytest

from bigiron.errors import UsageError
from bigiron.fleet import ahead
from bigiron.gguf.facts import model_facts
from bigiron.gguf.sets import inspect_set
from bigiron.hub.quants import RepoFile
from bigiron.hub.tree import RepoTree
from bigiron.paths import PROJECT
from bigiron.plan.choose import Wish
from fixtures.command import bigiron
from fixtures.gguf import GgufFile, shard_set
from fixtures.gguf_models import KIMI_K2, SMALL_MOE, write_model

MACHINES = sorted(path.stem for path in ahead.MACHINES.glob("*.yml"))
SCHEMA = json.loads((PROJECT / "src/bigiron/plan/schemas/plan.schema.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def kimi(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kimi")
    write_model(folder, KIMI_K2, "Q2_K")
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("small"), SMALL_MOE, "Q4_K_M")[0]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_that_is_shipped_gives_an_answer_about_kimi_k2(machine, kimi):
    plan = ahead.plan(machine, str(kimi), Wish(context=32768))
    assert plan.facts.parameters == 1_026_408_232_448
    for row in plan.memory:
        assert row.used <= row.total or not plan.fits
    document = json.loads(json.dumps(plan.to_json()))
    assert document["model"]["layers"] == 61
    jsonschema.validate(document, SCHEMA)


def test_the_command_prints_a_table_and_json(kimi):
    shown = bigiron("plan", "--machine", "epyc-9354p", "--model", str(kimi), "--context", "131072", "--cache-type", "q8_0")
    assert shown.returncode == 0, shown.stderr
    for expected in ("fits", "372.9 GB", "4.6 GiB", "tok/s", "--cache-type-k q8_0"):
        assert expected in shown.stdout
    data = bigiron("plan", "--machine", "epyc-9354p", "--model", str(kimi), "--json")
    assert json.loads(data.stdout)["model"]["parameters"] == 1_026_408_232_448


def test_a_plan_that_does_not_fit_is_exit_4_and_says_what_would(kimi):
    done = bigiron("plan", "--machine", "lab", "--model", str(kimi), "--context", "1000000")
    assert done.returncode == 4, done.stdout
    assert "instead" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--machine", "epyc-9354"], "epyc-9354p"),
        (["--machine", "no/such.yml"], "no/such.yml"),
        (["--machine", "README.md"], "README.md:"),
        (["--model", "README.md"], "README.md"),
        (["--model", "kimi-k3-nope"], "kimi-k2"),
        (["--model", "owner/repo"], "owner/repository@commit"),
        (["--context", "-1"], "no context"),
        (["--slots", "0"], "no context"),
        (["--cache-type", "q3"], "q8_0"),
        (["--model", ""], "--model is missing"),
    ],
)
def test_wrong_words_are_usage_errors_that_name_them(words, says, small):
    asked = {"--machine": "epyc-9354p", "--model": str(small), words[0]: words[1]}
    done = bigiron("plan", *(word for pair in asked.items() for word in pair))
    assert done.returncode == 64, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_where_the_header_came_from_is_said(monkeypatch, tmp_path, kimi):
    files = (RepoFile("k2-Q2_K.gguf", 1, "a" * 64),)
    listing = RepoTree("http://hub", "org/k2", "c" * 40, files, ("file list of org/k2 from the cache",))
    monkeypatch.setattr(ahead.tree, "commit_of", lambda *_: ("c" * 40, "the hub is down: commit ccc"))
    monkeypatch.setattr(ahead.tree, "list_files", lambda *_: listing)
    monkeypatch.setattr(ahead.headers, "facts", lambda *_: model_facts(inspect_set(kimi).headers))
    plan = ahead.plan("epyc-9354p", "kimi-k2", Wish(quant="Q2_K"))
    assert plan.warnings[:2] == (
        "the hub is down: commit ccc; pin it in inventory/catalogue.yml",
        "file list of org/k2 from the cache",
    )


def test_everything_wrong_with_a_file_is_said(tmp_path):
    parts = shard_set(
        tmp_path, "m", [GgufFile().add("general.architecture", "llama").tensor("token_embd.weight", (8,)), GgufFile()]
    )
    joined = tmp_path / "joined.gguf"
    joined.write_bytes(b"".join(path.read_bytes() for path in parts))
    with pytest.raises(UsageError) as caught:
        ahead.plan("epyc-9354p", str(joined), Wish())
    assert "joined with cat" in caught.value.what
    assert "declares itself part 1 of 2 but the name is not a split name" in caught.value.what


def test_an_unknown_machine_lists_the_known():
    with pytest.raises(UsageError) as caught:
        ahead.plan("mainframe", "x", Wish())
    assert "epyc-9354p" in caught.value.hint
