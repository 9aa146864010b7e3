"""A unit file's settings, in the form in which ``systemctl show`` prints them, so that planned and effective can be compared.

Spellings from systemd.unit(5), systemd.exec(5), systemd.time(7) and the output of systemd 252.
"""

from __future__ import annotations

import errno
import re
import signal

TIMES = {
    "StartLimitIntervalSec": "StartLimitIntervalUSec",
    "TimeoutStartSec": "TimeoutStartUSec",
    "TimeoutStopSec": "TimeoutStopUSec",
    "RestartSec": "RestartUSec",
    "RuntimeMaxSec": "RuntimeMaxUSec",
    "WatchdogSec": "WatchdogUSec",
}
SIZES = {"MemoryMax", "MemoryHigh", "MemoryMin", "MemoryLow", "MemorySwapMax", "TasksMax"}
PARTIAL = {"After", "Before", "Wants", "Requires", "WantedBy", "RequiresMountsFor", "Conflicts"}
"""systemd adds implied entries to these: what is planned must be among them."""
ELSEWHERE = {
    "ExecStart", "ExecStartPre", "ExecStartPost", "ExecStop", "Environment", "EnvironmentFile", "Description",
    "SystemCallFilter", "LoadCredential",
}  # fmt: skip
"""Judged by other checks: the process's arguments and environment, the key it admits (systemctl prints ``LoadCredential`` as
"[unprintable]"), or a rule of their own."""
IMPLIED_DEVICES = {"char-rtc r"}
"""ProtectClock= allows reading the real-time clock (systemd.exec(5))."""
_SPAN = {
    "us": 1, "usec": 1, "ms": 10**3, "msec": 10**3, "s": 10**6, "sec": 10**6, "second": 10**6, "seconds": 10**6, "": 10**6,
    "m": 60 * 10**6, "min": 60 * 10**6, "minute": 60 * 10**6, "minutes": 60 * 10**6, "h": 3600 * 10**6, "hr": 3600 * 10**6,
    "hour": 3600 * 10**6, "hours": 3600 * 10**6, "d": 86400 * 10**6, "day": 86400 * 10**6, "days": 86400 * 10**6,
    "w": 7 * 86400 * 10**6, "week": 7 * 86400 * 10**6, "weeks": 7 * 86400 * 10**6,
}  # fmt: skip
DENIED_EXAMPLES = {
    "@privileged": "chroot",
    "@mount": "mount",
    "@module": "init_module",
    "@debug": "ptrace",
    "@reboot": "reboot",
    "@swap": "swapon",
    "@clock": "settimeofday",
    "@raw-io": "iopl",
    "@obsolete": "uselib",
    "@cpu-emulation": "vm86",
}
"""One system call of each group (systemd.exec(5), "Currently predefined system call sets"): gone when the group is denied."""


def parse(text: str) -> dict[str, dict[str, list[str]]]:
    """``{section: {key: [values]}}``; comments and continuation as in systemd.syntax(7), an empty value empties the list."""
    sections: dict[str, dict[str, list[str]]] = {}
    current: dict[str, list[str]] = {}
    pending = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        line, pending = pending + line, ""
        if line.startswith("[") and line.endswith("]"):
            current = sections.setdefault(line[1:-1], {})
            continue
        key, _, value = line.partition("=")
        values = current.setdefault(key.strip(), [])
        if value.strip():
            values.append(value.strip())
        else:
            values.clear()
    return sections


def microseconds(text: str) -> int | None:
    """A time span, ``"1min 30s"`` or ``"90"`` (seconds); None is infinity. Raises ValueError for anything else."""
    if text.strip() == "infinity":
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text)
    if not re.fullmatch(r"(\s*\d+(\.\d+)?\s*[a-z]*)+\s*", text) or any(unit not in _SPAN for _, unit in parts):
        raise ValueError(f"no time span: {text!r}")
    return round(sum(float(number) * _SPAN[unit] for number, unit in parts))


def size(text: str) -> int | None:
    """``"64G"`` or bytes; None is infinity. Raises ValueError for anything else (a percentage, say)."""
    if text.strip() in ("infinity", str(2**64 - 1)):
        return None
    match = re.fullmatch(r"(\d+)([KMGT]?)", text.strip())
    if not match:
        raise ValueError(f"no size: {text!r}")
    return int(match.group(1)) << 10 * " KMGT".index(match.group(2) or " ")


def _word(text: str) -> str:
    text = text.replace("%%", "%").strip()
    if text.lower() in ("yes", "true", "on", "1"):
        return "yes"
    if text.lower() in ("no", "false", "off", "0"):
        return "no"
    if text in signal.Signals.__members__:
        return str(int(signal.Signals[text]))
    return text


def _system_error(text: str) -> str:
    return errno.errorcode.get(int(text), text) if text.isdigit() else text


def _entries(key: str, text: str) -> set[str]:
    if key == "DeviceAllow":
        return {entry for entry in text.splitlines() if entry} - IMPLIED_DEVICES
    if key.endswith("BoundingSet") or key == "AmbientCapabilities":
        return {entry.lower() for entry in text.split()}
    return {_word(entry) for entry in text.split()}


def property_name(key: str) -> str:
    return TIMES.get(key, key)


def agrees(key: str, planned: list[str], effective: str) -> bool:
    """Does what ``systemctl show`` prints for ``key`` mean what the unit file says? Raises ValueError where it cannot tell."""
    last = planned[-1] if planned else ""
    if key in TIMES:
        return microseconds(last) == microseconds(effective)
    if key in SIZES or key.startswith("Limit"):
        return size(last.rpartition(":")[2]) == size(effective)
    if key == "SystemCallErrorNumber":
        return _system_error(last) == _system_error(effective)
    if key == "UMask":
        return int(last, 8) == int(effective, 8)
    wanted, found = _entries(key, "\n".join(planned)), _entries(key, effective)
    return wanted <= found if key in PARTIAL else wanted == found


def filtered(planned: list[str], effective: str) -> str:
    """Why the effective SystemCallFilter is weaker than planned; empty when it is as planned.

    ``systemctl show`` prints every single system call, so groups are judged by a member: denied means it is not in the list.
    """
    calls = effective.split()
    if not calls:
        return "no system call is filtered"
    denying = calls[0].startswith("~")
    named = {call.lstrip("~").partition(":")[0] for call in calls}
    for group in " ".join(value[1:] for value in planned if value.startswith("~")).split():
        example = DENIED_EXAMPLES.get(group, group)
        if (example in named) != denying:
            return f"{example} is allowed although {group} is denied"
    return ""
