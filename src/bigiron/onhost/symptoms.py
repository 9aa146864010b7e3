"""Why a unit died, in plain words, from what systemd says about it; and text with the secrets cut out.

Runs on hosts: standard library only. Codes are systemd.exec(5), "process exit codes"; results are systemd's ``Result=``.
"""

from __future__ import annotations

import re
import signal
from typing import Any, Dict, Iterable, NamedTuple, Optional, Tuple

from .kinds.service import gave_up

KILLED, DUMPED = 2, 3  # ExecMainCode: CLD_KILLED, CLD_DUMPED of waitid(2)

SET_UP = {
    200: ("200/CHDIR: the working directory does not exist", "apply the roles base and llama_cpp"),
    203: ("203/EXEC: the program is missing or cannot be executed", "look at ExecStart and at the release it names"),
    205: ("205/LIMITS: a resource limit cannot be set", "a container's own hard limit wins over the unit's"),
    214: ("214/SETSCHEDULER: the scheduling policy cannot be set", None),
    216: ("216/GROUP: a group of the unit does not exist", "apply the role base, or create the group"),
    217: ("217/USER: the user of the unit does not exist", "apply the role base"),
    218: ("218/CAPABILITIES: capabilities cannot be dropped or kept", "a container may not grant them"),
    226: ("226/NAMESPACE: the unit's view of the files cannot be set up", "a path the unit names may be missing"),
    228: ("228/SECCOMP: the system call filter cannot be set", None),
    243: (
        "243/CREDENTIALS: a credential, such as the API key, cannot be loaded",
        "look for the key file below /etc/bigiron/credentials",
    ),
}
SIGNALS: Dict[int, Tuple[str, Optional[str]]] = {
    signal.SIGILL: (
        "it died of an illegal instruction (signal 4): it was built for CPU features this one lacks",
        "build the release for this CPU",
    ),
    signal.SIGKILL: (
        "it was killed from outside (signal 9), mostly by the kernel for lack of memory",
        "look at the kernel log for oom-kill",
    ),
    signal.SIGABRT: ("it gave up on an internal check (signal 6)", "the last lines say which"),
    signal.SIGSEGV: ("it crashed on bad memory access (signal 11)", "try another release, and report it to llama.cpp"),
    signal.SIGBUS: ("it died of a bus error (signal 7): a model file was cut short or its disk failed", "verify the model"),
    signal.SIGSYS: ("it made a system call that the unit forbids (signal 31)", "look at SystemCallFilter in the unit"),
}
RESULTS = {
    "oom-kill": (
        "the kernel killed it for lack of memory (oom-kill)",
        "a smaller context or quant, or a higher memory limit of the unit",
    ),
    "resources": (
        "systemd could not prepare it: an environment file, a credential or a mount is missing",
        "systemctl status names it",
    ),
    "timeout": ("it took longer to start or stop than the unit allows", "raise TimeoutStartSec"),
    "watchdog": ("it no longer answered systemd's watchdog", None),
    "start-limit-hit": ("start limit hit: it died so often that systemd stopped restarting it", None),
    "exec-condition": ("its start condition said no", None),
}
# what keys look like in logs: our own flags and headers, and the hub's tokens
SECRET = re.compile(
    r"""((?:--api-key|LLAMA_API_KEY|HF_TOKEN|HUGGING_FACE_HUB_TOKEN)["']?[ =:,]+["']?|Bearer\s+)[^\s'"]+"""
    r"""|()\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,})"""
)


class Died(NamedTuple):
    """One sentence on what happened, and the next step."""

    what: str
    hint: Optional[str]


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` with every one of ``secrets``, and everything that looks like a key or a token, replaced by ***."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return SECRET.sub(lambda match: "".join(filter(None, match.groups())) + "***", text)


def explain(unit: str, first: Dict[str, Any], now: Dict[str, Any]) -> Optional[Died]:
    """Why ``unit`` is not going to serve, or None while it runs or may still start.

    ``first`` and ``now`` are `service.parse_show` of two moments: a restart or another pid in between is a death too.
    """
    died = _explain(first, now)
    if not died or not gave_up(now):
        return died
    limit = RESULTS["start-limit-hit"][0]
    what = died.what if died.what == limit else f"{died.what}; {limit}"
    return Died(
        what,
        f"{died.hint}; then systemctl reset-failed {unit}"
        if died.hint
        else f"fix the cause, then systemctl reset-failed {unit}",
    )


def _explain(first: Dict[str, Any], now: Dict[str, Any]) -> Optional[Died]:
    if "error" in now:
        return Died(f"systemd does not tell: {now['error']}", None)
    state, result = now.get("ActiveState"), now.get("Result", "success")
    if now.get("LoadState") in ("bad-setting", "error", "masked"):
        return Died(f"systemd cannot use the unit ({now['LoadState']})", "systemd-analyze verify names the line")
    restarted = int(now.get("NRestarts") or 0) > int(first.get("NRestarts") or 0) or (
        bool(first.get("MainPID")) and now.get("MainPID") != first.get("MainPID")
    )
    if state == "inactive" and not now.get("Job") and _unmet(now):
        return Died("systemd did not start it: a condition of the unit does not hold", "is the model's file system mounted?")
    again = now.get("SubState") == "auto-restart"
    if state == "failed" or again or restarted:
        return _cause(now, result)
    if state == "inactive" and not now.get("Job"):
        if first is now and not now.get("MainPID") and result == "success":
            return Died("it is not running, and nothing is starting it", "systemctl start it, or apply the role llama_server")
        return _cause(now, result)
    return None


def _unmet(now: Dict[str, Any]) -> bool:
    """Whether a condition or assertion failed at the last start; both read "no" on a unit that was never started."""
    return any(now.get(f"{each}TimestampMonotonic") and now.get(f"{each}Result") is False for each in ("Condition", "Assert"))


def _cause(now: Dict[str, Any], result: str) -> Died:
    status, code = int(now.get("ExecMainStatus") or 0), int(now.get("ExecMainCode") or 0)
    if result in RESULTS and result != "start-limit-hit":
        return Died(*RESULTS[result])
    if code in (KILLED, DUMPED):
        known = SIGNALS.get(status)
        return Died(*known) if known else Died(f"it was killed by signal {status}", None)
    if status in SET_UP and result in ("exit-code", "start-limit-hit"):
        return Died(f"it was not started: {SET_UP[status][0]}", SET_UP[status][1])
    if status:
        return Died(f"it ended with exit code {status}", "the last lines say why")
    if result in RESULTS:
        return Died(*RESULTS[result])
    if result != "success":
        return Died(f"a command before or after its start failed ({result})", "the last lines say why")
    return Died("it ended by itself, without an error", "the last lines may say why")
