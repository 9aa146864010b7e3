"""Provision where a reboot is needed: said, made when that is asked for, and what waits for it."""

from bigiron import parts
from bigiron.errors import EXIT_REBOOT
from bigiron.fleet.applying import exit_code
from bigiron.parts.part import HOST
from fixtures.fleet import World, surveyed

EVERY = parts.NAMES
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
