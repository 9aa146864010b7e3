"""Part time_sync: what it wants on a machine of its own, and that a container's clock is left alone."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.fixtures.hostfacts import fact
from tests.fixtures.hostroot import Programs, look, plant

from bigiron.onhost import observe
from bigiron.onhost.kinds import clock
from bigiron.onhost.system import Output
from bigiron.parts import time_sync
from bigiron.parts.part import Planned

ENABLED = {"UnitFileState": "enabled", "ActiveState": "active"}


def planned(wish: str = "auto", ahead_s: float = 0.4, synchronised: bool = True, **units: Any) -> Planned:
    system = {"ahead_s": ahead_s, "container": "", "synchronised": synchronised}
    seen = {"clock": {"system": system, **{f"{name.replace('_', '-')}.service": unit for name, unit in units.items()}}}
    return time_sync.plan(fact("a", observed=seen, time_sync_service=wish), Planned())


def test_a_containers_clock_is_left_to_its_machine() -> None:
    found = time_sync.plan(fact("a"), Planned())
    assert (found.variables, found.resources) == ({"time_sync_service": "none"}, [])
    assert "systemd-nspawn" in found.reasons[0].why


@pytest.mark.parametrize(
    ("wish", "units", "service"),
    [
        ("auto", {}, "systemd-timesyncd"),
        ("auto", {"chrony": ENABLED}, "chrony"),
        ("auto", {"chrony": {"UnitFileState": "disabled"}}, "systemd-timesyncd"),
        ("chrony", {"systemd_timesyncd": ENABLED}, "chrony"),
    ],
)
def test_one_service_keeps_it_and_what_is_enabled_stays(wish: str, units: dict[str, Any], service: str) -> None:
    found = planned(wish, **units)
    assert found.variables == {"time_sync_service": service}
    assert [each.id for each in found.resources] == [f"package:{service}", f"clock:{service}.service"]


@pytest.mark.parametrize(("ahead_s", "words"), [(7200.0, "7200 s ahead of"), (-90.0, "90 s behind"), (12.0, None)])
def test_a_clock_far_off_is_told(ahead_s: float, words: str | None) -> None:
    findings = planned(ahead_s=ahead_s).findings
    assert [words in finding for finding in findings] == ([True] if words else [])


def test_one_that_is_not_synchronised_says_why_and_one_that_nobody_keeps_does_not() -> None:
    assert "does not run yet" in planned(synchronised=False).findings[0]
    assert "reached no server" in planned(synchronised=False, chrony=ENABLED).findings[0]
    assert planned("none", synchronised=False).findings == []


def test_the_observer_reads_offset_kernel_and_services(tmp_path) -> None:
    plant(tmp_path, {"run/systemd/system/x": ""})
    shown = "Id=chrony.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n"
    watch = {"clock": ["chrony.service", "systemd-timesyncd.service"]}
    programs = Programs(systemctl=Output(0, shown, ""))
    found = observe.main({"watch": watch, "sent": time.time() - 3600}, str(tmp_path), programs)["observed"]["clock"]
    assert 3600 <= found["system"]["ahead_s"] < 3700
    assert isinstance(found["system"]["synchronised"], bool)
    assert set(found) == {"system", "chrony.service"}


def test_in_a_container_no_program_is_started(tmp_path) -> None:
    plant(tmp_path, {"run/systemd/system/x": "", "run/systemd/container": "systemd-nspawn"})
    programs = Programs()
    assert look(tmp_path, programs, clock=["chrony.service"])["clock"]["system"]["container"] == "systemd-nspawn"
    assert programs.calls == []


@pytest.mark.parametrize(
    ("have", "problem"),
    [
        (None, "no such unit"),
        ({"UnitFileState": "disabled", "ActiveState": "active"}, "is disabled, not enabled"),
        ({"UnitFileState": "enabled", "ActiveState": "failed", "SubState": "failed", "Result": "exit-code"}, "is failed (failed, result exit-code)"),
    ],
)  # fmt: skip
def test_a_service_that_does_not_keep_it_differs(have: Any, problem: str) -> None:
    assert [text for text, _ in clock.differs("chrony.service", {}, have)] == [problem]
    assert list(clock.differs("chrony.service", {}, ENABLED)) == []
