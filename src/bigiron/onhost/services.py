"""Services and listening ports of a host: one ``systemctl show`` for all units, who owns a socket, and whether it answers.

Runs on hosts: standard library only. Unreadable things are ``{"error": why}``, never absent.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from .system import Tree, fields

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
HEALTH_TIMEOUT_S = 2.0


class Listener(NamedTuple):
    """A TCP socket in state LISTEN."""

    port: int
    address: str
    inode: int


class Answer(NamedTuple):
    """What an HTTP GET brought: ``status`` None when nobody answered in HTTP. ``detail`` says why it is not 200."""

    status: Optional[int]
    detail: str


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


def _address(text: str) -> str:
    """The address of /proc/net/tcp{,6}: hex words of 32 bits in the machine's own byte order."""
    words = [bytes.fromhex(text[at : at + 8]) for at in range(0, len(text), 8)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def listeners(tree: Tree, ports: Iterable[int]) -> List[Listener]:
    """Who listens on ``ports``, IPv4 and IPv6, as sockets (`owners` finds the processes)."""
    wanted = set(ports)
    found: List[Listener] = []
    for name in ("/proc/net/tcp", "/proc/net/tcp6") if wanted else ():
        for line in tree.text(name).splitlines()[1:]:
            parts = line.split()
            if len(parts) < 10 or parts[3] != "0A":
                continue
            address, _, port = parts[1].partition(":")
            if int(port, 16) in wanted:
                found.append(Listener(int(port, 16), _address(address), int(parts[9])))
    return found


def owners(tree: Tree, inodes: Iterable[int], first: Sequence[int] = ()) -> Dict[int, int]:
    """Socket inode -> pid, looking at ``first`` before all others. Without root, other users' processes stay unseen."""
    missing: Set[str] = {f"socket:[{inode}]" for inode in inodes}
    found: Dict[int, int] = {}

    def look(pid: int) -> None:
        folder = f"{tree.root}/proc/{pid}/fd"
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    target = str(Path(entry.path).readlink())
                    if target in missing:
                        missing.discard(target)
                        found[int(target[8:-1])] = pid
        except OSError:
            return  # gone meanwhile, or another user's: the caller sees that the inode has no owner

    for pid in first:
        if missing:
            look(pid)
    if missing:
        for name in tree.names("/proc"):
            if name.isdigit() and int(name) not in first and missing:
                look(int(name))
    return found


def unit_of(tree: Tree, pid: int) -> Optional[str]:
    """The systemd unit a process belongs to, from its cgroup."""
    names = re.findall(r"/([^/\n]+\.(?:service|scope))(?=/|$)", tree.text(f"/proc/{pid}/cgroup"), re.MULTILINE)
    return names[-1] if names else None


def program(tree: Tree, pid: int) -> str:
    """The name of a process: its executable's, or the kernel's short one."""
    executable = tree.link(f"/proc/{pid}/exe")
    return Path(executable).name if executable else tree.text(f"/proc/{pid}/comm")


def started(tree: Tree, pid: int) -> Optional[float]:
    """When a process started, seconds since the epoch (proc(5): stat field 22, ticks since boot)."""
    after_name = tree.text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    boot = re.search(r"^btime (\d+)$", tree.text("/proc/stat"), re.MULTILINE)
    if len(after_name) < 20 or not boot:
        return None
    booted = float(boot.group(1))
    if tree.is_here:  # btime is whole seconds; a file written in the second of the start must not look newer than the process
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted + (int(after_name[19]) + 1) / os.sysconf("SC_CLK_TCK")


def reachable(host: str) -> str:
    """The address to connect to for a listen address: a wildcard is reached on loopback."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def http_get(host: str, port: int, path: str, timeout_s: float = HEALTH_TIMEOUT_S) -> Answer:
    """One GET without a key; never raises. The whole exchange takes at most about ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    data = b""
    try:
        with socket.create_connection((reachable(host), port), timeout=timeout_s) as channel:
            channel.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            while len(data) < 65536 and (left := deadline - time.monotonic()) > 0:
                channel.settimeout(left)
                piece = channel.recv(65536)
                if not piece:
                    break
                data += piece
    except OSError as error:
        late = isinstance(error, socket.timeout)
        problem = f"no answer within {timeout_s:.0f} s" if late else (error.strerror or str(error)).lower()
        if not data:
            return Answer(None, problem)
    match = re.match(rb"HTTP/1\.[01] (\d{3})\b", data)
    if not match:
        return Answer(None, "what answers does not speak HTTP" if data else f"no answer within {timeout_s:.0f} s")
    status = int(match.group(1))
    return Answer(status, "" if status == 200 else reason(data.partition(b"\r\n\r\n")[2]))


def reason(body: bytes) -> str:
    """llama-server's error message, or the beginning of whatever else came."""
    text = body.decode(errors="replace").strip()
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]


