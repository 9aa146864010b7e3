"""A new release beside the running service: with which command, when not, and what is said of its tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bigiron.errors import BigironError
from bigiron.onhost import build, release, serving, trial
from bigiron.onhost.system import Output, Tree
from bigiron.units import GIB
from fixtures.hostroot import plant

UNIT = "llama-server-main.service"
HELP = "-m,    --model FNAME\n--threads N\n--n-gpu-layers N\n--no-ui\n--ctx-size N\n"
ARGV = ["/opt/bigiron/current/bin/llama-server", "--model", "/srv/m-00001-of-00002.gguf", "--port", "8080", "--ctx-size", "65536",
        "--threads", "8", "--n-gpu-layers", "-1", "--old-flag", "x", "--no-ui", "--api-key-file", "/run/k", "--parallel", "4"]  # fmt: skip
SERVICE = trial.Running(UNIT, ARGV)


def host(
    root: Path, fingerprint: str = "oldoldold", unit: str = UNIT, available_gib: float = 64
) -> tuple[release.Layout, Tree]:
    """A planted /proc with one process that runs ``fingerprint`` as ``unit``, and a model in two files of 1 MiB."""
    layout = release.Layout(root / "opt/bigiron")
    layout.release(fingerprint).mkdir(parents=True)
    plant(
        root,
        {
            "proc/7/cmdline": "\0".join(ARGV) + "\0",
            "proc/7/cgroup": f"0::/system.slice/{unit}\n",
            "proc/8/cmdline": "sh\0",
            "proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {int(available_gib * GIB / 1024)} kB\n",
            "srv/m-00001-of-00002.gguf": b"x" * 2**20,
            "srv/m-00002-of-00002.gguf": b"x" * 2**20,
        },
    )
    (root / "proc/7/exe").symlink_to(f"{layout.releases.resolve()}/{fingerprint}/bin/llama-server")
    return layout, Tree(str(root))


def test_a_service_that_runs_another_release_is_found_and_no_other(tmp_path: Path) -> None:
    layout, tree = host(tmp_path)
    assert trial.running(layout, "newnewnew", tree) == SERVICE
    assert trial.running(layout, "oldoldold", tree) is None
    assert trial.beside(layout, "oldoldold", "llama", False, lambda *_: None, tree) is None
    (tmp_path / "proc/7/cgroup").write_text("0::/user.slice/session-1.scope\n")
    assert trial.running(layout, "newnewnew", tree) is None


@pytest.mark.parametrize(
    ("change", "on_gpu", "says"),
    [({"available_gib": 1.0}, False, "GiB of memory and 1.0 GiB are available"), ({}, True, "holds the GPU")],
)
def test_what_does_not_fit_is_skipped_and_says_why(tmp_path: Path, change: dict[str, float], on_gpu: bool, says: str) -> None:
    layout, tree = host(tmp_path, **change)  # type: ignore[arg-type]
    answer = trial.beside(layout, "newnewnew", "llama", on_gpu, lambda *_: None, tree)
    assert answer
    assert answer["outcome"] == "skipped"
    assert UNIT in answer["told"]
    assert says in answer["told"]


def test_all_shards_count_and_a_missing_model_is_told(tmp_path: Path) -> None:
    layout, tree = host(tmp_path)
    assert [path.name for path in trial.shards(tmp_path / "srv/m-00001-of-00002.gguf")] == [
        "m-00001-of-00002.gguf",
        "m-00002-of-00002.gguf",
    ]
    service = trial.running(layout, "newnewnew", tree)
    assert service
    assert trial.obstacle(service, False, tree) == ""
    (tmp_path / "srv/m-00001-of-00002.gguf").unlink()
    assert "no model file" in trial.obstacle(service, False, tree)


def test_the_command_is_the_running_one_but_for_address_size_and_what_the_new_build_lacks() -> None:
    argv = trial.arguments(SERVICE, Path("/new/llama-server"), 4711, "/run/k2", HELP)
    assert argv == [
        "/new/llama-server", "--model", "/srv/m-00001-of-00002.gguf", "--threads", "8", "--n-gpu-layers", "-1", "--no-ui",
        "--host", "127.0.0.1", "--port", "4711", "--ctx-size", "512", "--parallel", "1", "--api-key-file", "/run/k2",
    ]  # fmt: skip


def test_other_tokens_are_shown_from_where_they_part() -> None:
    assert trial.compared(UNIT, "a b c", "a b c")["outcome"] == "same"
    answer = trial.compared(UNIT, "the first engine was made", "the first engine is old")
    assert answer["outcome"] == "differs"
    for words in ("'the first engine '", "'is old'", "'was made'", UNIT):
        assert words in answer["told"]


class Systemd:
    """systemd and both servers replaced; keeps what was started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.calls: list[list[str]] = []
        self.dies = self.slow = self.old_silent = False
        self.folder = tmp_path / "release"
        self.folder.mkdir()
        release.write_manifest(self.folder, "release", {}, {"help": HELP})
        monkeypatch.setattr(trial, "start", self.start)
        monkeypatch.setattr(serving, "read_key", lambda path: "k" if path else "")
        monkeypatch.setattr(serving, "show", lambda _unit: {"ActiveState": "active" if self.slow else "failed"})
        monkeypatch.setattr(serving, "wait_ready", self.wait_ready)
        monkeypatch.setattr(serving, "complete", self.complete)

    def start(self, argv: Any, _timeout_s: float = 1.0) -> Any:
        self.calls.append(list(argv))
        # as systemd 252 answers: its `show` cannot print a credential
        text = "[Service]\nLoadCredential=api-key:/etc/bigiron/credentials/main.key\n" if "cat" in argv else "[unprintable]\n"
        return lambda: Output(0, text, "")

    def wait_ready(self, unit: str, *_args: Any, **_more: Any) -> None:
        if self.dies or self.slow:
            raise BigironError("it died of SIGSEGV" if self.dies else "not ready after 900 s", where=unit)

    def complete(self, _host: str, port: int, key: str, *_args: Any) -> dict[str, Any]:
        assert key == "k"
        if port == 8080 and self.old_silent:
            raise BigironError("no completion")
        return {"content": "one"}


