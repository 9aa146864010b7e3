"""One row per host: ready is what the unit itself answers, and who else holds its port is named."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from bigiron.errors import Unreachable
from bigiron.parts.part import Planned
from bigiron.plan import wishes
from bigiron.report import plans
from fixtures.hostfacts import VARIABLES

UNIT = "llama-server-main.service"


def survey(service: dict[str, Any], port: dict[str, Any] | None) -> SimpleNamespace:
    observed = {"services": {UNIT: service}, "ports": {"8080": port} if port else {}}
    wish = wishes.read("lab01", VARIABLES)
    return SimpleNamespace(
        name="lab01",
        wish=wish,
        observed=observed,
        in_sync=True,
        differences=[],
        refusals=[],
        plan=SimpleNamespace(planned=Planned()),
    )


def row(capsys: pytest.CaptureFixture[str], service: dict[str, Any], port: dict[str, Any] | None) -> dict[str, Any]:
    plans.show_status({"lab01": survey(service, port)}, {}, as_json=True)  # type: ignore[dict-item]
    (found,) = json.loads(capsys.readouterr().out)
    return dict(found)


def test_another_programs_answer_does_not_make_the_service_ready(capsys: pytest.CaptureFixture[str]) -> None:
    stranger = {"pid": 7, "program": "nginx", "unit": "nginx.service", "address": "0.0.0.0"}
    found = row(capsys, {"ActiveState": "inactive", "health": 200, "listening": False}, stranger)
    assert (found["service"], found["held_by"]) == ("inactive", "nginx, pid 7")
    plans.show_status({"lab01": survey({"ActiveState": "inactive", "health": 200}, stranger)}, {}, as_json=False)  # type: ignore[dict-item]
    assert "(held by nginx, pid 7)" in capsys.readouterr().out


def test_the_units_own_answer_does(capsys: pytest.CaptureFixture[str]) -> None:
    own = {"pid": 7, "program": "llama-server", "unit": UNIT, "address": "127.0.0.1"}
    found = row(capsys, {"ActiveState": "active", "health": 200, "listening": True}, own)
    assert (found["service"], found["held_by"]) == ("active (ready)", None)


def test_a_second_holder_and_one_that_may_not_be_seen_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    hidden = {"pid": None, "program": None, "unit": None, "address": "::1", "error": "somebody listens"}
    own = {"pid": 7, "program": "llama-server", "unit": UNIT, "address": "127.0.0.1", "also": [hidden]}
    assert row(capsys, {"ActiveState": "active", "health": 200, "listening": True}, own)["held_by"] == "somebody listens"


def test_a_host_that_was_not_reached_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    error = Unreachable("is down", where="lab02", hint="./inv lab.up --count 2")
    assert plans.show_status({}, {"lab02": error}, as_json=True) == 3
    (found,) = json.loads(capsys.readouterr().out)
    assert found["plan"] == "is down; ./inv lab.up --count 2"
    assert found["error"] == error.to_json()


def test_a_pending_reboot_stands_beside_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    one = survey({"ActiveState": "active", "health": 200, "listening": True}, None)
    one.plan.planned = Planned(reboot=["kernel 6.1.0-28 runs, 6.1.0-30 is installed and boots next"])
    assert plans.show_status({"lab01": one}, {}, as_json=True) == 0  # type: ignore[dict-item]
    (found,) = json.loads(capsys.readouterr().out)
    assert found["plan"] == "in sync, reboot pending"
    assert found["reboot"] == one.plan.planned.reboot
