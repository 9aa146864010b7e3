"""The way back: kept when another pair of release and unit proved ready, put in place whole or not at all, and told by drift."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bigiron import parts
from bigiron.errors import EXIT_OK, Refused, Unreachable
from bigiron.fleet import play, rollback, survey
from bigiron.fleet.applying import exit_code
from bigiron.onhost import previous, release
from bigiron.onhost import rollback as onhost
from bigiron.parts.difference import diff
from bigiron.parts.planner import plan_hosts
from fixtures.hostfacts import as_planned, fact
from fixtures.hostroot import look, plant

UNIT = "llama-server-main.service"
PATH = "/etc/bigiron/main.rollback.json"


class Host:
    """A host in a folder: two releases, a unit file, and what systemd would say runs."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.layout = release.Layout(root / "opt")
        self.unit = root / "units" / UNIT
        self.unit.parent.mkdir()
        for module in (previous, onhost):
            monkeypatch.setattr(module, "UNIT_DIR", self.unit.parent)
        self.service = previous.Service(UNIT, root / "key", root / "opt", root / "record")
        self.way = onhost.Way(self.service, root / "rollback.json")
        self.model = root / "model.gguf"
        self.model.touch()
        for mark in ("old", "new"):
            folder = self.layout.release(mark)
            folder.mkdir(parents=True)
            release.write_manifest(folder, mark, {}, {})
        self.runs: dict[str, Any] | None = None
        monkeypatch.setattr(previous, "running", lambda _service: self.runs)

    def serve(self, mark: str, text: str) -> None:
        self.unit.write_text(text)
        release.flip(self.layout, mark)
        files = {str(self.unit): {"text": text, "mode": 0o644, "time": 1}}
        self.runs = {"pid": 7, "host": "127.0.0.1", "port": 8080, "model": str(self.model), "release": mark, "files": files}

    def provision(self, mark: str, text: str) -> None:
        """What the role does around a change."""
        previous.keep(self.service, [])
        self.serve(mark, text)
        onhost.remember(self.way)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_a_first_service_leaves_nothing_to_go_back_to(host: Host) -> None:
    host.provision("old", "one")
    assert not host.way.record.exists()
    with pytest.raises(Refused, match=f"nothing is kept to roll {UNIT} back to"):
        onhost.take_back(host.way, [])


def test_release_and_unit_go_back_together_and_only_once(host: Host) -> None:
    host.provision("old", "one")
    host.provision("new", "two")
    assert host.way.pin.readlink() == Path("releases/old")
    assert onhost.take_back(host.way, []) == {"release": "old", "host": "127.0.0.1", "port": 8080}
    assert (host.unit.read_text(), host.layout.target(host.layout.current)) == ("one", "old")
    assert json.loads(host.service.record.read_text())["release"] == "new"  # put back when the old one does not become ready
    host.serve("old", "one")
    onhost.remember(host.way, rolled_back=True)
    done = host.way.read()["rolled_back"]
    assert (done["from"], done["to"]) == ("new", "old")
    assert not host.service.record.exists()
    with pytest.raises(Refused, match=r"was rolled back already, on 2.* and nothing older is kept") as caught:
        onhost.take_back(host.way, [])
    assert "provision" in str(caught.value.hint)


def test_a_restart_without_another_pair_keeps_the_way_back_it_had(host: Host) -> None:
    host.provision("old", "one")
    host.provision("new", "two")
    host.provision("new", "two")
    assert host.way.read()["kept"]["release"] == "old"


def test_the_plan_brought_back_ends_the_note_and_can_be_rolled_back_again(host: Host) -> None:
    host.provision("old", "one")
    host.provision("new", "two")
    onhost.take_back(host.way, [])
    host.serve("old", "one")
    onhost.remember(host.way, rolled_back=True)
    host.provision("new", "two")
    record = host.way.read()
    assert (record["rolled_back"], record["kept"]["release"]) == (None, "old")


def test_a_plan_that_is_now_what_runs_ends_the_note(host: Host) -> None:
    host.provision("old", "one")
    host.provision("new", "two")
    onhost.take_back(host.way, [])
    host.serve("old", "one")
    onhost.remember(host.way, rolled_back=True)
    host.provision("old", "one")
    assert not host.way.record.exists()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda host: (host.layout.release("old") / "manifest.json").unlink(), "release old is not sound"),
        (lambda host: host.model.unlink(), "which is not there any more"),
    ],
)
def test_a_pair_that_could_not_serve_is_refused_before_anything_is_touched(host: Host, spoil: Any, says: str) -> None:
    host.provision("old", "one")
    host.provision("new", "two")
    spoil(host)
    with pytest.raises(Refused, match=says):
        onhost.take_back(host.way, [])
    assert (host.unit.read_text(), host.layout.target(host.layout.current)) == ("two", "new")
    assert not host.service.record.exists()


def test_no_run_prunes_the_release_of_the_way_back(host: Host) -> None:
    host.provision("old", "one")
    host.provision("new", "two")
    release.point(host.layout.previous, "releases/new")
    assert release.prune(host.layout) == []


