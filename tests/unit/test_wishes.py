"""What a person may set: every wrong value is told before any connection, and each type and default is written once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bigiron.errors import UsageError
from bigiron.onhost.apikey import API_KEY_LENGTH
from bigiron.paths import PROJECT
from bigiron.plan import wishes
from fixtures.hostfacts import VARIABLES as GOOD

KEY = "key-sentinel-0123456789"
MOTD = {"path": "/etc/motd", "content": ""}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(wishes, "_memory", {})
    wishes.schema.cache_clear()
    return tmp_path / "bigiron" / "wishes"


def refused(variables: dict[str, Any], sealed: Any = ()) -> UsageError:
    with pytest.raises(UsageError) as caught:
        wishes.read("epyc01", {**GOOD, **variables}, sealed)
    assert (caught.value.exit_code, caught.value.where) == (64, "epyc01")
    assert caught.value.hint
    return caught.value


def test_defaults_are_safe() -> None:
    wish = wishes.read("h", GOOD)
    names = ("llama_server_host", "llama_server_port", "llama_server_parallel", "llama_cpp_web_ui")
    assert [wish[name] for name in names] == ["127.0.0.1", 8080, 1, False]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("llama_cpp_source_sha256", "abc"),
        ("llama_cpp_source_sha256", None),
        ("llama_cpp_source_url", "ftp://x"),
        ("llama_cpp_source_subdir", "../etc"),
        ("llama_cpp_source_subdir", "/etc"),
        ("llama_cpp_backend", "cuda13"),
        ("llama_cpp_web_ui", "false"),
        ("llama_cpp_extra_options", {"GGML_AMX_TILE": True}),
        ("llama_cpp_extra_options", "GGML_AMX_TILE=ON"),
        ("model_revision", "main"),
        ("model_repo", "no-slash"),
        ("model_root", "srv/models"),
        ("model_root", "~/models"),
        ("model_root", "/tmp"),
        ("model_root", "/etc"),
        ("model_root", "/srv/../etc"),
        ("model_root", "/srv/models/"),
        ("model_root", "/home/models"),
        ("model_reserve_bytes", -1),
        ("llama_server_port", 0),
        ("llama_server_port", 70000),
        ("llama_server_port", True),
        ("llama_server_port", 80.0),
        ("llama_server_port", "http"),
        ("llama_server_context", -1),
        ("llama_server_context", None),
        ("llama_server_service", "../x"),
        ("llama_server_host", "nosuch.example"),
        ("llama_server_host", "localhost"),
        ("llama_server_host", "999.1.1.1"),
        ("llama_server_host", "-x"),
        ("llama_server_extra_args", ["--api-key", "secret"]),
        ("llama_server_extra_args", ["--api-key=secret"]),
        ("llama_server_extra_args", ["--port", "1"]),
        ("llama_server_extra_args", [8]),
        ("llama_server_extra_args", "--metrics"),
        ("base_extra_packages", [1]),
        ("base_extra_packages", ["two words"]),
        ("base_extra_packages", ["-y"]),
        ("base_files", [5]),
        ("base_files", [{"path": "etc/motd", "content": ""}]),
        ("base_files", [{"path": "/etc/motd", "content": 5}]),
        ("base_files", [{"path": "/etc/motd", "content": None}]),
        ("base_files", [{**MOTD, "mode": 0o644}]),
        ("base_files", [{**MOTD, "mode": "644"}]),
        ("base_files", [{**MOTD, "mode": "0666"}]),
        ("base_files", [{"path": "/etc/motd", "contents": ""}]),
        ("base_files", [{"path": "/etc/shadow", "content": ""}]),
    ],
)
def test_wrong_value_names_host_and_variable(variable: str, value: Any) -> None:
    assert variable in refused({variable: value}).what


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("llama_server_contxt", "llama_server_context"),
        ("llama_server_prot", "llama_server_port"),
        ("model_qant", "model_quant"),
        ("base_package", "base_extra_packages"),
        ("llama_cpp_source_url_", "llama_cpp_source_url"),
    ],
)
def test_a_misspelt_variable_is_told_with_the_near_one(typo: str, meant: str) -> None:
    error = refused({typo: "x"})
    assert typo in error.what
    assert meant in str(error.hint)


def test_a_variable_that_the_plan_gives_is_refused() -> None:
    assert "given by the plan" in refused({"llama_server_argv": ["/bin/sh"]}).what


def test_variables_of_others_are_none_of_our_business() -> None:
    assert wishes.read("h", {**GOOD, "ansible_host": "x", "lab_mirror": 1, "modelling": 2}) == wishes.read("h", GOOD)


@pytest.mark.parametrize("variable", sorted(GOOD))
@pytest.mark.parametrize("value", ["unset", ""])
def test_what_the_plan_cannot_do_without_is_asked_for(variable: str, value: str) -> None:
    variables = {name: good for name, good in GOOD.items() if name != variable}
    with pytest.raises(UsageError, match=f"{variable} is not set") as caught:
        wishes.read("h", variables if value == "unset" else {**variables, variable: value})
    assert "group_vars/<group>/" in str(caught.value.hint)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    error = refused({"llama_server_port": 0, "model_root": "/tmp", "model_qant": "x"})
    assert all(name in error.what + str(error.hint) for name in ("llama_server_port", "model_root", "model_qant"))


def test_a_number_written_as_text_is_a_number() -> None:
    assert wishes.read("h", {**GOOD, "llama_server_port": "9000"})["llama_server_port"] == 9000


def test_the_answer_has_every_settable_variable_with_its_type() -> None:
    python = {"str": str, "path": str, "int": int, "bool": bool, "list": list, "dict": dict}
    answer = wishes.read("h", GOOD)
    settable = {name: variable for name, variable in wishes.schema().items() if not variable.computed}
    assert answer.keys() == settable.keys()
    assert {name for name, value in answer.items() if type(value) is not python[settable[name].option["type"]]} == set()


@pytest.mark.parametrize(
    "key", ["two words and more", f"{KEY}\n", f"\n{KEY}", f"#{KEY}", "schlüssel-schlüssel", "k3y", f"{KEY}\x00", f"{KEY}\x1b"]
)
def test_a_key_that_cannot_work_is_refused_and_not_shown(key: str) -> None:
    error = refused({"llama_server_api_key": key})
    assert "llama_server_api_key" in error.what
    assert key.strip() not in json.dumps(error.to_json())
    assert wishes.check_api_key(key)


@given(
    st.text(st.characters(codec="ascii", min_codepoint=0x21, max_codepoint=0x7E), min_size=16).filter(
        lambda text: text[0] != "#"
    )
)
def test_any_printable_key_of_sixteen_characters_is_taken(key: str) -> None:
    assert wishes.check_api_key(key) is None


def test_an_empty_key_is_none() -> None:
    assert wishes.read("h", {**GOOD, "llama_server_api_key": ""}) == wishes.read("h", GOOD)
    assert wishes.schema()["llama_server_api_key"].option["default"] == ""


def test_secrets_are_neither_in_the_answer_nor_in_the_cache(own_cache: Path) -> None:
    wish = wishes.read("h", {**GOOD, "llama_server_api_key": KEY, "model_token": KEY})
    assert wish["llama_server_api_key"] == wish["model_token"] == wishes.GIVEN
    assert wish == wishes.read(
        "h", dict.fromkeys(("llama_server_api_key", "model_token")) | GOOD, ["llama_server_api_key", "model_token"]
    )
    assert not [file for file in own_cache.iterdir() if KEY in file.read_text()]


class Sealed(dict[str, Any]):
    """Variables of which some cannot be opened."""

    def __getitem__(self, name: str) -> Any:
        if super().__getitem__(name) is ...:
            raise AssertionError(f"{name} was opened")
        return super().__getitem__(name)


def test_a_sealed_secret_is_not_opened_and_other_sealed_values_are_checked_but_not_shown(own_cache: Path) -> None:
    sealed = ["llama_server_api_key", "model_endpoint", "model_tokn"]
    variables = Sealed(GOOD, llama_server_api_key=..., model_endpoint=f"https://user:{KEY}@hub")
    assert wishes.read("h", variables, sealed)["model_endpoint"].endswith("@hub")
    assert not [file for file in own_cache.iterdir() if KEY in file.read_text()]
    with pytest.raises(UsageError, match="model_endpoint") as caught:
        wishes.read("h", Sealed(variables, model_endpoint=f"ftp://{KEY}"), sealed)
    assert KEY not in json.dumps(caught.value.to_json())
    with pytest.raises(UsageError, match="no variable model_tokn"):
        wishes.read("h", Sealed(variables, model_tokn=...), sealed)


def test_a_known_set_of_variables_needs_neither_ansible_nor_yaml() -> None:
    script = f"""import sys
