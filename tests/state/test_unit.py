"""The unit: what systemd made of it, not what the file says.

Sources: systemd.exec(5), systemd.service(5), and measurements on systemd 252.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from bigiron.report.verdict import Check

from . import unitfile
from .subject import CannotTell, Subject

MAX_EXPOSURE = 2.5
HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "MemoryDenyWriteExecute": "yes",
    "RestrictSUIDSGID": "yes",
    "CapabilityBoundingSet": "",
    "UMask": "0077",
}
"""Effective for every server, whatever the template says: one that lost a line must not pass by agreeing with itself."""
SECRET = re.compile(r"((?:KEY|TOKEN|SECRET|PASSW\w*)[= ]).*", re.IGNORECASE)
EXIT_MEANINGS = {
    "200": "its working directory does not exist",
    "203": "its program cannot be executed (missing file, wrong architecture or no permission)",
    "216": "one of its groups does not exist",
    "217": "its user does not exist",
    "218": "a capability could not be set",
    "226": "its mount namespace could not be set up (a path of the unit does not exist)",
    "228": "its system call filter could not be set up",
    "243": "its credentials could not be set up (is the key file there?)",
    "4": "it died of an illegal instruction: built for CPU features this host lacks",
    "9": "it was killed (out of memory?)",
    "11": "it crashed",
}
"""``ExecMainStatus`` in plain words; 200 and more from systemd.exec(5), "Process Exit Codes", below 65 signals."""
RESULTS = {
    "resources": "systemd could not start it: a resource is missing (an EnvironmentFile, or a credential's file)",
    "timeout": "it did not start or stop in time",
    "start-limit-hit": "it failed too often in a row and systemd gave up",
    "oom-kill": "the kernel killed it for memory",
    "core-dump": "it crashed",
}


def loaded(s: Subject) -> tuple[bool, str]:
    found = s.fact("show", "LoadState")
    return found == "loaded", f"LoadState is {found}"


def text(s: Subject) -> tuple[bool, str]:
    if s.missing("texts", s.unit_path):
        return False, f"{s.unit_path} does not exist"
    found, wanted = s.fact("texts", s.unit_path), s.expect["llama_server_unit_text"]
    if found == wanted:
        return True, "the file on disk is the planned text"
    lines = [
        line for line in difflib.unified_diff(wanted.splitlines(), found.splitlines(), lineterm="", n=0) if line[:1] in "+-"
    ]
    changed = [SECRET.sub(r"\1(hidden)", line) for line in lines if not line.startswith(("+++", "---"))]
    return False, f"it was edited: {'; '.join(changed[:4])}" if changed else "it differs in line ends only"


def enabled(s: Subject) -> tuple[bool, str]:
    found = s.fact("show").get("UnitFileState") or "no such file"
    return found == "enabled", f"UnitFileState is {found}"


def why_down(s: Subject) -> str:
    """The reason systemd gives for a unit that is not running, in plain words."""
    show = s.fact("show")
    result, code = show.get("Result", ""), show.get("ExecMainStatus", "0")
    meaning = (EXIT_MEANINGS.get(code) if result in ("exit-code", "signal", "core-dump") else None) or RESULTS.get(result)
    return f"{show.get('ActiveState')} ({show.get('SubState')}), result {result} {code}" + (f": {meaning}" if meaning else "")


def active(s: Subject) -> tuple[bool, str]:
    show = s.fact("show")
    up = show.get("ActiveState") == "active" and show.get("SubState") == "running"
    return up, "active (running)" if up else why_down(s)


def stable(s: Subject) -> tuple[bool, str]:
    before, after = s.fact("show"), s.fact("show_later")
    same = all(before.get(name) == after.get(name) for name in ("NRestarts", "MainPID", "ExecMainStartTimestampMonotonic"))
    return same, f"{after.get('NRestarts')} restarts" + ("" if same else ", and it restarted while being looked at")


def reloaded(s: Subject) -> tuple[bool, str]:
    found = s.fact("show", "NeedDaemonReload")
    return (
        found == "no",
        "systemd has read the files as they are" if found == "no" else "the unit changed on disk since systemd read it",
    )


def origin(s: Subject) -> tuple[bool, str]:
    """A unit of the same name in /run/systemd or a masked one would win over ours."""
    found = s.fact("show").get("FragmentPath") or "nowhere"
    return found == s.unit_path, f"systemd reads it from {found}"


def effective(s: Subject, key: str, planned: list[str]) -> tuple[bool, str]:
    shown = s.fact("show")
    name = unitfile.property_name(key)
    if s.fact("show", "LoadState") != "loaded":
        raise CannotTell(f"the unit is {s.fact('show', 'LoadState')}")
    if name not in shown:
        raise CannotTell(f"this systemd does not report {name}")
    try:
        same = unitfile.agrees(key, planned, shown[name])
    except ValueError as problem:
        raise CannotTell(f"{name}: {problem}") from None
    wanted = " ".join(planned) or "(empty)"
    return same, f"{name} is {shown[name].strip() or '(empty)'}" + ("" if same else f", planned {wanted}")


def filtered(s: Subject, planned: list[str]) -> tuple[bool, str]:
    shown = s.fact("show")
    if "SystemCallFilter" not in shown:
        raise CannotTell("this systemd does not report SystemCallFilter")
    weak = unitfile.filtered(planned, shown["SystemCallFilter"])
    return not weak, weak or f"{len(shown['SystemCallFilter'].split())} system calls are named"


def not_notify(s: Subject) -> tuple[bool, str]:
    """llama-server never calls sd_notify: with Type=notify systemd kills it at the timeout."""
    found = s.fact("show", "Type")
    return not found.startswith("notify"), f"Type is {found}"


def patient(s: Subject) -> tuple[bool, str]:
    """Loading must not run into systemd's start timeout; with Type=exec or simple it covers the start of the program only."""
    kind, waits = s.fact("show", "Type"), bool(s.fact("show").get("ExecStartPost"))
    span = unitfile.microseconds(s.fact("show", "TimeoutStartUSec"))
    if kind in ("exec", "simple") and not waits:
        return True, f"Type={kind}: the start timeout does not cover loading the model"
    needed = int(s.expect["llama_server_start_timeout_s"])
    return (
        span is None or span >= needed * 10**6,
        f"the start timeout is {s.fact('show', 'TimeoutStartUSec')}, loading may take {needed} s",
    )


