"""The lab's record: processes are identified by pid and start time, and nothing else is ever signalled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bigiron import paths
from bigiron.errors import BigironError, UsageError
from bigiron.lab import state


@pytest.fixture
def sleeper() -> subprocess.Popen[bytes]:
    child = subprocess.Popen(["sleep", "3600"])
    yield child
    child.kill()
    child.wait()


@pytest.fixture
def lab_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(state, "LAB", tmp_path)
    return tmp_path


def test_a_process_is_itself_until_it_ends(sleeper: subprocess.Popen[bytes]) -> None:
    one = state.process(sleeper.pid)
    assert one is not None
    assert one.alive()
    assert one.send(signal.SIGTERM)
    assert one.wait_gone(60)
    assert not one.send(signal.SIGTERM)


def test_a_recycled_pid_is_not_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    found = state.process(sleeper.pid)
    assert found is not None
    other = state.Process(found.pid, found.start - 1)
    assert not other.alive()
    assert not other.send(signal.SIGKILL)
    assert sleeper.poll() is None


def test_a_zombie_does_not_count_as_alive() -> None:
    child = subprocess.Popen(["true"])
    one = state.process(child.pid)
    deadline = time.monotonic() + 60
    while one is not None and one.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert state.start_time(child.pid) is None
    child.wait()


def test_a_name_with_blanks_and_brackets_does_not_shift_the_fields(tmp_path: Path) -> None:
    program = tmp_path / "a ) R 1 2"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([program, "60"])
    try:
        assert state.start_time(child.pid) == pytest.approx(state.start_time(os.getpid()), abs=1e9)
        assert state.start_time(child.pid) >= state.start_time(os.getpid())
    finally:
        child.kill()
        child.wait()


def test_processes_are_found_by_whole_arguments() -> None:
    word = f"61.{os.getpid()}5"
    child = subprocess.Popen(["sleep", word])
    try:
        deadline = time.monotonic() + 60  # between fork and exec it still has the arguments of its parent
        while not (found := state.find_processes(word)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [one.pid for one in found] == [child.pid]
        assert state.find_processes(word[:-1]) == []
    finally:
        child.kill()
        child.wait()


def record(boot: str) -> state.State:
    hosts = {"lab01": state.Host("10.1.2.11", state.Process(1, 2))}
    return state.State(boot, "10.1.2.0/24", "10.1.2.1", hosts, state.Process(3, 4), "http://10.1.2.1")


def test_the_record_survives_a_round_trip(lab_folder: Path) -> None:
    kept = record(state.boot_id())
    state.save(kept)
    assert state.load() == kept
    assert (lab_folder / "state.json").stat().st_mode & 0o777 == 0o600


def test_after_a_reboot_addresses_count_and_processes_do_not(lab_folder: Path) -> None:
    state.save(record("another boot"))
    loaded = state.load()
    assert loaded is not None
    assert loaded.hosts == {"lab01": state.Host("10.1.2.11")}
    assert loaded.mirror is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"boot_id": "x", "subnet": "y"})])
def test_a_damaged_record_is_no_record(lab_folder: Path, text: str) -> None:
    (lab_folder / "state.json").write_text(text)
    assert state.load() is None


def test_hosts_are_replaced_and_removed_by_name() -> None:
    one = record("x").with_host("lab02", state.Host("10.1.2.12"))
    assert list(one.hosts) == ["lab01", "lab02"]
    assert list(one.with_host("lab01", None).hosts) == ["lab02"]


@pytest.mark.parametrize("name", ["lab1", "lab00", "lab100", "labvm01", "web01", "", "lab01 ", "../lab01"])
def test_names_the_lab_cannot_make_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        state.host_number(name)


def test_names_and_numbers_agree() -> None:
    assert state.host_number("lab07") == 7
    assert state.host_name(7) == "lab07"


def test_a_lock_is_exclusive_said_once_and_freed_by_death(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import fcntl,time; f=open({str(path)!r},'w'); fcntl.flock(f, 2); f.write('pid 7'); f.flush(); print(1, flush=True); time.sleep(3600)",
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    said: list[str] = []
    with (
        pytest.raises(BigironError, match="still locked"),
        paths.locked(path, "busy: {holder}", say=said.append, timeout_s=0.3),
    ):
        pass
    assert said == ["busy: pid 7"]

    def release(line: str) -> None:
        said.append(line)
        holder.kill()

    with paths.locked(path, "busy", say=release, note="me", timeout_s=60):
        assert said == ["busy: pid 7", "busy"]
        assert path.read_text() == "me"
    holder.wait()
    holder.stdout.close()
