"""Reading never builds: what a command does about lab hosts that are down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bigiron import targets
from bigiron.cli import load_tasks, main
from bigiron.errors import Unreachable, UsageError
from bigiron.fleet import applying, play, provision
from bigiron.lab import lab, state

BOOTING = {"provision"}
TASKS = load_tasks()
ELSEWISE = {"hosts", "builds.prune"}
"""They say what they can without those that are down: a lab host that is down has no release that must be kept."""
CONNECTING = sorted(
    name
    for name in TASKS.task_names
    if {"host", "inventory"} <= {one.name for one in TASKS[name].get_arguments()} and name not in ELSEWISE
)
WORDS = {"ask": ["a prompt"]}


def never(*_: object, **__: object) -> None:
    raise AssertionError("a reading command must not get here")


@pytest.fixture
def half_a_lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A lab whose lab01 runs (this very test stands for it), the others not; booting or running a play is an error."""
    me = state.process(1)
    current = state.State("x", "10.1.2.0/24", "10.1.2.1", {"lab01": state.Host("10.1.2.11", me)}, me, "http://10.1.2.1")
    monkeypatch.setattr(state, "load", lambda: current)
    monkeypatch.setattr(state, "INVENTORY_STATE", tmp_path / "90-state.yml")
    (tmp_path / "90-state.yml").touch()
    monkeypatch.setattr(lab, "up", never)
    monkeypatch.setattr(play, "run", never)


@pytest.mark.parametrize("command", [*sorted(set(CONNECTING) - BOOTING), "provision --check"])
@pytest.mark.parametrize("as_json", [False, True])
def test_reading_a_lab_host_that_is_down_says_so_and_boots_nothing(
    half_a_lab: None, command: str, as_json: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*command.split(), *WORDS.get(command, []), "--host", "lab03", *(["--json"] if as_json else [])]
    assert main(["inv", *words]) == 3
    out, err = capfd.readouterr()
    assert "this lab host is down" in out + err
    assert "./inv lab.up --host lab03" in out + err
    if as_json:
        assert err == ""
        json.loads(out)


def test_only_provision_may_boot() -> None:
    assert set(CONNECTING) >= {"probe", "plan", "drift", "status", "verify", "ask", "teardown"} | BOOTING


def test_a_mixed_selection_marks_those_that_are_down_with_one_command(half_a_lab: None) -> None:
    found = targets.select("lab01,lab02,lab07", "", "inventory/lab")
    assert [one.down.hint if one.down else None for one in found] == [None, *["./inv lab.up --host lab02,lab07"] * 2]


def test_an_up_host_without_its_generated_inventory_cannot_be_reached_either(half_a_lab: None) -> None:
    state.INVENTORY_STATE.unlink()
    (one,) = targets.select("lab01", "", "inventory/lab")
    assert isinstance(one.down, Unreachable)


def test_hosts_of_another_inventory_are_never_the_labs(half_a_lab: None) -> None:
    assert [one.down for one in targets.select("all", "", "inventory/example")] == [None] * 3
    (one,) = targets.select("lab03", "", "lab03,")
    assert one.down is None


def test_provision_boots_what_it_names(half_a_lab: None, monkeypatch: pytest.MonkeyPatch) -> None:
    booted: list[dict[str, str]] = []
    monkeypatch.setattr(
        lab, "up", lambda _count, _say, names, releases: booted.append({name: releases[name] for name in names})
    )
    monkeypatch.setattr("bigiron.lab.apt.debian_release", lambda: "bookworm")
    found = targets.select("lab01,lab03,lab09", "", "inventory/lab", boot=print)
    assert booted == [{"lab01": "bookworm", "lab03": "bookworm", "lab09": "trixie"}]
    assert [one.down for one in found] == [None, None, None]


def test_provision_of_what_is_up_boots_nothing(half_a_lab: None) -> None:
    assert [one.name for one in targets.select("lab01", "", "inventory/lab", boot=print)] == ["lab01"]


def test_teardown_still_serves_the_hosts_that_are_up(half_a_lab: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torn: list[list[str]] = []

    def run(_playbook: str, _inventories: object, hosts: list[str], *_: object) -> play.PlayResult:
        torn.append(hosts)
        return play.PlayResult(0, tmp_path / "log")

    monkeypatch.setattr(play, "run", run)
    monkeypatch.setattr(play, "new_run", lambda: tmp_path)
    monkeypatch.setattr(provision.wishes, "read", lambda *_: {"model_root": "/srv/models"})
    outcomes = provision.teardown(targets.select("lab01,lab02", "", "inventory/lab"), "inventory/lab", print, models=False)
    assert torn == [["lab01"]]
    assert {one.host: one.status for one in outcomes} == {"lab02": "unreachable", "lab01": "nothing to remove"}
    assert applying.exit_code(outcomes) == 3


def test_the_fast_path_does_not_pay_for_psutil() -> None:
    script = "import sys; from bigiron import targets; targets.lab.ensure_for([], print); targets.lab.down_errors(['lab01']); print('psutil' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_inventory_says_which_debian_a_lab_host_is() -> None:
    names, releases = targets.of_lab("lab08,lab09")
    assert (names, releases["lab09"], "lab08" in releases) == (["lab08", "lab09"], "trixie", False)
    assert targets.of_lab("")[0] is None
    with pytest.raises(UsageError, match="lab9"):
        targets.of_lab("lab9")


def test_a_release_that_no_lab_host_can_be_is_refused_before_anything_runs(half_a_lab: None, tmp_path: Path) -> None:
    more = tmp_path / "more.yml"
    more.write_text("lab: {hosts: {lab01: {lab_release: trixi}}}\n")
    with pytest.raises(UsageError, match="lab_release is 'trixi'") as caught:
        targets.select("lab01", "", f"inventory/lab,{more}", boot=print)
    assert (caught.value.exit_code, caught.value.where, caught.value.hint) == (64, "lab01", "did you mean trixie?")
