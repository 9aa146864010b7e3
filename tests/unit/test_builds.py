"""Releases of a lab: which there are and who uses them, which may go, why one is not another, and making one ahead."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bigiron import parts
from bigiron.errors import Refused, Unreachable, UsageError
from bigiron.fleet import building, builds, lock, plandir, survey
from bigiron.parts.part import HOST, RELEASE
from bigiron.plan import releases
from bigiron.plan.build_options import Identity
from bigiron.report import builds as report
from fixtures.fleet import Target, World, surveyed
from fixtures.hostfacts import fact

PREFIX = "/opt/bigiron"
OPTIONS = {"LLAMA_BUILD_COMMIT": "b7", "LLAMA_BUILD_NUMBER": "7", "GGML_CUDA": "ON"}
IDENTITY = {
    "source_sha256": "a" * 64,
    "options": OPTIONS,
    "compiler": "g++ 12.2.0",
    "libc": "glibc 2.36",
    "cpu_baseline": ["avx", "avx2"],
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "releases"
    folder.mkdir()
    for module in (builds, survey):
        monkeypatch.setattr(module, "cache_dir", lambda *_: folder)
    monkeypatch.setattr(lock, "PROJECT", tmp_path)
    return folder


def pack(cache: Path, mark: str, **identity: Any) -> None:
    (cache / f"{mark}.tar.gz").write_bytes(mark.encode())
    survey.describe_release(mark, {**IDENTITY, **identity})


def names(mark: str, inventory: Path, host: str) -> None:
    inventory.mkdir(exist_ok=True)
    lock.write(lock.path_for(str(inventory), host), {"release": {"fingerprint": mark, **IDENTITY}})


def look(current: str, *more: str, back: str = "") -> survey.Look:
    found = {mark: {"ok": True, "manifest": {"identity": IDENTITY}} for mark in (current, *more)}
    observed = {
        "paths": {f"{PREFIX}/current": {"target": f"releases/{current}"}},
        "releases": found,
        "rollbacks": {"/etc/bigiron/main.rollback.json": {"kept": {"release": back}}} if back else {},
    }
    wish = {"llama_server_service": "main"}
    return survey.Look(Target("a"), wish, "", None, observed)  # type: ignore[arg-type]


def asked(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> list[Any]:
    monkeypatch.setattr(survey, "look", lambda targets: {one.name: answers[one.name] for one in targets})
    return [Target(name) for name in answers]


def test_every_release_is_listed_with_who_uses_it(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mark in ("packed", "inuse"):
        pack(cache, mark)
    names("gone", tmp_path / "inv", "b")
    targets = asked(monkeypatch, a=look("inuse", "old", "other", back="old"), c=Unreachable("no route", where="c"))
    found, errors = builds.known(targets, str(tmp_path / "inv"))
    assert {one.fingerprint: one.used_by for one in found} == {
        "packed": [],
        "inuse": ["a (current)"],
        "old": ["a (way back)"],
        "other": ["a (kept)"],
        "gone": ["b (lock)"],
    }
    assert list(errors) == ["c"]
    shown = next(one for one in found if one.fingerprint == "inuse")
    assert (shown.build, shown.backends, shown.platform) == ("b7", "cpu + cuda", "glibc 2.36, g++ 12.2.0, avx2")
    assert report.show_list(found, errors, as_json=True) == 3


def test_a_lock_of_the_same_inventory_is_counted_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventory").mkdir()
    names("mark", tmp_path / "inventory" / "lab", "b")
    found, _ = builds.known([], "inventory/lab")
    assert found[0].used_by == ["b (lock)"]


def test_prune_keeps_what_a_lock_or_a_host_names(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mark in ("locked", "current", "wayback", "free1", "free2"):
        pack(cache, mark)
    names("locked", tmp_path / "inv", "b")
    targets = asked(monkeypatch, a=look("current", "wayback", back="wayback"))
    would, _ = builds.prune(targets, str(tmp_path / "inv"), 0, check=True)
    assert len(list(cache.iterdir())) == 10
    gone, kept = builds.prune(targets, str(tmp_path / "inv"), 1, check=False)
    assert {one.fingerprint for one in would} == {"free1", "free2"}
    assert len(gone) == 1
    assert {one.fingerprint for one in kept} - {"free1", "free2"} == {"locked", "current", "wayback"}
    assert {path.name.partition(".")[0] for path in cache.iterdir()} == {one.fingerprint for one in kept}


def test_prune_removes_nothing_while_a_host_could_use_it(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(cache, "mark")
    targets = asked(monkeypatch, c=Unreachable("no route", where="c"))
    with pytest.raises(Refused, match="c cannot be asked and has no lock") as caught:
        builds.prune(targets, str(tmp_path / "inv"), 0, check=False)
    assert "!c" in str(caught.value.hint)
    assert len(list(cache.iterdir())) == 2
    names("other", tmp_path / "inv", "c")
    assert builds.prune(targets, str(tmp_path / "inv"), 0, check=False)[0]
    with pytest.raises(UsageError, match="-1 releases"):
        builds.prune([], str(tmp_path / "inv"), -1, check=False)


def test_a_lab_host_that_is_down_has_nothing_that_prune_must_wait_for(cache: Path, tmp_path: Path) -> None:
    down = dataclasses.make_dataclass("Down", [("name", str), ("down", object)])("lab01", Unreachable("down"))
    assert builds.prune([down], str(tmp_path / "inv"), 0, check=False) == ([], [])


# --- why it is another fingerprint ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"source_sha256": "b" * 64}, "source SHA-256: b"),
        ({"compiler": "g++ 14.2.0"}, "compiler: g++ 14.2.0 there, g++ 12.2.0 planned"),
        ({"libc": "glibc 2.41"}, "C library: glibc 2.41 there, glibc 2.36 planned"),
        ({"options": {**OPTIONS, "GGML_CUDA": "OFF"}}, "option GGML_CUDA: OFF there, ON planned"),
        ({"options": {**OPTIONS, "X": "1"}}, "option X: 1 there, not set planned"),
        ({"cpu_baseline": ["avx"]}, "CPU: it makes no use of avx2"),
        ({"cpu_baseline": ["avx", "avx2", "fma"]}, "CPU: it needs fma, which the plan does not"),
        ({"toolchains": {"cuda": "13.5"}}, "toolchain cuda: 13.5 there, not set planned"),
        ({"drivers": {"nvidia": "580"}}, "oldest driver nvidia: 580 there, not set planned"),
        ({"only_for": "b"}, "only_for: b there, None planned"),
    ],
)
def test_each_part_of_the_identity_that_differs_is_one_sentence(change: dict[str, Any], says: str) -> None:
    [told] = releases.unlike(IDENTITY, {**IDENTITY, **change})
    assert told.startswith(says)
    assert releases.unlike(IDENTITY, IDENTITY) == []


def explained(monkeypatch: pytest.MonkeyPatch, wanted: str = "") -> list[builds.Likeness]:
    identity = Identity({"source_sha256": "a" * 64}, OPTIONS, "g++ 12.2.0", "glibc 2.36", ("avx", "avx2"))
    one = surveyed("a", "here")
    release = dataclasses.replace(one.plan.release, identity=identity)
    plan = dataclasses.replace(one.plan, facts=dataclasses.replace(one.plan.facts, release=release))
    seen = look("0123456789abcdef", "0123ffff00000000")
    seen.observed["releases"]["0123ffff00000000"]["manifest"]["identity"] = {**IDENTITY, "libc": "glibc 2.41"}
    return builds.explain(dataclasses.replace(one, plan=plan, seen=seen), wanted)


def test_the_release_that_is_most_alike_is_explained_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(cache, "0123ffff00000000", libc="glibc 2.41")
    first, second = explained(monkeypatch)
    assert (first.differences, first.where) == ((), ("a (current)",))
    assert (second.where, len(second.differences)) == (("a", "controller"), 1)
    assert [each.fingerprint for each in explained(monkeypatch, "0123f")] == ["0123ffff00000000"]


@pytest.mark.parametrize(("wanted", "says"), [("0123", "2 releases begin with"), ("0123456789abcdee", "there is no release")])
def test_a_release_that_is_not_there_is_wrong_usage_with_near_names(
    cache: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        explained(monkeypatch, wanted)
    assert "0123456789abcdef" in str(caught.value.hint)


# --- making one ahead -----------------------------------------------------------------------------------


def go(world: World, cache: Path, monkeypatch: pytest.MonkeyPatch, *names: str, arrives: bool = True) -> tuple[Any, Any]:
    """Outcomes by host, and the variables that the roles got."""
    given: dict[str, Any] = {}
    real_write, real_run = plandir.write, world.run

    def run(*words: Any, **more: Any) -> Any:
        for mark in {one["llama_cpp_fetch_to"] for one in given.values() if arrives and one.get("llama_cpp_fetch_to")}:
            Path(mark).write_bytes(b"x")
        return real_run(*words, **more)

    monkeypatch.setattr(plandir, "write", lambda folder, variables: given.update(variables) or real_write(folder, variables))
    monkeypatch.setattr(building.play, "run", run)
    monkeypatch.setattr(survey, "release_archive", lambda mark: cache / f"{mark}.tar.gz")
    done = building.build([Target(name) for name in names], "inventory/lab", lambda _: None, quiet=True)  # type: ignore[misc]
    return {one.host: one for one in done}, given


def test_a_build_takes_nothing_into_use_and_brings_the_release(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch, tmp_path, surveyed("a", "here", *parts.NAMES), surveyed("b", "a", *parts.NAMES))
    done, given = go(world, cache, monkeypatch, "a", "b")
    assert {one.status for one in done.values()} == {"built"}
    assert world.plays == [["a"]]
    assert given["a"]["llama_cpp_activate"] is False
    assert given["a"]["bigiron_parts"] == parts.in_stages(HOST, RELEASE)
    assert world.locks == []


def test_a_release_that_runs_is_packed_and_one_that_is_packed_is_left_alone(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch, tmp_path, surveyed("a", "installed"))
    done, given = go(world, cache, monkeypatch, "a")
    assert (done["a"].status, given["a"]["bigiron_parts"]) == ("built", parts.in_stages(RELEASE))
    one = surveyed("a", "archive", *parts.NAMES)
    held = dataclasses.replace(one.plan.release, archive=survey.cached_releases()[0])
    plan = dataclasses.replace(one.plan, facts=dataclasses.replace(one.plan.facts, release=held))
    world = World(monkeypatch, tmp_path, dataclasses.replace(one, plan=plan))
    assert go(world, cache, monkeypatch, "a")[0]["a"].status == "packed already"
    assert world.plays == []


def test_a_host_without_a_compiler_gets_the_toolchain_first_and_is_planned_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch, tmp_path, surveyed("a", "here", *parts.NAMES, mark=""), surveyed("b", "here", *parts.NAMES))
    world.after_play["a"] = [surveyed("a", "b", *parts.NAMES)]
    done, _ = go(world, cache, monkeypatch, "a", "b")
    assert world.plays == [["a"], ["b"]]
    assert {one.status for one in done.values()} == {"built"}


def test_a_build_that_fails_fails_those_that_wait_for_it(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, tmp_path, surveyed("a", "here", "llama_cpp"), surveyed("b", "a", "llama_cpp"))
    world.fail = {"a"}
    done, _ = go(world, cache, monkeypatch, "a", "b", arrives=False)
    assert (done["a"].status, done["b"].status) == ("failed", "failed")
    assert "a, which builds its release, failed" in str(done["b"].error.hint)


def test_a_release_that_fits_one_host_alone_is_never_another_ones() -> None:
    box = fact("a").machine
    one, two = (
        parts.llama_cpp.candidate(fact(name, box=box, llama_cpp_extra_options={"GGML_NATIVE": "ON"})) for name in ("a", "b")
    )
    assert one.identity.only_for == "a"
    assert {each.build_from for each in releases.choose([one, two], []).values()} == {"here"}
    archive = releases.CachedRelease("x", {**one.identity.to_json(), "compiler": "g++ 12.2.0"}, "x", "")
    chosen = releases.choose([one, two], [archive])
    assert (chosen["a"].build_from, chosen["b"].build_from) == ("archive", "here")


def test_a_packed_release_for_a_newer_driver_is_left_alone() -> None:
    one = parts.llama_cpp.candidate(fact("a"))
    archive = releases.CachedRelease(
        "x", {**one.identity.to_json(), "compiler": "g++ 12.2.0", "drivers": {"nvidia": "580.65.6"}}, "x", ""
    )
    for version, build_from in (("570.124", "here"), ("580.95.5", "archive"), ("", "archive")):
        known = dataclasses.replace(one, drivers={"nvidia": version})
        assert releases.choose([known], [archive])["a"].build_from == build_from


def test_the_json_of_an_explanation_has_the_identity(capsys: pytest.CaptureFixture[str]) -> None:
    one = surveyed("a", "here")
    assert report.show_explained({"a": one}, {"a": []}, {}, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["a"]["planned"] == one.plan.release.fingerprint
