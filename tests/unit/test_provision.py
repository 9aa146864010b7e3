"""The waves of a provision, with the hosts and Ansible replaced: who is applied when, and what becomes of the others."""

import fcntl
import functools
import os
from dataclasses import dataclass

import pytest

from bigiron import parts
from bigiron.errors import EXIT_FAILED, EXIT_OK, EXIT_REBOOT, EXIT_UNREACHABLE, BigironError, Refused, Unreachable
from bigiron.fleet import plandir, play, provision, reboot, survey
from bigiron.fleet.applying import Outcome, exit_code
from bigiron.judge.verdict import Check, Verdict
from bigiron.parts.difference import Difference
from bigiron.parts.part import HOST, SERVICE, Facts, Planned
from bigiron.parts.planner import HostPlan
from bigiron.plan.build_options import Identity
from bigiron.plan.releases import Release


@dataclass(frozen=True)
class Target:
    name: str
    kind: str = "ssh"
    down: None = None

    @property
    def connection(self):
        return self


def surveyed(name, build_from, *differing, mark="f" * 16, proved=True, reboot=(), waits="", kind="ssh"):
    release = Release(Identity({}, {}, "g++ 12" if mark else "", "", ()), build_from, None, "")
    facts = Facts(name, {}, None, {}, {}, {}, release=release)
    planned = Planned({}, refusals=[], reboot=list(reboot), waits=waits)
    plan = HostPlan(name, facts, planned, arguments_proved=proved)
    look = survey.Look(Target(name, kind), {"base_reboot_timeout_s": 9}, "", None, {})
    return survey.Survey(look, plan, [Difference(part, "x:y", "is missing") for part in differing])


class World:
    """Stands in for hosts, Ansible and the judge: remembers the order of plays, and lets chosen hosts fail."""

    def __init__(self, monkeypatch, tmp_path, *surveys):
        self.now = {one.name: one for one in surveys}
        self.plays = []
        self.fail = set()
        self.gone = set()
        self.locks = []
        self.rebooted = []
        self.after_play = {}
        self.after_reboot = {}
        self.roles = []
        real_write = plandir.write
        monkeypatch.setattr(
            plandir,
            "write",
            lambda folder, v: self.roles.append({n: o["bigiron_parts"] for n, o in v.items()}) or real_write(folder, v),
        )
        monkeypatch.setattr(reboot, "reboot", self.reboot)
        monkeypatch.setattr(survey, "survey", self.survey)
        monkeypatch.setattr(survey, "release_archive", lambda mark: tmp_path / mark)
        monkeypatch.setattr(play, "state_dir", lambda *_parts: tmp_path)
        monkeypatch.setattr(play, "new_run", lambda: tmp_path)
        monkeypatch.setattr(play, "run", self.run)
        monkeypatch.setattr(
            provision, "measure", lambda ones: {one.name: {"prefill_tps": 1.0, "generation_tps": 1.0} for one in ones}
        )
        monkeypatch.setattr(provision.lock, "document", lambda one, measured: measured)
        monkeypatch.setattr(provision.lock, "write", lambda path, content: self.locks.append(path.stem))
        monkeypatch.setattr("bigiron.judge.run", lambda hosts: [Verdict(h.name, [Check("c", True, "", "")]) for h in hosts])

    def survey(self, targets):
        errors = {one.name: Unreachable("no route", where=one.name) for one in targets if one.name in self.gone}
        return {one.name: self.now[one.name] for one in targets if one.name not in errors}, errors

    def run(self, playbook, inventories, hosts, folder, on_event, extra=None):
        self.plays.append(list(hosts))
        result = play.PlayResult(0, folder / "log")
        for host in hosts:
            if host in self.fail:
                result.failed[host] = "llama_cpp: it broke"
            else:
                result.changed[host] = ["base: did it"]
                later = self.after_play.get(host, [])
                self.now[host] = later.pop(0) if later else surveyed(host, "installed")
        return result

    def reboot(self, target, _timeout_s):
        self.rebooted.append(target.name)
        self.now[target.name] = self.after_reboot.get(target.name, surveyed(target.name, "installed"))
        return ""

    def go(self, *names, may_reboot=False):
        work = provision.provision
        done = work([Target(name) for name in names], "inventory/lab", lambda _: None, quiet=True, may_reboot=may_reboot)
        return {one.host: one for one in done}


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


MISMATCH = "version mismatch: the loaded module nvidia is 570.124, the installed software 570.133"


