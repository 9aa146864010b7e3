"""The waves of a provision, with the hosts and Ansible replaced: who is applied when, and what becomes of the others."""

import fcntl
import functools
import os

import pytest

from bigiron import parts
from bigiron.errors import EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, BigironError, Refused
from bigiron.fleet import plandir, play, provision
from bigiron.fleet.applying import Outcome, exit_code
from bigiron.judge.verdict import Check, Verdict
from bigiron.parts.part import SERVICE
from fixtures.fleet import Target, World, surveyed

EVERY = parts.NAMES


def test_hosts_in_sync_are_left_alone(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, surveyed("a", "installed"))
    assert world.go("a")["a"].status == "in sync"
    assert world.plays == []


def test_a_builder_goes_first_and_the_others_follow(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, surveyed("b", "a", *EVERY), surveyed("a", "here", *EVERY), surveyed("c", "a", *EVERY))
    outcomes = world.go("b", "a", "c")
    assert world.plays == [["a"], ["b", "c"]]
    assert {one.status for one in outcomes.values()} == {"changed"}
    assert outcomes["b"].roles == list(EVERY)
    assert sorted(world.locks) == ["a", "b", "c"]


def test_a_new_build_is_asked_what_it_understands_before_the_service_is_written(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, surveyed("a", "here", *EVERY, proved=False))
    after = surveyed("a", "installed", "llama_server")
    real = world.run

    def run(playbook, inventories, hosts, folder, on_event, extra=None):
        result = real(playbook, inventories, hosts, folder, on_event, extra)
        if len(world.plays) == 1:
            world.now["a"] = after
        return result

    monkeypatch.setattr(play, "run", run)
    applied = []
    monkeypatch.setattr(plandir, "write", lambda folder, variables: applied.append(variables["a"]["bigiron_parts"]) or folder)
    assert world.go("a")["a"].roles == list(EVERY)
    assert applied == [parts.before(SERVICE), ["llama_server"]]


def test_when_the_builder_fails_the_others_are_not_attempted_and_say_why(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, surveyed("a", "here", *EVERY), surveyed("b", "a", *EVERY))
    world.fail = {"a"}
    outcomes = world.go("a", "b")
    assert world.plays == [["a"]]
    assert "it broke" in outcomes["a"].error.what
    assert "not attempted: a" in outcomes["b"].error.what
    assert exit_code(list(outcomes.values())) == EXIT_FAILED


def test_without_a_compiler_the_toolchain_comes_first(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, surveyed("a", "here", *EVERY, mark=""))
    outcomes = world.go("a")
    assert world.plays[0] == ["a"]
    assert outcomes["a"].status == "changed"


def test_an_unreachable_host_stops_no_other(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, surveyed("a", "here", *EVERY), surveyed("b", "installed"))
    world.gone = {"b"}
    outcomes = world.go("a", "b")
    assert (outcomes["a"].status, outcomes["b"].status) == ("changed", "unreachable")
    assert exit_code(list(outcomes.values())) == EXIT_UNREACHABLE


def test_a_refusal_touches_no_host(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, surveyed("a", "here", *EVERY), surveyed("b", "here", *EVERY))
    world.now["b"].refusals.append(Refused("port 8080 is taken", where="b"))
    with pytest.raises(Refused, match="8080"):
        world.go("a", "b")
    assert world.plays == []


def test_a_host_that_still_differs_after_a_clean_run_has_failed(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, surveyed("a", "here", *EVERY))
    kept = world.now["a"]
    real = world.run

    def run_without_effect(*args, **kwargs):
        result = real(*args, **kwargs)
        world.now["a"] = kept
        return result

    monkeypatch.setattr(play, "run", run_without_effect)
    outcome = world.go("a")["a"]
    assert outcome.status == "failed"
    assert "still differs" in outcome.error.what
    assert world.locks == []


def test_a_bad_verdict_is_a_failure_and_writes_no_lock(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, surveyed("a", "here", *EVERY))
    monkeypatch.setattr("bigiron.judge.run", lambda hosts: [Verdict(h.name, [Check("key", False, "bad", "do")]) for h in hosts])
    outcome = world.go("a")["a"]
    assert outcome.status == "failed"
    assert "key" in outcome.error.what
    assert world.locks == []


def test_a_host_that_another_run_has_is_waited_for_and_the_run_is_named(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, surveyed("a", "here", *EVERY), surveyed("b", "here", *EVERY))
    monkeypatch.setattr(play, "ANOTHER_RUN_S", 0.2)
    said = []
    with (tmp_path / "b.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write("pid 7 of alice, since noon: ./inv provision")
        other.flush()
        for work in (provision.provision, functools.partial(provision.teardown, models=True)):
            with pytest.raises(BigironError, match="pid 7 of alice, since noon"):
                work([Target("a"), Target("b")], "inventory/lab", said.append, quiet=True)
    assert said == ["b: another run has this host (pid 7 of alice, since noon: ./inv provision)"] * 2
    assert world.plays == []
    assert world.go("a", "b")["b"].status == "changed"
    assert f"pid {os.getpid()} of" in (tmp_path / "b.lock").read_text()


def test_exit_codes():
    assert exit_code([Outcome("a", "in sync"), Outcome("b", "changed")]) == EXIT_OK
    assert exit_code([Outcome("a", "failed", error=BigironError("x"))]) == EXIT_FAILED


def test_ansible_is_told_to_stop_until_it_does(monkeypatch):
    import subprocess
    import sys

    # like Ansible when its KeyboardInterrupt is swallowed: the first interrupt is lost
    program = (
        "import signal, sys, time\nseen = []\n"
        "def handler(*_):\n    seen.append(1)\n    if len(seen) > 1: sys.exit(9)\n"
        "signal.signal(signal.SIGINT, handler)\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        with pytest.raises(KeyboardInterrupt), play._stop_on_interrupt(process):
            raise KeyboardInterrupt
        assert process.returncode == 9