def observe_ports(tree: Tree, ports: Iterable[int], first: Sequence[int]) -> Tuple[Dict[str, Any], Dict[int, int]]:
    """The query's ``ports`` by number, and the pids that own their sockets' inodes. A free port has no key."""
    sockets = listeners(tree, ports)
    pids = owners(tree, (each.inode for each in sockets), first) if sockets else {}
    found: Dict[str, Any] = {}
    for each in sockets:
        pid = pids.get(each.inode)
        entry: Dict[str, Any] = {"pid": pid, "program": None, "unit": None, "address": each.address}
        if pid is None:
            entry["error"] = "somebody listens, but this user may not see whose process it is"
        else:
            entry.update(program=program(tree, pid), unit=unit_of(tree, pid))
        known = found.get(str(each.port))
        if known is None:
            found[str(each.port)] = entry
        else:
            known.setdefault("also", []).append(entry)
    return found, pids


def _process(tree: Tree, pid: int) -> Dict[str, Any]:
    executable = tree.link(f"/proc/{pid}/exe")
    why = tree.unreadable.get(f"/proc/{pid}/exe")
    return {"exe": {"error": why} if why else executable, "started": started(tree, pid)}


def observe(
    tree: Tree, shown: Dict[str, Dict[str, Any]], health: Dict[str, Dict[str, Any]], ports: Iterable[int]
) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """(services, ports): ``shown`` (`parse_show`) with each unit's process, health and listener, and who has the ports."""
    pids = [unit["MainPID"] for unit in shown.values() if unit.get("MainPID")]
    asked = {int(port) for port in ports}
    all_ports = asked | {int(each["port"]) for each in health.values()}
    found, by_inode = observe_ports(tree, all_ports, pids)
    sockets = listeners(tree, all_ports)
    services = {name: dict(unit) for name, unit in shown.items()}
    threads = []
    for name, unit in services.items():
        pid = unit.get("MainPID")
        if pid:
            unit.update(_process(tree, pid))
        where = health.get(name)
        if where is None:
            continue
        port = int(where["port"])
        unit.update(health=None, health_detail="", listening=False)
        unit["listening"] = bool(pid) and any(each.port == port and by_inode.get(each.inode) == pid for each in sockets)
        if str(port) in found:
            threads.append(threading.Thread(target=_ask, args=(unit, str(where.get("host", "")), port)))
        else:
            unit["health_detail"] = f"nobody listens on port {port}"
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return services, {port: entry for port, entry in found.items() if int(port) in asked}


def _ask(unit: Dict[str, Any], host: str, port: int) -> None:
    unit["health"], unit["health_detail"] = http_get(host, port, "/health")


def resident_bytes(tree: Tree, pid: int) -> int:
    """Memory a process has resident (VmRSS), 0 when it is gone."""
    digits = fields(tree.text(f"/proc/{pid}/status")).get("VmRSS", "").split()[:1]
    return int(digits[0]) * 1024 if digits and digits[0].isdigit() else 0
