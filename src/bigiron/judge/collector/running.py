# ruff: noqa: PTH110, PTH118, PTH208
"""What runs: the unit as systemd has it, the process and its sockets as the kernel has them."""

from __future__ import annotations

import concurrent.futures
import os
import re
import socket
import sys
from typing import Any, Optional

from .basics import guarded, program_of, read_bytes, read_text, run
from .serving import masked, masked_text, secrets, serving

JOURNAL_LINES = 20000
RESTART_SIGNS = ("NRestarts", "MainPID", "ExecMainStartTimestampMonotonic")


def first_line(answer: dict[str, Any]) -> str:
    return str((answer["out"].strip().splitlines() or ["no output"])[0])


def show(unit: str) -> dict[str, Any]:
    """``systemctl show`` as a dictionary; a property printed several times keeps all its lines."""
    first = read_text("/proc/1/comm").strip()
    if first not in ("systemd", "init"):
        return {"error": f"systemd is not PID 1 here, it is {first}"}
    answer = run(["systemctl", "show", "--no-pager", "--all", unit])
    if "error" in answer:
        return answer
    if re.search(r"chroot.*ignoring|ignoring.*chroot", answer["out"], re.IGNORECASE):
        return {"error": f"systemctl runs in a chroot and ignores the command: {first_line(answer)}"}
    if answer["rc"] != 0 or "LoadState=" not in answer["out"]:
        return {"error": f"systemctl show failed: {first_line(answer)}"}
    properties: dict[str, Any] = {}
    for line in answer["out"].splitlines():
        name, found, value = line.partition("=")
        if found and re.fullmatch(r"[A-Za-z]\w*", name):
            properties[name] = properties[name] + "\n" + value if name in properties else value
    return properties


def drop_ins(paths: str) -> dict[str, Any]:
    """By file, in the order in which systemd applies them: the settings that each sets, as ``"Service.ExecStart"``; no values."""
    return {path: guarded(settings_of, path) for path in paths.split()}


def settings_of(path: str) -> list[Any]:
    section, names, continued = "", [], False
    for line in read_text(path).splitlines():
        line = line.strip()  # noqa: PLW2901
        if not line or line[0] in "#;":
            continue
        if not continued and line.startswith("["):
            section = line.strip("[]")
        elif not continued:
            names.append(section + "." + line.partition("=")[0].strip())
        continued = line.endswith("\\")
    return sorted(set(names))


def service(request: dict[str, Any], pool: concurrent.futures.Executor, deep: bool) -> dict[str, Any]:
    """A unit, its process and its server. ``request``: ``{"unit", "place": [host, port], "key_file", "env_names", "config_dir", "scan"}``."""
    unit, port = request["unit"], request["place"][1]
    shown = guarded(show, unit)
    none = {"error": shown["error"]} if "error" in shown else None
    jobs = {"serving": pool.submit(guarded, serving, request)}
    if none is None:
        jobs["security"] = pool.submit(guarded, run, ["systemd-analyze", "security", "--no-pager", unit])
        jobs["lint"] = pool.submit(guarded, lint, unit)
    lines = [] if deep else ["-n", str(JOURNAL_LINES)]
    journal = pool.submit(guarded, run, ["journalctl", "--no-pager", "-q", "-o", "cat", "-u", unit, *lines])
    pid = int(shown.get("MainPID") or 0)
    stopped = none or {"error": f"{unit} has no running process", "missing": True}
    facts = {
        "drop_ins": none or drop_ins(shown.get("DropInPaths", "")),
        "process": guarded(process, pid, request["env_names"]) if pid else stopped,
        "listen": guarded(listeners, pid, port),
        "security": none,
        "lint": none,
    }
    facts.update({name: job.result() for name, job in jobs.items()})
    facts["secrets"] = guarded(secrets, request, journal.result(), shown)
    facts["show"] = none or {name: masked_text(value) for name, value in shown.items()}
    later = guarded(show, unit)
    facts["show_later"] = later if "error" in later else {name: later.get(name) for name in RESTART_SIGNS}
    return facts


def lint(unit: str) -> dict[str, Any]:
    """The complaints of systemd itself about ``unit`` with its drop-ins merged. The options need systemd 250, older ones do without."""
    answer = run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit])
    if "unrecognized option" in answer.get("out", ""):
        answer = run(["systemd-analyze", "verify", unit])
    return answer


def process(pid: int, planned: list[str]) -> dict[str, Any]:
    """What the kernel says about the running server. Of variables that are not planned only the names are returned."""
    root = f"/proc/{pid}/"

    def environment() -> dict[str, Any]:
        pairs = [item.partition(b"=") for item in read_bytes(root + "environ").split(b"\0") if item]
        values = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, _, value in pairs}
        return {"names": sorted(values), "planned": {name: values[name] for name in planned if name in values}}

    return {
        "pid": pid,
        "exe": guarded(os.readlink, root + "exe"),
        "cmdline": guarded(
            lambda: masked([word.decode("utf-8", "surrogateescape") for word in read_bytes(root + "cmdline").split(b"\0")[:-1]])
        ),
        "environ": guarded(environment),
        "limits": guarded(limits, root + "limits"),
        "caps": guarded(limits, "/proc/1/limits"),
        "status": guarded(
            lambda: {
                name: value.strip()
                for name, _, value in (line.partition(":") for line in read_text(root + "status").splitlines())
            }
        ),
        "oom_score_adj": guarded(lambda: int(read_text(root + "oom_score_adj"))),
        "sockets": guarded(sockets_of, pid),
    }


def limits(path: str) -> dict[str, Any]:
    found = {}
    for line in read_text(path).splitlines()[1:]:
        match = re.match(r"(Max .+?)\s{2,}(\S+)\s+(\S+)", line)
        if match:
            found[match.group(1)] = [match.group(2), match.group(3)]
    return found


def sockets_of(pid: int) -> list[Any]:
    root = f"/proc/{pid}/fd"
    targets = [guarded(os.readlink, os.path.join(root, name)) for name in os.listdir(root)]
    return [int(target[8:-1]) for target in targets if isinstance(target, str) and target.startswith("socket:[")]


def address_of(word: str) -> str:
    """``0100007F`` (as /proc/net/tcp writes it on this machine's byte order) as ``127.0.0.1``; IPv6 in its usual form."""
    data = b"".join(int(word[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(word), 8))
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)


def listeners(pid: Optional[int], port: int) -> dict[str, Any]:
    """Listening TCP sockets in the server's network namespace, and who owns ``port`` when it is not the server."""
    base = f"/proc/{pid}/net/" if pid and os.access(f"/proc/{pid}/net/tcp", os.R_OK) else "/proc/net/"
    sockets = []
    for name in ("tcp", "tcp6"):
        for line in guarded(read_text, base + name).splitlines()[1:] if os.path.exists(base + name) else []:
            fields = line.split()
            if fields[3] == "0A":
                address, _, number = fields[1].partition(":")
                sockets.append({"address": address_of(address), "port": int(number, 16), "inode": int(fields[9])})
    owners = {}
    wanted = {entry["inode"] for entry in sockets if entry["port"] == port}
    for name in os.listdir("/proc") if wanted and os.geteuid() == 0 else []:
        if name.isdigit():
            mine = guarded(sockets_of, int(name))
            if isinstance(mine, list) and wanted & set(mine):
                owners[name] = guarded(program_of, name)
    return {"sockets": sockets, "owners": owners}
