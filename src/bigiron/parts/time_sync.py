"""The host's clock: one service keeps it, and a clock that is far off is told before TLS and apt fail in odd ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bigiron.onhost.kinds.clock import SYSTEM
from bigiron.parts.part import HOST, Facts, Planned, Reason, Resource, Watched

STAGE = HOST
SERVICES = ("chrony", "systemd-timesyncd")
"""Package and unit have the same name; the first that a host has enabled stays, else the last is installed."""
FAR_S = 60
"""Certificates and the package index's dates forgive less than a few minutes; opening a connection takes seconds."""


def watch(_wish: Mapping[str, Any]) -> Watched:
    return {"clock": [f"{each}.service" for each in SERVICES], "package": list(SERVICES)}


def plan(facts: Facts, _so_far: Planned) -> Planned:
    seen = facts.observed["clock"]
    clock = seen[SYSTEM]
    service, why = _service(facts.wish["time_sync_service"], seen)
    findings = []
    if abs(clock["ahead_s"]) > FAR_S:
        way = "ahead of" if clock["ahead_s"] > 0 else "behind"
        findings.append(
            f"the clock is {abs(clock['ahead_s']):.0f} s {way} the controller's: TLS and apt fail in odd ways until it is right"
        )
    if clock.get("synchronised") is False and service != "none":
        running = seen.get(f"{service}.service", {}).get("ActiveState") == "active"
        reason = (
            f"{service} runs but has reached no server yet (timedatectl timesync-status, chronyc sources)"
            if running
            else f"{service} does not run yet"
        )
        findings.append(f"the clock is not synchronised: {reason}")
    resources = []
    if service != "none":
        resources = [Resource("package", service, "time_sync"), Resource("clock", f"{service}.service", "time_sync")]
    return Planned({"time_sync_service": service}, resources, [Reason("clock", service, why)], findings=findings)


def _service(wished: str, seen: Mapping[str, Any]) -> tuple[str, str]:
    """Which service keeps the clock ("none": nothing to manage), and why."""
    if seen[SYSTEM]["container"]:
        return "none", f"a container ({seen[SYSTEM]['container']}) has the clock of its machine"
    if wished != "auto":
        return wished, "time_sync_service says so"
    for name in SERVICES:
        if seen.get(f"{name}.service", {}).get("UnitFileState") == "enabled":
            return name, "enabled on the host already"
    return SERVICES[-1], "systemd's own, and no other is enabled"


def lock(_facts: Facts, variables: Mapping[str, Any]) -> dict[str, Any]:
    return {"time_sync": variables["time_sync_service"]}
