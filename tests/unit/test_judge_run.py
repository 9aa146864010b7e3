"""The runner: what pytest made of the checks becomes the verdicts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bigiron.errors import BigironError, Unreachable, UsageError
from bigiron.fleet import verify
from bigiron.fleet.connection import Connection
from bigiron.paths import PROJECT
from bigiron.report.verdict import Check, Verdict

RECORDED = json.loads((PROJECT / "tests" / "fixtures" / "verify" / "lab-host.json").read_text(encoding="utf-8"))


class Somewhere:
    connection = Connection(kind="local", name="here", host="localhost", become=False)


def host(name: str, **expect: Any) -> verify.HostToJudge:
    return verify.HostToJudge(name, Somewhere(), {**RECORDED["expect"], **expect})


def good(asked: verify.HostToJudge, subject: Any) -> Mapping[str, Any]:
    return RECORDED["facts"]


def test_a_good_host_is_ok_in_a_hundred_checks(capfd: pytest.CaptureFixture[str]) -> None:
    [verdict] = verify.run([host("lab04")], look=good)
    assert verdict.ok
    assert len(verdict.checks) >= 100
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict
    assert capfd.readouterr() == ("", "")


def test_false_and_open_checks_spoil_it_and_reach_junit(tmp_path: Path) -> None:
    broken = json.loads(json.dumps(RECORDED["facts"]))
    broken["user"]["shell"] = "/bin/bash"
    broken["user"]["locked"] = {"error": "needs root to read /etc/shadow"}
    junit = tmp_path / "judge.xml"
    verdicts = verify.run(
        [host("lab04"), host("lab05")],
        junit=junit,
        look=lambda asked, _: RECORDED["facts"] if asked.name == "lab05" else broken,
    )
    assert [(verdict.host, verdict.ok) for verdict in verdicts] == [("lab04", False), ("lab05", True)]
    assert [check.id for check in verdicts[0].failed] == ["user.shell"]
    assert [check.id for check in verdicts[0].unknown] == ["user.locked"]
    cases = {case.get("name"): case for case in ET.parse(junit).iter("testcase")}
    assert len(cases) == sum(len(verdict.checks) for verdict in verdicts)
    assert "usermod --lock" in ET.tostring(cases["test_account[lab04-user.shell]"], encoding="unicode")
    assert cases["test_account[lab04-user.locked]"].find("skipped") is not None


def test_an_open_check_spoils_the_verdict_only_when_required() -> None:
    done, open_, aside = Check("a", True, "", ""), Check("b", None, "", ""), Check("c", None, "", "", required=False)
    assert Verdict("x", [done, aside]).ok
    assert not Verdict("x", [done, open_]).ok
    assert not Verdict("x", [aside]).ok
    assert not Verdict("x", []).ok


def test_an_unreachable_host_hides_no_other(tmp_path: Path) -> None:
    def look(asked: verify.HostToJudge, subject: Any) -> Mapping[str, Any]:
        if asked.name == "lab09":
            raise Unreachable("Connection timed out", where="lab09", hint="is it on?")
        return RECORDED["facts"]

    gone, fine = verify.run([host("lab09"), host("lab04")], look=look)
    assert (gone.ok, gone.unreachable, fine.ok, fine.unreachable) == (False, True, True, False)
    assert [(check.id, check.ok, check.detail, check.remedy) for check in gone.checks] == [
        ("connection", False, "Connection timed out", "is it on?")
    ]


def test_no_host_is_an_error_not_a_pass() -> None:
    with pytest.raises(UsageError, match="no host to judge"):
        verify.run([], look=good)


def test_a_fault_of_the_judge_is_open_and_not_ok() -> None:
    [verdict] = verify.run([host("lab04", base_directories=[{"nonsense": 1}])], look=good)
    assert not verdict.ok
    assert [check.id for check in verdict.checks if "stumbled" in check.detail] == ["account.judge"]


def test_a_bug_of_the_eyes_is_an_error_with_its_reason() -> None:
    def look(asked: verify.HostToJudge, subject: Any) -> Mapping[str, Any]:
        raise RuntimeError("boom")

    with pytest.raises(BigironError, match="boom"):
        verify.run([host("lab04")], look=look)


def test_the_unit_text_is_rendered_when_the_plan_has_none() -> None:
    expect = {name: value for name, value in RECORDED["expect"].items() if name != "llama_server_unit_text"}
    seen: list[str] = []

    def look(asked: verify.HostToJudge, subject: Any) -> Mapping[str, Any]:
        seen.append(subject.expect["llama_server_unit_text"])
        return RECORDED["facts"]

    verify.run([verify.HostToJudge("lab04", Somewhere(), expect)], look=look)
    assert "[Service]" in seen[0]


def test_the_real_eyes_look_at_this_machine() -> None:
    """No server of ours runs here: nothing may be called fine that was not seen, and the conversation must work."""
    absent = {"llama_cpp_prefix": "/nonexistent/bigiron", "llama_server_service": "no-such-service", "llama_server_port": 9}
    [verdict] = verify.run([host("here", **absent)], completion=False)
    found = {check.id: check for check in verdict.checks}
    assert not verdict.ok
    assert not verdict.unreachable
    assert found["release.current"].ok is False
    assert found["process.running"].ok is not True
    assert verdict.seconds is not None


def test_many_hosts_at_once_load_the_eyes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "state.eyes", raising=False)
    verdicts = verify.run([host(f"here{number}", llama_server_port=9) for number in range(6)], completion=False)
    assert [verdict.host for verdict in verdicts] == [f"here{number}" for number in range(6)]
    assert not any(verdict.unreachable or verdict.ok for verdict in verdicts)


def test_plain_pytest_says_how_to_start_the_judge() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/state", "--hosts=lab01"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert "./inv verify --host NAME" in answer.stdout
    assert re.search(r"\d+ failed", answer.stdout)
