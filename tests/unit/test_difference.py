import copy
import hashlib

import pytest
from tests.fixtures.hostfacts import KEY_PATH, REVISION, UNIT, UNIT_PATH, as_planned, fact, virgin

from bigiron import parts
from bigiron.parts.difference import diff
from bigiron.parts.planner import plan_hosts


@pytest.fixture(scope="module")
def plan():
    motd = {"path": "/etc/motd", "content": "hello\n"}
    return plan_hosts([fact("a", base_files=[motd])], [])["a"]


@pytest.fixture
def right(plan):
    return as_planned(plan)


def differences(plan, observed, hmacs=None):
    return diff(plan.planned.resources, observed, hmacs)


def test_a_host_as_planned_has_no_difference(plan, right):
    assert differences(plan, right) == []


def test_a_virgin_host_needs_every_part_that_wants_something(plan):
    found = differences(plan, virgin())
    wants = {each.part for each in plan.planned.resources}
    assert parts.to_apply(each.part for each in found) == [name for name in parts.NAMES if name in wants]
    assert {"base", "llama_cpp", "model", "llama_server"} <= wants
    assert {each.resource for each in found} == {each.id for each in plan.planned.resources}


def test_a_service_looks_again_when_its_release_or_model_changes():
    assert parts.to_apply(["model"]) == ["model", "llama_server"]
    assert parts.to_apply(["llama_cpp"]) == ["llama_cpp", "llama_server"]
    assert parts.to_apply(["base"]) == ["base"]


def change(document, path, value):
    *parents, last = path
    for key in parents:
        document = document[key]
    if value is None:
        del document[last]
    else:
        document[last] = value


SHARD = ("models", REVISION, "files", "Q4/m-00001-of-00002.gguf")
GAVE_UP = {"LoadState": "loaded", "ActiveState": "failed", "Result": "exit-code", "NRestarts": 5, "StartLimitBurst": 5}
CASES = [
    (("packages", "libgomp1"), None, "base", "not installed"),
    (("packages", "libgomp1"), {"error": "no dpkg"}, "base", "cannot be read: no dpkg"),
    (("services", UNIT), {"error": "systemctl timed out"}, "llama_server", "cannot be read: systemctl timed out"),
    (("users", "llama"), None, "base", "no such user"),
    (("users", "llama", "shell"), "/bin/sh", "base", "shell is /bin/sh"),
    (("paths", "/opt/bigiron", "mode"), "0777", "base", "mode is 0777, not 0755"),
    (("paths", "/opt/bigiron", "type"), "file", "base", "is a file, not a directory"),
    (("paths", "/opt/bigiron"), {"error": "permission denied"}, "base", "cannot be read"),
    (("paths", "/etc/motd", "sha256"), "x", "base", "content differs"),
    (("releases", "MARK"), None, "llama_cpp", "not installed"),
    (("releases", "MARK"), {"ok": False, "problems": ["bin/llama-server is missing"]}, "llama_cpp", "is missing"),
    (("paths", "/opt/bigiron/current", "target"), "releases/old", "llama_cpp", "points at releases/old"),
    ((*SHARD, "size"), 9, "model", "has 9 bytes"),
    ((*SHARD, "sha256"), "d" * 64, "model", "SHA-256"),
    ((*SHARD, "proved"), False, "model", "not proved"),
    (SHARD, None, "model", "not fetched"),
    (("paths", "/etc/bigiron/credentials/main.key", "mode"), "0644", "llama_server", "mode is 0644"),
    (("paths", "/etc/bigiron/credentials/main.key", "size"), 0, "llama_server", "is empty"),
    (("services", UNIT, "UnitFileState"), "disabled", "llama_server", "is disabled"),
    (("services", UNIT, "ActiveState"), "failed", "llama_server", "is failed"),
    (("services", UNIT), GAVE_UP, "llama_server", f"start limit hit: fix the cause, then systemctl reset-failed {UNIT}"),
    (("services", UNIT, "exe"), "/opt/bigiron/releases/old/bin/llama-server", "llama_server", "runs /opt/bigiron/releases/old"),
    (("services", UNIT, "health"), 503, "llama_server", "not ready"),
    (("services", UNIT, "listening"), False, "llama_server", "another process answers"),
    (("services", UNIT, "changed_since"), ["/x"], "llama_server", "was started before /x changed"),
    (("services", UNIT, "overrides"), [["/d.conf", "ExecStart"]], "llama_server", "/d.conf overrides ExecStart="),
    (("services", UNIT, "argv"), [], "llama_server", "other arguments"),
    (("services", UNIT, "NeedDaemonReload"), True, "llama_server", "has not read the unit file"),
    (("services", UNIT), None, "llama_server", "no such unit"),
]


@pytest.mark.parametrize(("path", "value", "part", "problem"), CASES)
def test_each_deviation_is_found_and_belongs_to_its_part(plan, right, path, value, part, problem):
    observed = copy.deepcopy(right)
    change(observed, [plan.release.fingerprint if key == "MARK" else key for key in path], value)
    found = differences(plan, observed)
    assert found
    assert {each.part for each in found} == {part}
    assert any(problem in each.problem for each in found)


def test_a_hand_edit_is_shown_as_a_diff(plan, right):
    text = right["paths"][UNIT_PATH]["text"].replace("Restart=on-failure", "Restart=no")
    right["paths"][UNIT_PATH].update(text=text, sha256=hashlib.sha256(text.encode()).hexdigest())
    (found,) = differences(plan, right)
    assert "-Restart=no" in found.text
    assert "+Restart=on-failure" in found.text


def test_a_rotated_key_is_found_without_showing_it(plan, right):
    (found,) = differences(plan, right, {KEY_PATH: "other"})
    assert found.problem == "holds another secret than the inventory"
    assert found.text == ""
    assert differences(plan, right, {KEY_PATH: "k"}) == []


def test_another_argument_is_named(plan, right):
    right["services"][UNIT]["argv"][-1] = "--mlock"
    (found,) = differences(plan, right)
    assert "'--mlock'" in found.problem
