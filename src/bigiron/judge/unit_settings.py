"""A unit's settings as a file says them and as ``systemctl show`` prints them, so that planned and effective can be compared.

Spellings from systemd.unit(5), systemd.exec(5), systemd.service(5), systemd.time(7) and the output of systemd 252.
"""

from __future__ import annotations

import codecs
import errno
import re
import signal
from collections.abc import Mapping
from typing import Any

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
ELSEWHERE = {"Description", "SystemCallFilter", "LoadCredential"}
"""Compared by other checks: the key that is admitted (systemctl prints ``LoadCredential`` as "[unprintable]"), or a rule of their own."""
COMMANDS = {"ExecStart", "ExecStartPre", "ExecStartPost", "ExecStop"}
ALWAYS = ("ExecStart", "Environment", "EnvironmentFile")
"""Compared even where the plan does not set them: a drop-in that does changes what runs."""
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
    return {**TIMES, "EnvironmentFile": "EnvironmentFiles"}.get(key, key)


def command(text: str) -> str:
    """The words of a planned ``ExecStart=`` as ``systemctl show`` prints them: unquoted, with blanks between."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', text)
    plain = [codecs.decode(quoted, "unicode_escape") if quoted else word for quoted, word in words]
    return " ".join(plain).replace("%%", "%").replace("$$", "$")


def commands(effective: str) -> list[str]:
    """The command lines in what ``systemctl show`` prints for ``ExecStart``."""
    return [line.replace("$$", "$") for line in re.findall(r"argv\[\]=(.*?) ; ignore_errors=", effective)]


def agrees(key: str, planned: list[str], effective: str) -> bool:
    """Does what ``systemctl show`` prints for ``key`` mean what the unit file says? Raises ValueError where it cannot tell."""
    last = planned[-1] if planned else ""
    if key in COMMANDS:
        return [command(text) for text in planned] == commands(effective)
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


def limit(text: str) -> int | None:
    """A limit of /proc/PID/limits; None is unlimited."""
    return None if text == "unlimited" else int(text)


def compared(key: str, planned: list[str], effective: str) -> tuple[str, str]:
    """What systemd has for ``key`` and what is planned, for a person to read: of commands that differ, from there on."""
    if key not in COMMANDS:
        return effective.strip() or "(empty)", " ".join(planned) or "(empty)"
    have, want = " ; ".join(commands(effective)).split(), " ; ".join(map(command, planned)).split()
    if have == want:
        return " ".join(have[:4]) + f" and {len(have) - 4} words more as planned", ""
    same = next((at for at, pair in enumerate(zip(have, want, strict=False)) if pair[0] != pair[1]), min(len(have), len(want)))
    start = "... " if same else ""
    there, wanted = (" ".join(words[same : same + 8]) for words in (have, want))
    return start + (there or "nothing more"), start + (wanted or "nothing more")


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


def why_down(show: Mapping[str, Any]) -> str:
    """The reason systemd gives for a unit that is not running, in plain words."""
    result, code = show.get("Result", ""), show.get("ExecMainStatus", "0")
    meaning = (EXIT_MEANINGS.get(code) if result in ("exit-code", "signal", "core-dump") else None) or RESULTS.get(result)
    return f"{show.get('ActiveState')} ({show.get('SubState')}), result {result} {code}" + (f": {meaning}" if meaning else "")