def test_a_host_in_sync_that_has_to_be_rebooted_says_so_and_is_left_alone(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, surveyed("a", "installed", reboot=[MISMATCH]))
    outcomes = world.go("a")
    assert (outcomes["a"].status, outcomes["a"].reboot) == ("reboot pending", [MISMATCH])
    assert outcomes["a"].next == "./inv provision --host a --reboot"
    assert exit_code(list(outcomes.values())) == EXIT_REBOOT
    assert (world.plays, world.rebooted) == ([], [])


def test_with_reboot_it_is_rebooted_and_proved(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, surveyed("a", "installed", reboot=[MISMATCH]))
    outcome = world.go("a", may_reboot=True)["a"]
    assert (outcome.status, outcome.changed, world.rebooted, world.locks) == ("changed", ["reboot"], ["a"], ["a"])


def test_what_is_done_but_for_a_reboot_is_proved_and_locked(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, surveyed("a", "here", *EVERY))
    world.after_play["a"] = [surveyed("a", "installed", reboot=[MISMATCH])]
    outcome = world.go("a")["a"]
    assert (outcome.status, outcome.verdict.ok, world.locks) == ("reboot pending", True, ["a"])


def waiting(*differing):
    return surveyed("a", "here", *differing, waits="the driver is not loaded")


def test_stages_that_wait_for_the_reboot_are_not_attempted(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, waiting(*EVERY))
    world.after_play["a"] = [
        surveyed("a", "here", "llama_server", reboot=["nouveau is loaded"], waits="the driver is not loaded")
    ]
    outcome = world.go("a")["a"]
    assert [one["a"] for one in world.roles] == [parts.in_stages(HOST)]
    assert (outcome.status, outcome.error) == ("reboot pending", None)
    assert outcome.reboot == ["nouveau is loaded", "the driver is not loaded"]
    assert world.locks == []


def test_with_reboot_the_later_stages_follow_it(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, waiting(*EVERY))
    world.after_play["a"] = [
        surveyed("a", "here", "llama_server", reboot=["nouveau is loaded"], waits="the driver is not loaded")
    ]
    world.after_reboot["a"] = surveyed("a", "here", "llama_server")
    outcome = world.go("a", may_reboot=True)["a"]
    assert [one["a"] for one in world.roles] == [parts.in_stages(HOST), ["llama_server"]]
    assert (outcome.status, world.rebooted) == ("changed", ["a"])


def test_a_driver_that_is_loaded_without_a_reboot_goes_on_at_once(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, waiting(*EVERY))
    world.after_play["a"] = [surveyed("a", "here", "llama_server")]
    assert world.go("a", may_reboot=True)["a"].status == "changed"
    assert world.rebooted == []


def test_a_reboot_that_did_not_bring_what_it_was_for_is_a_failure(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, surveyed("a", "here", reboot=["nouveau is loaded"], waits="the driver is not loaded"))
    world.after_reboot["a"] = waiting("llama_server")
    outcome = world.go("a", may_reboot=True)["a"]
    assert (outcome.status, world.rebooted, world.plays) == ("failed", ["a"], [])
    assert "the driver is not loaded" in outcome.error.what


def test_a_host_is_rebooted_once_however_little_it_helps(monkeypatch, tmp_path):
    newer = ["kernel 6.1.0-28 runs, 6.1.0-30 is installed and boots next"]
    world = World(monkeypatch, tmp_path, surveyed("a", "installed", reboot=newer))
    world.after_reboot["a"] = surveyed("a", "installed", reboot=newer)
    outcome = world.go("a", may_reboot=True)["a"]
    assert (outcome.status, world.rebooted) == ("reboot pending", ["a"])
    assert "boot loader" in outcome.next


def test_hosts_that_need_the_release_of_one_that_waits_are_pending_too(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, waiting("llama_cpp"), surveyed("b", "a", *EVERY))
    outcomes = world.go("a", "b")
    assert world.plays == []
    assert outcomes["b"].reboot == ["a, which builds its release, has to be rebooted first"]
    assert outcomes["b"].next == "./inv provision --host a,b --reboot"
    assert exit_code(list(outcomes.values())) == EXIT_REBOOT


def test_the_controller_is_never_rebooted(monkeypatch, tmp_path):
    world = World(monkeypatch, tmp_path, surveyed("a", "here", "llama_cpp", reboot=[MISMATCH], waits="no driver", kind="local"))
    for may_reboot in (False, True):
        outcome = world.go("a", may_reboot=may_reboot)["a"]
        assert (outcome.status, outcome.next) == (
            "reboot pending",
            "reboot required: do it by hand, because it is the controller itself (its connection is local)",
        )
    assert (world.plays, world.rebooted) == ([], [])


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