def test_the_record_never_holds_the_key(host: Host) -> None:
    host.service.key.write_text("sentinel-key-0123456789")
    host.provision("old", "one")
    assert host.runs
    host.runs["files"][str(host.service.key)] = {"text": "sentinel-key-0123456789", "mode": 0o600, "time": 1}
    host.provision("new", "two")
    assert "sentinel" not in host.way.record.read_text()


# --- seen from the controller --------------------------------------------------------------------------

KEPT = {"release": "old", "host": "127.0.0.1", "port": 8081, "model": "/m", "replaced": "2026-12-01T00:00:00Z"}
DONE = {"from": "newnewnew", "to": "oldoldold", "at": "2026-12-02T00:00:00Z"}


def test_it_is_observed_without_the_text_of_the_unit(tmp_path: Path) -> None:
    record = json.dumps({"kept": {**KEPT, "text": "[Unit]", "mode": 420}, "rolled_back": None})
    plant(tmp_path, {PATH[1:]: record, "etc/x.json": "{"})
    found = look(tmp_path, rollback=[PATH, "/etc/x.json", "/etc/none.json"])["rollbacks"]
    assert found[PATH] == {"kept": {**KEPT, "mode": 420}, "rolled_back": None}
    assert "error" in found["/etc/x.json"]
    assert "/etc/none.json" not in found


def test_drift_says_that_it_was_rolled_back_and_the_service_is_applied_again() -> None:
    plan = plan_hosts([fact()], [])["a"]
    back = {PATH: {"kept": None, "rolled_back": DONE}}
    seen = {**as_planned(plan), "rollbacks": back}
    again = plan_hosts([dataclasses.replace(fact(), observed=seen)], [])["a"]
    found = [each for each in diff(again.planned.resources, seen) if each.resource.startswith("rollback:")]
    assert len(found) == 1
    for words in ("rolled back on 2026-12-02", "newnewnew", "oldoldold", "provision"):
        assert words in found[0].problem
    assert parts.to_apply(each.part for each in found) == ["llama_server"]


class World:
    """Hosts and Ansible replaced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **hosts: Any) -> None:
        self.plays: list[list[str]] = []
        self.asked: list[int] = []
        wish = fact().wish

        @dataclasses.dataclass(frozen=True)
        class Target:
            name: str
            down: None = None

        self.targets = [Target(name) for name in hosts]
        looks = {
            name: Unreachable("no route", where=name)
            if record == "away"
            else survey.Look(one, wish, "", None, {"rollbacks": {PATH: record} if record else {}})  # type: ignore[arg-type]
            for one, (name, record) in zip(self.targets, hosts.items(), strict=True)
        }
        monkeypatch.setattr(survey, "look", lambda targets: {one.name: looks[one.name] for one in targets})
        monkeypatch.setattr(play, "state_dir", lambda *_parts: tmp_path)
        monkeypatch.setattr(play, "new_run", lambda: tmp_path)
        monkeypatch.setattr(play, "run", self.run)
        monkeypatch.setattr(rollback.measure, "complete", self.complete)

    def run(self, playbook: str, _inventories: Any, hosts: list[str], folder: Path, _on_event: Any) -> Any:
        assert playbook == "rollback"
        self.plays.append(list(hosts))
        return play.PlayResult(0, folder / "log", {host: ["x: y"] for host in hosts})

    def complete(self, _target: Any, _wish: Any, _prompt: str, _tokens: int, **where: Any) -> dict[str, Any]:
        self.asked.append(where["port"])
        return {"prefill_tps": 1.0, "generation_tps": 2.0, "prompt_tokens": 1, "generated_tokens": 1}

    def go(self) -> list[Any]:
        return rollback.rollback(self.targets, "inventory/lab", lambda _line: None, quiet=True)  # type: ignore[arg-type]


def test_a_host_goes_back_and_is_asked_where_the_previous_unit_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = World(monkeypatch, tmp_path, a={"kept": KEPT, "rolled_back": None})
    (outcome,) = world.go()
    assert (outcome.status, world.plays, world.asked) == ("rolled back", [["a"]], [8081])
    assert exit_code([outcome]) == EXIT_OK


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (None, "nothing is kept"),
        ({"kept": None, "rolled_back": DONE}, "was rolled back already"),
        ({"error": "x"}, "cannot be read: x"),
    ],
)
def test_one_host_with_nothing_to_go_back_to_stops_the_run_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, record: Any, says: str
) -> None:
    world = World(monkeypatch, tmp_path, a={"kept": KEPT, "rolled_back": None}, b=record)
    with pytest.raises(Refused, match=says) as caught:
        world.go()
    assert caught.value.where == "b"
    assert world.plays == []


def test_a_host_that_is_away_stops_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = World(monkeypatch, tmp_path, a="away", b={"kept": KEPT, "rolled_back": None})
    assert [one.status for one in world.go()] == ["unreachable", "rolled back"]
