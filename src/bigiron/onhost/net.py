"""TCP of a host: who listens on a port, which process that is, and what it answers over HTTP.

Unreadable things say why, they are never taken for absent.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set

from .system import Tree

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
