"""A systemd service: loaded, enabled, running the planned program as planned, not older than what it was started from, and ready."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Tuple

from ..dropins import overrides
from ..net import http_get, listeners, owners
from ..processes import started
from ..reader import Reader, unreadable
from ..system import Output

SECTION = "services"

TIMES = ("ConditionTimestampMonotonic", "AssertTimestampMonotonic")
INTEGERS = ("MainPID", "NRestarts", "ExecMainStatus", "ExecMainCode", "StartLimitBurst", "Job", *TIMES)
BOOLEANS = ("NeedDaemonReload", "ConditionResult", "AssertResult")
LISTS = ("DropInPaths",)
TEXTS = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "FragmentPath",
    "Result",
    "StartLimitIntervalUSec",
    "InvocationID",
)
SECRET_OPTIONS = ("--api-key", "--hf-token", "-hft")


def show_argv(units: Iterable[str]) -> List[str]:
    """The one call that tells everything about ``units`` (names or glob patterns)."""
    wanted = ",".join((*TEXTS, *INTEGERS, *BOOLEANS, *LISTS))
    return ["systemctl", "show", "--no-pager", f"--property={wanted}", "--", *units]


def parse_show(text: str) -> Dict[str, Dict[str, Any]]:
    """``systemctl show``'s blocks by unit name, numbers and booleans as such. Units that are not there are left out."""
    found: Dict[str, Dict[str, Any]] = {}
    for block in text.split("\n\n"):
        unit: Dict[str, Any] = {}
        for name, equals, value in (line.partition("=") for line in block.splitlines()):
            if not equals:
                continue
            if name in INTEGERS:
                unit[name] = int(value) if value.isdigit() else 0
            elif name in BOOLEANS:
                unit[name] = value == "yes"
            elif name in LISTS:
                unit[name] = value.split()
            elif name in TEXTS:
                unit[name] = value
        here = unit.get("LoadState") != "not-found" or unit.get("ActiveState") not in ("inactive", None)
        if unit.get("Id") and here:
            found[unit.pop("Id")] = unit
    return found


def gave_up(unit: Mapping[str, Any]) -> bool:
    """Whether systemd has stopped restarting it. ``Result`` mostly keeps the cause of the last death instead of ``start-limit-hit``."""
    limit = int(unit.get("StartLimitBurst") or 0)
    return unit.get("ActiveState") == "failed" and (
        unit.get("Result") == "start-limit-hit" or 0 < limit <= int(unit.get("NRestarts") or 0)
    )


def _process(reader: Reader, pid: int, depends_on: Iterable[str]) -> Dict[str, Any]:
    """Program, arguments, start in seconds since the epoch, and which of ``depends_on`` changed since (a link by its own change)."""
    executable = reader.tree.link(f"/proc/{pid}/exe")
    why = reader.tree.unreadable.get(f"/proc/{pid}/exe")
    since = started(reader.tree, pid)
    words = [
        word.decode("utf-8", "surrogateescape") for word in (reader.tree.data(f"/proc/{pid}/cmdline") or b"").split(b"\0")[:-1]
    ]
    for at, word in enumerate(words[:-1]):
        if word in SECRET_OPTIONS:
            words[at + 1] = "***"
    return {
        "exe": {"error": why} if why else executable,
        "argv": words,
        "started": since,
        "changed_since": [path for path in depends_on if since is not None and reader.status(path)[0].get("mtime", 0) > since],
    }


def observe(reader: Reader, names: Mapping[str, Mapping[str, Any]]) -> Callable[[], Dict[str, Any]]:
    """``names``: unit -> ``{"host", "port", "depends_on": [path]}``.

    By unit: `parse_show`, its process, which files changed after its start, who overrides which of its settings, whether
    the process itself listens on the port, and what ``/health`` says.
    """
    booted = reader.tree.exists("/run/systemd/system")
    show = reader.begin(show_argv(names)) if booted and names else None

    def finish() -> Dict[str, Any]:
        answer = show() if show else Output(0, "", "")
        if answer.rc != 0 and not answer.out:
            return {unit: {"error": answer.err or f"systemctl failed ({answer.rc})"} for unit in names}
        found = parse_show(answer.out)
        reader.service_pids += [unit["MainPID"] for unit in found.values() if unit.get("MainPID")]
        sockets = listeners(reader.tree, [int(where["port"]) for where in names.values()])
        pids = owners(reader.tree, (each.inode for each in sockets), reader.service_pids) if sockets else {}
        asking = []
        for name, unit in found.items():
            pid, where = unit.get("MainPID"), names.get(name)
            if where is None:
                continue
            if pid:
                unit.update(_process(reader, pid, where["depends_on"]))
            texts = {path: reader.tree.text(path) for path in unit.get("DropInPaths", ())}
            unit["overrides"] = overrides(reader.tree.text(unit.get("FragmentPath") or "/dev/null"), texts) if texts else []
            on_port = [each for each in sockets if each.port == int(where["port"])]
            unit.update(
                health=None, health_detail="", listening=bool(pid) and any(pids.get(each.inode) == pid for each in on_port)
            )
            if on_port:
                asking.append(threading.Thread(target=_ask, args=(unit, str(where["host"]), int(where["port"]))))
            else:
                unit["health_detail"] = f"nobody listens on port {where['port']}"
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        return found

    return finish


def _ask(unit: Dict[str, Any], host: str, port: int) -> None:
    unit["health"], unit["health_detail"] = http_get(host, port, "/health")


def differs(name: str, want: Mapping[str, Any], have: Any) -> Iterator[Tuple[str, str]]:
    """``want``: ``{"exe", "argv", "port", "command": [settings that decide what runs]}``."""
    if unreadable(have):
        yield unreadable(have), ""
        return
    if have is None or have.get("LoadState") in (None, "not-found"):
        yield "no such unit", ""
        return
    for path, setting in have.get("overrides", ()):
        if setting in want["command"]:
            yield f"{path} overrides {setting}=", ""
    if have.get("UnitFileState") != "enabled":
        yield f"is {have.get('UnitFileState') or 'not enabled'}, not enabled", ""
    if have.get("NeedDaemonReload"):
        yield "systemd has not read the unit file as it is now", ""
    if have.get("ActiveState") != "active":
        limit = f"; start limit hit: fix the cause, then systemctl reset-failed {name}" if gave_up(have) else ""
        yield f"is {have.get('ActiveState')} ({have.get('SubState')}, result {have.get('Result')}){limit}", ""
        return
    if have.get("exe") != want["exe"]:
        yield f"runs {have.get('exe')}, not {want['exe']}", ""
    elif have.get("argv") != want["argv"]:
        yield f"runs with other arguments: {_first_difference(have.get('argv') or [], want['argv'])}", ""
    for path in have.get("changed_since", ()):
        yield f"was started before {path} changed", ""
    if have.get("health") != 200:
        yield f"is not ready: {have.get('health_detail') or have.get('health')}", ""
    elif not have.get("listening"):
        yield f"another process answers on port {want['port']}", ""


def _first_difference(have: List[str], want: List[str]) -> str:
    for at, (mine, planned) in enumerate(zip(have, want)):
        if mine != planned:
            return f"number {at} is {mine!r}, planned {planned!r}"
    return f"{len(have)} of them, planned {len(want)}"
