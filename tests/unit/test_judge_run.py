"""The runner: what pytest made of the checks becomes the verdicts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bigiron import judge
from bigiron.errors import BigironError, Unreachable, UsageError
from bigiron.fleet.connection import Connection
from bigiron.judge import judged
from bigiron.judge import plain as plain_pytest
from bigiron.judge.verdict import Check, Verdict
from bigiron.paths import PROJECT

RECORDED = json.loads((PROJECT / "tests" / "fixtures" / "judge" / "lab-host.json").read_text(encoding="utf-8"))


class Somewhere:
    connection = Connection(kind="local", name="here", host="localhost", become=False)


def host(name: str, **expect: Any) -> judge.HostToJudge:
    return judge.HostToJudge(name, Somewhere(), {**RECORDED["expect"], **expect})


def good(asked: judge.HostToJudge, request: Any) -> Mapping[str, Any]:
    return RECORDED["facts"]


def test_a_good_host_is_ok_in_a_hundred_checks(capfd: pytest.CaptureFixture[str]) -> None:
    [verdict] = judge.run([host("lab04")], collect=good)
    assert verdict.ok
    assert len(verdict.checks) >= 100
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict
    assert capfd.readouterr() == ("", "")


def test_false_and_open_checks_spoil_it_and_reach_junit(tmp_path: Path) -> None:
    broken = json.loads(json.dumps(RECORDED["facts"]))
    broken["user"]["shell"] = "/bin/bash"
    broken["user"]["locked"] = {"error": "needs root to read /etc/shadow"}
    junit = tmp_path / "judge.xml"
    verdicts = judge.run(
        [host("lab04"), host("lab05")],
        junit=junit,
        collect=lambda asked, _: RECORDED["facts"] if asked.name == "lab05" else broken,
    )
    assert [(verdict.host, verdict.ok) for verdict in verdicts] == [("lab04", False), ("lab05", True)]
    assert [check.id for check in verdicts[0].failed] == ["user.shell"]
    assert [check.id for check in verdicts[0].unknown] == ["user.locked"]
    cases = {case.get("name"): case for case in ET.parse(junit).iter("testcase")}
    assert len(cases) == sum(len(verdict.checks) for verdict in verdicts)
    assert "usermod --lock" in ET.tostring(cases["test_account_has_no_login_shell[lab04-user.shell]"], encoding="unicode")
    assert cases["test_password_is_locked[lab04-user.locked]"].find("skipped") is not None


def test_an_open_check_spoils_the_verdict_only_when_required() -> None:
    done, open_, aside = Check("a", True, "", ""), Check("b", None, "", ""), Check("c", None, "", "", required=False)
    assert Verdict("x", [done, aside]).ok
    assert not Verdict("x", [done, open_]).ok
    assert not Verdict("x", [aside]).ok
    assert not Verdict("x", []).ok


def test_an_unreachable_host_hides_no_other(tmp_path: Path) -> None:
    def collect(asked: judge.HostToJudge, request: Any) -> Mapping[str, Any]:
        if asked.name == "lab09":
            raise Unreachable("Connection timed out", where="lab09", hint="is it on?")
        return RECORDED["facts"]

    gone, fine = judge.run([host("lab09"), host("lab04")], collect=collect)
    assert (gone.ok, gone.unreachable, fine.ok, fine.unreachable) == (False, True, True, False)
    assert [(check.id, check.ok, check.detail, check.remedy) for check in gone.checks] == [
        ("connection", False, "Connection timed out", "is it on?")
    ]


def test_no_host_is_an_error_not_a_pass() -> None:
    with pytest.raises(UsageError, match="no host to verify"):
        judge.run([], collect=good)


def test_a_plan_that_a_check_cannot_read_leaves_it_open_and_hides_no_other() -> None:
    [verdict] = judge.run([host("lab04", base_directories=[{"nonsense": 1}])], collect=good)
    assert not verdict.ok
    assert {check.id for check in verdict.unknown if "KeyError" in check.detail} == {
        "base.look", "directory.type", "directory.owner", "directory.mode",
    }  # fmt: skip
    assert len([check for check in verdict.checks if check.ok]) > 100


def test_a_fault_in_a_check_leaves_that_check_open() -> None:
    facts = json.loads(json.dumps(RECORDED["facts"]))
    facts["user"]["uid"] = "many"
    [verdict] = judge.run([host("lab04")], collect=lambda asked, request: facts)
    [check] = [check for check in verdict.checks if check.id == "user.system"]
    assert check.ok is None
    assert check.detail.startswith("cannot tell: this check failed itself (TypeError")
    assert not verdict.ok


def test_a_fault_of_the_collector_is_an_error_with_its_reason() -> None:
    def collect(asked: judge.HostToJudge, request: Any) -> Mapping[str, Any]:
        raise RuntimeError("boom")

    with pytest.raises(BigironError, match="boom"):
        judge.run([host("lab04")], collect=collect)


def test_left_out_assertions_are_an_error_not_a_pass() -> None:
    program = "from bigiron import judge; judge.run([judge.HostToJudge('x', None, {})])"
    answer = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=False)
    assert "leave out assertions" in answer.stderr


def test_the_unit_text_is_rendered_when_the_plan_has_none() -> None:
    expect = {name: value for name, value in RECORDED["expect"].items() if name != "llama_server_unit_text"}
    [verdict] = judge.run([judge.HostToJudge("lab04", Somewhere(), expect)], collect=good)
    [check] = [check for check in verdict.checks if check.id == "unit.text"]
    assert "SyslogIdentifier" in check.detail  # the one line in which the recorded host is older than the template


def test_the_real_collector_looks_at_this_machine() -> None:
    """No server of ours runs here: nothing may be called fine that was not seen, and the conversation must work."""
    absent = {"llama_cpp_prefix": "/nonexistent/bigiron", "llama_server_service": "no-such-service", "llama_server_port": 9}
    [verdict] = judge.run([host("here", **absent)], completion=False)
    found = {check.id: check for check in verdict.checks}
    assert not verdict.ok
    assert not verdict.unreachable
    assert found["release.current"].ok is False
    assert found["process.running"].ok is not True
    assert verdict.seconds is not None


def test_many_hosts_at_once() -> None:
    verdicts = judge.run([host(f"here{number}", llama_server_port=9) for number in range(6)], completion=False)
    assert [verdict.host for verdict in verdicts] == [f"here{number}" for number in range(6)]
    assert not any(verdict.unreachable or verdict.ok for verdict in verdicts)


# A person's own tests


def own(folder: Path, **files: str) -> dict[str, Check]:
    """The checks that these files make, on a host that is this machine, beside those of bigiron (which are all there)."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    [verdict] = judge.run([replace(host("here"), site=folder)], collect=good)
    found = {check.id: check for check in verdict.checks}
    assert len([name for name in found if not name.startswith("site")]) > 100
    assert found["user.exists"].ok is True
    return {name: check for name, check in found.items() if name.startswith("site")}