from bigiron.plan import wishes
wishes.read("h", {GOOD!r})
print(sorted({{"ansible", "yaml"}} & {{*sys.modules}}))"""
    runs = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(2)]
    assert [run.stdout.strip() for run in runs] == ["['ansible', 'yaml']", "[]"]


def test_hosts_with_the_same_variables_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    typed = wishes._typed
    monkeypatch.setattr(wishes, "_typed", lambda *words: seen.append(words[0]) or typed(*words))
    for number in range(50):
        wishes.read(f"h{number}", {**GOOD, "llama_server_threads": 7, "ansible_host": str(number)})
    assert len(seen) == len(set(seen)) == len(GOOD) + 1


def test_types_and_defaults_are_written_once_and_the_schema_says_only_what_it_may() -> None:
    entries = yaml.safe_load(wishes.SCHEMA.read_text(encoding="utf-8"))
    more = {"required", "unit", "example", "minimum", "maximum", "pattern", "phrase", "check"}
    specs: dict[str, Any] = {}
    for file in (PROJECT / "roles").glob("*/meta/argument_specs.yml"):
        specs |= yaml.safe_load(file.read_text(encoding="utf-8"))["argument_specs"]["main"]["options"]
    for name, entry in entries.items():
        if name in specs:
            assert entry.keys() <= more, name
            assert not specs[name]["description"].endswith(wishes.COMPUTED), name
        else:
            assert (
                {"type", "description"} <= entry.keys() <= more | {"type", "elements", "choices", "default", "description"}
            ), name
            assert ("default" in entry) is not entry.get("required", False), name
        assert entry.get("check", "root") in wishes.CHECKS
        assert "pattern" not in entry or re.compile(entry["pattern"])
        assert not {"pattern", "check"} & entry.keys() or entry["phrase"], name
    assert str(API_KEY_LENGTH) in entries["llama_server_api_key"]["phrase"]


def test_every_example_is_taken() -> None:
    examples = {name: each.option["example"] for name, each in wishes.schema().items() if "example" in each.option}
    assert GOOD.keys() <= examples.keys()
    answer = wishes.read("h", examples)
    files = {"owner": "root", "group": "root"}
    assert {name: answer[name] for name in examples} == {**examples, "base_files": [{**files, **examples["base_files"][0]}]}


@pytest.mark.parametrize("folder", ["lab", "example"])
def test_the_inventories_set_known_variables_only(folder: str) -> None:
    for file in (PROJECT / "inventory" / folder / "group_vars").rglob("*.yml"):
        for name in yaml.safe_load(file.read_text(encoding="utf-8")):
            assert name in wishes.schema(), (file, name)
            assert not wishes.schema()[name].computed
