"""The plan as an inventory folder for a plain ansible-playbook."""

import json
from types import SimpleNamespace

import pytest

from bigiron import parts
from bigiron.errors import Refused, Unreachable, UsageError
from bigiron.fleet import plandir


def surveyed(name, build_from="archive", *, refusals=(), proved=True, sealed=(), **variables):
    plan = SimpleNamespace(
        release=SimpleNamespace(build_from=build_from), arguments_proved=proved, variables={"base_user": "llama", **variables}
    )
    target = SimpleNamespace(name=name, vars=SimpleNamespace(pending=lambda: dict.fromkeys(sealed, "vault")))
    return SimpleNamespace(name=name, plan=plan, target=target, refusals=list(refusals))


def content(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_replaces_an_earlier_plan_and_leaves_what_a_person_added(tmp_path):
    plandir.write(tmp_path, {"a": {"x": 1}, "b": {"x": 2}})
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text("y: 1\n")
    plandir.write(tmp_path, {"b": {"x": 3}})
    assert content(tmp_path).keys() == {"hosts.yml", "host_vars/b.json", "group_vars/all.yml"}
    assert json.loads((tmp_path / "host_vars" / "b.json").read_text()) == {"x": 3}


@pytest.mark.parametrize("name", ["hosts.yml", "notes.txt"])
def test_another_folder_is_left_alone(tmp_path, name):
    (tmp_path / name).write_text("all: {}\n")
    with pytest.raises(UsageError, match="no folder of an earlier plan"):
        plandir.write(tmp_path, {"a": {}})
    assert content(tmp_path) == {name: "all: {}\n"}


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "plan").write_text("")
    with pytest.raises(UsageError, match="no folder"):
        plandir.write(tmp_path / "plan", {"a": {}})


def test_hands_over_all_parts_and_says_how_to_apply_them(tmp_path):
    folder = str(tmp_path / "my plan")
    lines = plandir.hand_over({"a": surveyed("a"), "b": surveyed("b", "here", proved=False)}, {}, "x,y", folder)
    assert "b: no build could be asked" in lines[0]
    assert lines[-1].endswith(f"ansible-playbook -i x -i y -i '{folder}' --limit a,b playbooks/provision.yml")
    values = json.loads((tmp_path / "my plan" / "host_vars" / "a.json").read_text())
    assert values == {"base_user": "llama", "bigiron_parts": list(parts.NAMES)}


def test_what_the_inventory_keeps_sealed_is_left_to_it(tmp_path):
    plandir.hand_over({"a": surveyed("a", sealed=["base_files"], base_files=[{"content": "secret"}])}, {}, "x", str(tmp_path))
    assert "secret" not in (tmp_path / "host_vars" / "a.json").read_text()


@pytest.mark.parametrize(
    ("surveys", "errors"),
    [
        ({"a": surveyed("a", refusals=[Refused("port 8080 is taken", where="a")])}, {}),
        ({"a": surveyed("a")}, {"b": Unreachable("no route", where="b")}),
    ],
)
def test_nothing_is_written_when_a_host_cannot_be_brought_to_its_plan(tmp_path, surveys, errors):
    (line,) = plandir.hand_over(surveys, errors, "x", str(tmp_path))
    assert line.startswith("nothing was written")
    assert content(tmp_path) == {}


def test_a_host_that_waits_for_another_ones_build_is_refused(tmp_path):
    with pytest.raises(Refused, match="b: its release comes from a") as refused:
        plandir.hand_over({"a": surveyed("a", "here"), "b": surveyed("b", "a")}, {}, "x", str(tmp_path))
    assert "./inv provision --host a first" in refused.value.hint
    assert content(tmp_path) == {}