def test_the_example_of_the_docs_runs(tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(.*?)```", (PROJECT / "docs" / "verify.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(example.splitlines()) <= 5
    found = own(tmp_path, test_office=example)
    assert {name: check.ok for name, check in found.items()} == {"site.test_office::test_nobody_else_is_root": True}
    found = own(tmp_path, test_office=example.replace(r"!= \"root", r"!= \"nobody-such"))
    assert "accounts with uid 0: root" in found["site.test_office::test_nobody_else_is_root"].detail


def test_results_and_names_of_own_tests(tmp_path: Path) -> None:
    text = """
import pytest

def test_good(host, plan):
    assert host.file("/etc/passwd").exists and plan["base_user"] == "llama"

def test_bad(host):
    assert host.check_output("echo one") == "two"

@pytest.mark.parametrize("path", ["/etc", "/nowhere"])
def test_paths(host, path):
    assert host.file(path).is_directory, f"{path} is no folder"

def test_skipped(host):
    pytest.skip("no GPU here")

@pytest.mark.xfail
def test_expected(host):
    assert False

class TestClass:
    def test_of_no_host(self):
        pass
"""
    found = own(tmp_path, test_mine=text)
    assert {name: check.ok for name, check in found.items()} == {
        "site.test_mine::test_good": True,
        "site.test_mine::test_bad": False,
        "site.test_mine::test_paths[/etc]": True,
        "site.test_mine::test_paths[/nowhere]": False,
        "site.test_mine::test_skipped": None,
        "site.test_mine::test_expected": None,
        "site.test_mine::TestClass::test_of_no_host": True,
    }
    assert found["site.test_mine::test_bad"].detail == (
        """assert host.check_output("echo one") == "two" (assert 'one' == 'two')"""
    )
    assert found["site.test_mine::test_paths[/nowhere]"].detail == "/nowhere is no folder"
    assert "test_mine.py:" in found["site.test_mine::test_bad"].remedy
    assert not found["site.test_mine::test_skipped"].required


@pytest.mark.parametrize(
    ("files", "id_", "words"),
    [
        ({"test_mine": "def broken(:"}, "site.test_mine", "SyntaxError"),
        ({"test_mine": "import no_such_module"}, "site.test_mine", "No module named 'no_such_module'"),
        ({"test_mine": "import sys\nsys.exit(3)"}, "site", "SystemExit: 3"),
        ({"test_mine": "def test_x(): pass", "conftest": "1 / 0"}, "site", "ZeroDivisionError"),
        ({"test_mine": "def test_x(no_such_fixture): pass"}, "site.test_mine::test_x", "no_such_fixture"),
        (
            {"test_mine": "import pytest\n@pytest.fixture\ndef f(host): 1 / 0\ndef test_x(f): pass"},
            "site.test_mine::test_x",
            "before the test: ZeroDivisionError",
        ),
        (
            {"test_mine": "import pytest\n@pytest.fixture\ndef f(host):\n    yield\n    1 / 0\ndef test_x(f): pass"},
            "site.test_mine::test_x",
            "after the test: ZeroDivisionError",
        ),
        ({"test_mine": "def helper(): pass"}, "site", "holds no test"),
        ({}, "site", "holds no file of tests"),
    ],
)
def test_a_broken_file_of_ones_own_is_a_failing_check(tmp_path: Path, files: dict[str, str], id_: str, words: str) -> None:
    found = own(tmp_path, **files)
    assert found[id_].ok is False
    assert words in found[id_].detail
    assert found[id_].remedy


def test_a_broken_file_hides_no_other(tmp_path: Path) -> None:
    found = own(tmp_path, test_a="def broken(:", test_b="def test_x(host): pass")
    assert {name: check.ok for name, check in found.items()} == {"site.test_a": False, "site.test_b::test_x": True}


def test_own_tests_are_in_junit_too(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("def test_bad(host):\n    assert False, 'so it is'\n")
    junit = tmp_path / "judge.xml"
    judge.run([replace(host("here"), site=tmp_path)], collect=good, junit=junit)
    cases = {case.get("name"): case for case in ET.parse(junit).iter("testcase")}
    assert len(cases) > 100
    assert "so it is" in ET.tostring(cases["test_bad[here]"], encoding="unicode")


def test_each_host_gets_the_tests_of_its_own_folder(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test_mine.py").write_text(f"def test_{name}(host): pass")
    verdicts = judge.run([replace(host(name), site=tmp_path / name) for name in ("one", "two")], collect=good)
    made = {verdict.host: {check.id for check in verdict.checks if check.id.startswith("site")} for verdict in verdicts}
    assert made == {"one": {"site.test_mine::test_one"}, "two": {"site.test_mine::test_two"}}


def test_the_inventory_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "hosts.yml").touch()

    def target(inventory: Path, **variables: str) -> Any:
        return SimpleNamespace(vars=variables, inventory=str(inventory))

    for inventory in (tmp_path, tmp_path / "hosts.yml"):
        assert judged.site_folder(target(inventory, bigiron_site_tests="mine")) == tmp_path / "mine"
    assert judged.site_folder(target(tmp_path, bigiron_site_tests=str(tmp_path))) == tmp_path
    monkeypatch.setattr(judged, "SITE", tmp_path / "mine")
    assert judged.site_folder(target(tmp_path)) is None
    (tmp_path / "mine" / "test_x.py").touch()
    assert judged.site_folder(target(tmp_path)) == tmp_path / "mine"


# Plain pytest


def plain(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pytest", "tests/state", *arguments]
    return subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("hosts", "connection", "patterns"),
    [
        ("ansible://lab01", None, ["lab01"]),
        ("ansible://lab01?force_ansible=true,ansible://gpu", None, ["lab01", "gpu"]),
        ("lab01,lab*", "ansible", ["lab01", "lab*"]),
    ],
)
def test_hosts_in_testinfras_syntax(hosts: str, connection: str | None, patterns: list[str]) -> None:
    assert plain_pytest._patterns(hosts, connection) == patterns


@pytest.mark.parametrize(
    ("hosts", "connection"), [("ssh://lab01", None), ("lab01", "docker"), (None, None), ("ansible://", None)]
)
def test_hosts_that_have_no_plan(hosts: str | None, connection: str | None) -> None:
    with pytest.raises(pytest.UsageError, match="--hosts=ansible://NAME"):
        plain_pytest._patterns(hosts, connection)


@pytest.mark.parametrize(
    ("arguments", "words"), [((), "--hosts=ansible://NAME"), (("--hosts=ansible://lba01",), "did you mean lab01")]
)
def test_plain_pytest_says_what_to_type(arguments: tuple[str, ...], words: str) -> None:
    answer = plain(*arguments)
    assert answer.returncode == pytest.ExitCode.USAGE_ERROR
    [line] = [line for line in answer.stderr.splitlines() if line]
    assert words in line


def test_plain_pytest_plans_by_itself_and_an_unreachable_host_fails(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    source = (PROJECT / "inventory" / "lab" / "group_vars" / "lab").glob("*.yml")
    (tmp_path / "group_vars" / "lab").mkdir(parents=True)
    for file in source:
        (tmp_path / "group_vars" / "lab" / file.name).write_text(file.read_text())
    inventory.write_text("lab: {hosts: {gone: {ansible_host: 127.0.0.1, ansible_port: 1, lab_mirror: 'http://127.0.0.1:1'}}}")
    answer = plain("--hosts=ansible://lab", f"--ansible-inventory={inventory}")
    assert answer.returncode == pytest.ExitCode.TESTS_FAILED
    assert "gone: failed: connection" in answer.stdout
    assert re.search(r"^1 failed", answer.stdout, re.MULTILINE)
