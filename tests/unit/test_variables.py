"""``./inv vars``: what it shows, and that the page of the docs is what it prints."""

from __future__ import annotations

import json

import pytest

from bigiron import parts
from bigiron.errors import UsageError
from bigiron.paths import PROJECT
from bigiron.plan import wishes
from bigiron.report import variables


@pytest.mark.parametrize("part", parts.NAMES)
def test_the_readme_of_a_role_is_up_to_date(part: str) -> None:
    readme = PROJECT / "roles" / part / "README.md"
    assert readme.read_text(encoding="utf-8") == variables.page(part), f"./inv vars {part} --markdown >{readme}"


def test_a_part_is_listed_alone_and_an_unknown_one_has_no_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert variables.show("model", as_json=True, as_page=False) == 0
    assert {name.partition("_")[0] for name in json.loads(capsys.readouterr().out)} == {"model"}
    with pytest.raises(UsageError, match="'nosuch'"):
        variables.show("nosuch", as_json=False, as_page=True)


def test_a_part_without_variables_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert variables.show("vulkan", as_json=False, as_page=False) == 0
    assert capsys.readouterr().out == "part vulkan has nothing to set: the plan decides\n"
    assert variables.show("vulkan", as_json=True, as_page=False) == 0
    assert json.loads(capsys.readouterr().out) == {}
    assert variables.show("vulkan", as_json=False, as_page=True) == 0
    assert "nothing to set" in capsys.readouterr().out


def test_the_list_has_every_settable_variable_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert variables.show("", as_json=True, as_page=False) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed.keys() == {name for name, each in wishes.schema().items() if not each.computed}
    assert variables.show("", as_json=False, as_page=False) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in listed)


def test_one_variable_is_explained_with_bounds_unit_and_example(capsys: pytest.CaptureFixture[str]) -> None:
    variables.show("llama_server_context", as_json=False, as_page=False)
    text = capsys.readouterr().out
    assert all(word in text for word in ("int", "4096", "tokens", "between 1 and", "llama_server_context: 32768", "./inv only"))


@pytest.mark.parametrize(("name", "says"), [("llama_server_contxt", "llama_server_context"), ("llama_server_argv", "plan")])
def test_a_variable_that_nobody_may_set_is_wrong_usage(name: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        variables.show(name, as_json=False, as_page=False)
    assert says in str(caught.value.hint)