def tried(world: Systemd) -> dict[str, str]:
    return trial._tried(SERVICE, world.folder, "llama")


def test_it_runs_as_the_service_user_with_the_services_key_and_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = Systemd(monkeypatch, tmp_path)
    assert tried(world)["outcome"] == "same"
    run = next(call for call in world.calls if call[0] == "systemd-run")
    for word in (
        "--property=User=llama",
        "--property=OOMScoreAdjust=1000",
        "--property=LoadCredential=api-key:/etc/bigiron/credentials/main.key",
    ):
        assert word in run
    assert run[run.index("--") + 1 : run.index("--") + 3] == ["/usr/bin/env", "-i"]
    assert [call[:2] for call in world.calls[-2:]] == [["systemctl", "stop"], ["systemctl", "reset-failed"]]


def test_a_release_that_dies_is_an_error_and_nothing_of_it_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = Systemd(monkeypatch, tmp_path)
    world.dies = True
    with pytest.raises(BigironError, match="the new release does not serve: it died of SIGSEGV") as caught:
        tried(world)
    assert "left alone" in str(caught.value.hint)
    assert world.calls[-2][:2] == ["systemctl", "stop"]


@pytest.mark.parametrize(("attribute", "outcome"), [("slow", "skipped"), ("old_silent", "alone")])
def test_what_cannot_be_told_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, attribute: str, outcome: str) -> None:
    world = Systemd(monkeypatch, tmp_path)
    setattr(world, attribute, True)
    assert tried(world)["outcome"] == outcome


# --- around the move of `current` ----------------------------------------------------------------------


def installed(tmp_path: Path, mark: str, **more: Any) -> dict[str, Any]:
    folder = tmp_path / f"made-{mark}"
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "bin/llama-server").write_text("#!/bin/sh\n")
    (folder / "bin/llama-server").chmod(0o755)
    release.write_manifest(folder, mark, {}, {})
    archive = tmp_path / f"{mark}.tar.gz"
    digest = release.pack(folder, archive)
    wanted = build.Request(
        str(tmp_path / "opt/bigiron"),
        str(tmp_path / "cache"),
        mark,
        {},
        "root",
        archive=str(archive),
        archive_sha256=digest,
        **more,
    )
    return build.ensure(wanted, lambda *_: None)


@pytest.fixture(autouse=True)
def open_folder(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if os.access(folder, os.W_OK) and folder != Path("/") and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)


def test_current_moves_only_after_the_trial_and_the_finding_is_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = release.Layout(tmp_path / "opt/bigiron")
    seen = []

    def beside(_layout: Any, mark: str, *_: Any) -> dict[str, str]:
        seen.append((mark, layout.target(layout.current)))
        return {"outcome": "same", "told": "fine", "unit": UNIT}

    monkeypatch.setattr(trial, "beside", beside)
    installed(tmp_path, "oldoldold")
    assert seen == []  # nothing ran before
    assert installed(tmp_path, "newnewnew")["findings"] == ["fine"]
    assert seen == [("newnewnew", "oldoldold")]
    installed(tmp_path, "oldoldold", trial=False)
    assert len(seen) == 1


def test_a_failed_trial_leaves_current_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def beside(*_: Any) -> None:
        raise BigironError("the new release does not serve")

    installed(tmp_path, "oldoldold")
    monkeypatch.setattr(trial, "beside", beside)
    with pytest.raises(BigironError, match="does not serve"):
        installed(tmp_path, "newnewnew")
    layout = release.Layout(tmp_path / "opt/bigiron")
    assert layout.target(layout.current) == "oldoldold"


def test_a_release_that_is_only_made_touches_nothing_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "beside", lambda *_: pytest.fail("tried"))
    for mark in ("oldoldold", "olderolder"):
        installed(tmp_path, mark, trial=False)
    answer = installed(tmp_path, "newnewnew", activate=False, pack=True)
    layout = release.Layout(tmp_path / "opt/bigiron")
    assert answer["changed"]
    assert Path(answer["packed"]).is_file()
    assert (layout.target(layout.current), layout.target(layout.previous)) == ("olderolder", "oldoldold")
    assert not installed(tmp_path, "newnewnew", activate=False, pack=True)["changed"]