def exposure(s: Subject) -> tuple[bool, str]:
    found = s.fact("security", "out")
    match = re.search(r"exposure level for \S+: ([\d.]+)", found)
    if not match:
        raise CannotTell(f"systemd-analyze security: {' '.join(found.split())[:200] or 'no output'}")
    return float(match.group(1)) <= MAX_EXPOSURE, f"exposure {match.group(1)}, at most {MAX_EXPOSURE}"


def silent(s: Subject) -> tuple[bool, str]:
    """Its exit code is 0 for keys in the wrong section and unknown escapes; only what it prints counts."""
    found = s.fact("lint", "out")
    lines = [line.strip() for line in found.splitlines() if s.unit in line]
    if not lines and s.fact("lint", "rc") != 0:
        raise CannotTell(f"systemd-analyze verify failed: {' '.join(found.split())[:200]}")
    return not lines, "; ".join(lines[:3]) or "systemd has no complaint"


def checks(s: Subject) -> Iterator[Check]:
    yield s.check("unit.loaded", s.provision, loaded)
    yield s.check("unit.text", f"{s.provision} (your own settings belong in the inventory or a drop-in)", text)
    yield s.check("unit.path", f"on {s.name}: systemctl cat {s.unit}; then {s.provision}", origin)
    yield s.check("unit.enabled", s.provision, enabled)
    yield s.check("unit.active", s.log, active)
    yield s.check("unit.stable", s.log, stable)
    yield s.check("unit.reloaded", f"on {s.name}: systemctl daemon-reload, then {s.provision}", reloaded)
    yield s.check("unit.type", s.provision, not_notify)
    yield s.check("unit.patient", s.provision, patient)
    for section in ("Unit", "Service", "Install"):
        for key, planned in sorted(s.planned_unit.get(section, {}).items()):
            if key not in unitfile.ELSEWHERE:
                yield s.check(f"unit.effective:{key}", s.provision, effective, key, planned)
    for key, value in HARDENED.items():
        yield s.check(f"unit.hardened:{key}", s.provision, effective, key, [value] if value else [])
    planned = s.planned_unit.get("Service", {}).get("SystemCallFilter", [])
    yield s.check("unit.hardened:SystemCallFilter", s.provision, filtered, planned)
    yield s.check("unit.exposure", f"on {s.name}: systemd-analyze security {s.unit}", exposure)
    yield s.check("unit.lint", f"on {s.name}: systemd-analyze verify {s.unit}", silent)


def test_unit(check: Check, judge: Any) -> None:
    judge(check)
