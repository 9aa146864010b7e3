import copy
import hashlib

import pytest

from bigiron.plan.desired import desired, key_path, unit_path
from bigiron.plan.diff import diff, roles_of
from bigiron.plan.places import MADE_FOLDERS

UNIT = "llama-server-main.service"


@pytest.fixture
def right(variables):
    """What the observer would report of a host that is exactly as planned."""
    resources = desired(variables)
    root = {"owner": "root", "group": "root"}
    paths = {"/opt/bigiron/current": {"type": "link", "target": "releases/0123456789abcdef"}}
    for one in resources:
        if one.kind == "directory":
            paths[one.name] = {"type": "directory", **one.want}
        elif one.kind == "file":
            paths[one.name] = {"type": "file", **one.want, "mtime": 100.0}
    paths[key_path(variables)] = {"type": "file", **root, "mode": "0600", "size": 48, "hmac": "k", "mtime": 100.0}
    return {
        "packages": {"ca-certificates": "1", "libgomp1": "2"},
        "users": {"llama": {"group": "llama", "shell": "/usr/sbin/nologin"}},
        "paths": paths,
        "releases": {"0123456789abcdef": {"ok": True, "problems": [], "manifest": {}}},
        "models": {
            "lab/model/" + "b" * 40: {
                "files": {"Q4/m-00001-of-00002.gguf": {"size": 10, "sha256": "c" * 64, "proved": True}},
                "partial": {},
            }
        },
        "services": {
            UNIT: {
                "LoadState": "loaded",
                "ActiveState": "active",
                "SubState": "running",
                "UnitFileState": "enabled",
                "NeedDaemonReload": False,
                "Result": "success",
                "exe": "/opt/bigiron/releases/0123456789abcdef/bin/llama-server",
                "started": 200.0,
                "health": 200,
                "listening": True,
            }
        },
    }


def test_a_host_as_planned_has_no_difference(variables, right):
    assert diff(desired(variables), right) == []


def test_a_virgin_host_needs_every_role(variables):
    empty = {"packages": {}, "users": {}, "paths": {}, "releases": {}, "models": {}, "services": {}}
    found = diff(desired(variables), empty)
    assert roles_of(found) == ["base", "llama_cpp", "model", "llama_server"]
    assert {each.resource for each in found} == {each.id for each in desired(variables)}


def change(document, path, value):
    *parents, last = path
    for key in parents:
        document = document[key]
    if value is None:
        del document[last]
    else:
        document[last] = value


SHARD = ("models", "lab/model/" + "b" * 40, "files", "Q4/m-00001-of-00002.gguf")
CASES = [
    (("packages", "libgomp1"), None, "base", "not installed"),
    (("packages",), {"error": "no dpkg"}, "base", "cannot be read: no dpkg"),
    (("services", UNIT), {"error": "systemctl timed out"}, "llama_server", "cannot be read: systemctl timed out"),
    (("users", "llama"), None, "base", "no such user"),
    (("users", "llama", "shell"), "/bin/sh", "base", "shell is /bin/sh"),
    (("paths", "/opt/bigiron", "mode"), "0777", "base", "mode is 0777, not 0755"),
    (("paths", "/opt/bigiron", "type"), "file", "base", "is a file, not a directory"),
    (("paths", "/opt/bigiron"), {"error": "permission denied"}, "base", "cannot be read"),
    (("paths", "/etc/motd", "sha256"), "x", "base", "content differs"),
    (("releases", "0123456789abcdef"), None, "llama_cpp", "not installed"),
    (("releases", "0123456789abcdef"), {"ok": False, "problems": ["bin/llama-server is missing"]}, "llama_cpp", "is missing"),
    (("paths", "/opt/bigiron/current", "target"), "releases/old", "llama_cpp", "points at releases/old"),
    ((*SHARD, "size"), 9, "model", "has 9 bytes"),
    ((*SHARD, "sha256"), "d" * 64, "model", "SHA-256"),
    ((*SHARD, "proved"), False, "model", "not proved"),
    (SHARD, None, "model", "not fetched"),
    (("paths", "/etc/bigiron/credentials/main.key", "mode"), "0644", "llama_server", "mode is 0644"),
    (("paths", "/etc/bigiron/credentials/main.key", "size"), 0, "llama_server", "is empty"),
    (("services", UNIT, "UnitFileState"), "disabled", "llama_server", "is disabled"),
    (("services", UNIT, "ActiveState"), "failed", "llama_server", "is failed"),
    (("services", UNIT, "exe"), "/opt/bigiron/releases/old/bin/llama-server", "llama_server", "runs /opt/bigiron/releases/old"),
    (("services", UNIT, "health"), 503, "llama_server", "not ready"),
    (("services", UNIT, "listening"), False, "llama_server", "another process answers"),
    (("services", UNIT, "started"), 50.0, "llama_server", "was started before"),
    (("services", UNIT, "NeedDaemonReload"), True, "llama_server", "has not read the unit file"),
    (("services", UNIT), None, "llama_server", "no such unit"),
]


@pytest.mark.parametrize(("path", "value", "role", "problem"), CASES)
def test_each_deviation_is_found_and_belongs_to_its_role(variables, right, path, value, role, problem):
    observed = copy.deepcopy(right)
    change(observed, path, value)
    found = diff(desired(variables), observed)
    assert found
    assert {each.role for each in found} == {role}
    assert any(problem in each.problem for each in found)


def test_a_hand_edit_is_shown_as_a_diff(variables, right):
    path = unit_path(variables)
    text = right["paths"][path]["text"].replace("Restart=on-failure", "Restart=no")
    right["paths"][path].update(text=text, sha256=hashlib.sha256(text.encode()).hexdigest())
    (found,) = diff(desired(variables), right)
    assert "-Restart=no" in found.text
    assert "+Restart=on-failure" in found.text


def test_a_rotated_key_is_found_without_showing_it(variables, right):
    (found,) = diff(desired(variables), right, {key_path(variables): "other"})
    assert found.problem == "holds another secret than the inventory"
    assert found.text == ""
    assert diff(desired(variables), right, {key_path(variables): "k"}) == []


@pytest.mark.parametrize(
    ("record", "found"), [("", []), ("/srv/models\n", ["owner is lab, not root", "mode is 0750, not 0755"])]
)
def test_a_folder_that_was_there_keeps_its_owner_and_mode_one_that_was_made_does_not(variables, right, record, found):
    variables["base_directories"] = [{"path": "/srv/models", "owner": "root", "group": "root", "mode": "0755", "keep": True}]
    right["paths"]["/srv/models"] = {"type": "directory", "owner": "lab", "group": "root", "mode": "0750"}
    right["paths"][MADE_FOLDERS] = {"type": "file", "text": record}
    assert [each.problem for each in diff(desired(variables), right)] == found
