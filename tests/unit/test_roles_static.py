"""What holds for every role, read from its files: documented variables, prefixes, and that modules say what they take."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from bigiron.onhost.packages import RECORD
from bigiron.paths import PROJECT
from bigiron.plan.places import MADE_FOLDERS

ROLES = sorted(path.name for path in (PROJECT / "roles").iterdir() if path.is_dir())
MODULES = sorted((PROJECT / "plugins" / "modules").glob("*.py"))


def load(*parts: str) -> Any:
    return yaml.safe_load(PROJECT.joinpath(*parts).read_text(encoding="utf-8"))


def tasks(role: str) -> list[tuple[Path, dict[str, Any]]]:
    files = sorted((PROJECT / "roles" / role / "tasks").glob("*.yml"))
    return [(path, task) for path in files for task in yaml.safe_load(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("role", ROLES)
def test_every_default_is_documented_with_its_value_and_the_other_way_round(role: str) -> None:
    entries = load("roles", role, "meta", "argument_specs.yml")["argument_specs"]
    assert entries.keys() == {"main", "remove"}
    options = {**entries["remove"]["options"], **entries["main"]["options"]}
    assert {name: option["default"] for name, option in options.items()} == load("roles", role, "defaults", "main.yml")
    assert all(option["description"] for option in options.values())
    shared = entries["main"]["options"].keys() & entries["remove"]["options"].keys()
    assert all(entries["main"]["options"][name] == entries["remove"]["options"][name] for name in shared)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_published_under_its_own_name(role: str) -> None:
    assert load("roles", role, "meta", "main.yml")["galaxy_info"]["role_name"] == role


@pytest.mark.parametrize("role", ROLES)
def test_variables_carry_the_roles_prefix(role: str) -> None:
    names = set(load("roles", role, "defaults", "main.yml"))
    assert all(name.startswith(f"{role}_") for name in names)
    inner = PROJECT / "roles" / role / "vars" / "main.yml"
    if inner.exists():
        assert all(name.startswith(f"__{role}_") for name in yaml.safe_load(inner.read_text(encoding="utf-8")))
    for path, task in tasks(role):
        made = [task.get("register"), (task.get("loop_control") or {}).get("loop_var"), *(task.get("vars") or {})]
        assert all(name.startswith(f"__{role}_") for name in made if name), path


@pytest.mark.parametrize("path", sorted((PROJECT / "roles").glob("*/templates/*.j2")), ids=lambda path: path.name)
def test_a_role_hands_its_templates_every_variable_that_they_use(path: Path) -> None:
    """A default in the template hides one that is forgotten: then the plan shows other bytes than the role writes."""
    role = path.parents[1]
    parsed = jinja2.Environment().parse(path.read_text(encoding="utf-8"))
    used = {each.name for each in parsed.find_all(jinja2.nodes.Name) if each.name.startswith(f"{role.name}_")}
    text = "".join(each.read_text(encoding="utf-8") for each in [*role.glob("tasks/*.yml"), *role.glob("vars/main.yml")])
    given = set(re.findall(rf"['\" ]({role.name}_\w+)['\"]?: ", text))
    assert used <= given


@pytest.mark.parametrize("role", ROLES)
def test_main_reads_as_a_table_of_contents_and_included_files_say_where_they_are(role: str) -> None:
    for path, task in tasks(role):
        if path.name != "main.yml":
            assert task["name"].startswith(f"{path.stem.capitalize()} | "), (path, task["name"])


@pytest.mark.parametrize("role", ROLES)
def test_nothing_is_ignored_and_no_role_knows_a_group(role: str) -> None:
    for path in (PROJECT / "roles" / role).rglob("*.yml"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\b(ignore_errors|creates:|groups\[|group_names)", text), path


def test_secrets_are_marked_wherever_they_are_declared() -> None:
    for role, name in (("model", "model_token"), ("llama_server", "llama_server_api_key")):
        options = load("roles", role, "meta", "argument_specs.yml")["argument_specs"]["main"]["options"]
        assert options[name]["no_log"] is True


def test_the_record_of_made_folders_is_where_the_plan_looks_for_it() -> None:
    inner = load("roles", "base", "vars", "main.yml")
    assert inner["__base_folder_record"].replace("{{ __base_home }}", inner["__base_home"]) == MADE_FOLDERS
    assert str(RECORD.parent) == inner["__base_home"]


def documented(path: Path) -> dict[str, Any]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DOCUMENTATION":
            return dict(yaml.safe_load(ast.literal_eval(node.value)))
    raise AssertionError(f"{path} has no DOCUMENTATION")


def argument_spec(path: Path) -> dict[str, Any]:
    """The literal keys of ``argument_spec={...}``, with those of a dictionary that stands for several."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "argument_spec" and isinstance(node.value, ast.Dict):
            return {
                key.value: value
                for key, value in zip(node.value.keys, node.value.values, strict=True)
                if isinstance(key, ast.Constant)
            }
    raise AssertionError(f"{path} has no argument_spec")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_module_documents_exactly_what_it_takes_and_supports_check_mode(path: Path) -> None:
    text = documented(path)
    assert text["module"] == path.stem
    assert set(text["options"]) == set(argument_spec(path))
    assert "supports_check_mode=True" in path.read_text(encoding="utf-8")
