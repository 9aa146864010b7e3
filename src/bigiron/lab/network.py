"""The lab's private network: a bridge with a free /24, address translation for apt, and everything put back afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import ipaddress
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from bigiron.errors import BigironError
from bigiron.lab import firewall, state, tools

SHARED = Path("/run/bigiron-lab")
"""What labs of different folders must agree on (ip_forward, subnets). In /run, because a reboot undoes all of it."""

FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def candidates(key: str) -> Iterator[ipaddress.IPv4Network]:
    """Every 10.x.y.0/24, in an order that depends on ``key`` alone, so that a folder keeps its subnet."""
    start = int.from_bytes(hashlib.sha256(f"subnet {key}".encode()).digest()[:2], "big")
    for step in range(65536):
        third = (start + step * 257) % 65536
        yield ipaddress.IPv4Network(((10 << 24) | (third << 8), 24))


def choose_subnet(key: str, taken: Iterable[ipaddress.IPv4Network]) -> ipaddress.IPv4Network:
    """The first candidate that overlaps nothing in ``taken``. Raises BigironError when all of 10/8 is in use."""
    used = list(taken)
    for subnet in candidates(key):
        if not any(subnet.overlaps(other) for other in used):
            return subnet
    raise BigironError("every 10.x.y.0/24 is already routed on this machine", hint="free one for the lab's bridge")


def taken_subnets(routes: str, resolv_conf: str, *, ours: str) -> list[ipaddress.IPv4Network]:
    """Networks in use: ``ip -j -4 route show table all`` less the default route and our own bridge, and the name servers."""
    networks = []
    for route in json.loads(routes or "[]"):
        destination = route.get("dst", "default")
        if destination == "default" or route.get("dev") == ours:
            continue
        with contextlib.suppress(ValueError):
            networks.append(ipaddress.IPv4Network(destination, strict=False))
    for server in name_servers(resolv_conf):
        with contextlib.suppress(ValueError):
            networks.append(ipaddress.IPv4Network(server))
    return networks


def name_servers(resolv_conf: str) -> list[str]:
    """The name server addresses in a resolv.conf."""
    lines = (line.split() for line in resolv_conf.splitlines())
    return [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"]


def resolv_conf_for_hosts() -> str:
    """A resolv.conf that works behind the bridge: the controller's, less servers on its own loopback.

    A local stub (systemd-resolved, 127.0.0.53) cannot be reached from a container; whom it asks is in resolved's own file.
    """
    for path in (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf")):
        with contextlib.suppress(OSError):
            text = path.read_text(encoding="utf-8", errors="replace")
            kept = [line for line in text.splitlines() if not line.startswith("nameserver") or not _loopback(line)]
            if name_servers("\n".join(kept)):
                return "\n".join(kept) + "\n"
    return ""


def _loopback(line: str) -> bool:
    words = line.split()
    with contextlib.suppress(ValueError, IndexError):
        return ipaddress.ip_address(words[1].partition("%")[0]).is_loopback
    return False


def ruleset(subnet: str) -> str:
    """The nft commands that (re)make this lab's table; adding before deleting makes it one transaction that always succeeds.

    The segment size is clamped because the way out may have a smaller MTU than the bridge and drop "too big" messages.
    """
    return f"""add table ip {state.TABLE}
delete table ip {state.TABLE}
table ip {state.TABLE} {{
    chain out {{
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr {subnet} oifname != "{state.BRIDGE}" masquerade
    }}
    chain through {{
        type filter hook forward priority filter; policy accept;
        iifname "{state.BRIDGE}" tcp flags syn tcp option maxseg size set rt mtu
        oifname "{state.BRIDGE}" tcp flags syn tcp option maxseg size set rt mtu
    }}
}}
"""


def bridge_subnet() -> ipaddress.IPv4Network | None:
    """The subnet whose gateway address our bridge carries; None when it is not there, not up, or half made by a killed run."""
    shown = tools.run(["ip", "-j", "-4", "addr", "show", "dev", state.BRIDGE, "up"], check=False)
    if shown.returncode != 0:
        return None
    for link in json.loads(shown.stdout or "[]"):
        for info in link.get("addr_info", []):
            subnet = ipaddress.IPv4Network(f"{info['local']}/{info['prefixlen']}", strict=False)
            if str(subnet[1]) == info["local"]:
                return subnet
    return None


def up(wanted: str | None) -> tuple[str, str]:
    """Make bridge, table and forwarding; returns (subnet, gateway). ``wanted`` is the subnet used before, kept if still free.

    A bridge that is there keeps its subnet even when the record is lost: hosts may be running on it.
    """
    with shared_lock():
        found = bridge_subnet()
        if found is not None and wanted in {None, str(found)}:
            subnet = found
        else:
            _remove_bridge()
            routes = tools.run(["ip", "-j", "-4", "route", "show", "table", "all"]).stdout
            resolv = resolv_conf_for_hosts()
            taken = taken_subnets(routes, resolv, ours=state.BRIDGE)
            before = ipaddress.IPv4Network(wanted) if wanted is not None else None
            free = before is not None and not any(before.overlaps(other) for other in taken)
            subnet = before if before is not None and free else choose_subnet(state.KEY, taken)
            tools.run(["ip", "link", "add", "name", state.BRIDGE, "type", "bridge"])
            tools.run(["ip", "addr", "add", f"{subnet[1]}/24", "dev", state.BRIDGE])
            tools.run(["ip", "link", "set", state.BRIDGE, "up"])
        tools.run(["nft", "-f", "-"], text=ruleset(str(subnet)))
        firewall.open_bridge()
        _forward_on()
    return str(subnet), str(subnet[1])


def down() -> None:
    """Remove table and bridge, and put ip_forward back when we changed it and no other lab needs it."""
    with shared_lock():
        firewall.close_bridge()
        tools.run(["nft", "-f", "-"], text=f"add table ip {state.TABLE}\ndelete table ip {state.TABLE}\n")
        _remove_bridge()
        _forward_off()


def _remove_bridge() -> None:
    if Path("/sys/class/net", state.BRIDGE).exists():
        tools.run(["ip", "link", "del", state.BRIDGE])


@contextlib.contextmanager
def shared_lock() -> Iterator[None]:
    """Hold the machine-wide lock. The folder is the lock file, and the last lab to go removes it; hence the second look."""
    while True:
        SHARED.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            handle = os.open(SHARED, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(handle).st_ino == SHARED.stat().st_ino:
                    yield
                    return
        finally:
            os.close(handle)


def _forward_on() -> None:
    """Switch forwarding on, remembering once what it was; noted before the switch, so that a kill between loses nothing."""
    if not (SHARED / "was").exists():
        (SHARED / "was").write_text(FORWARD.read_text(encoding="ascii").strip() + "\n", encoding="ascii")
    (SHARED / f"lab-{state.KEY}").write_text(state.BRIDGE + "\n", encoding="ascii")
    if FORWARD.read_text(encoding="ascii").strip() != "1":
        FORWARD.write_text("1\n", encoding="ascii")


def _forward_off() -> None:
    (SHARED / f"lab-{state.KEY}").unlink(missing_ok=True)
    if _users():
        return
    note = SHARED / "was"
    if note.exists() and note.read_text(encoding="ascii").strip() == "0":
        FORWARD.write_text("0\n", encoding="ascii")
    note.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        SHARED.rmdir()


def _users() -> list[str]:
    """Labs that need forwarding now: those whose bridge exists (a deleted folder's note does not count)."""
    users = []
    for note in SHARED.glob("lab-*"):
        if Path("/sys/class/net", note.read_text(encoding="ascii").strip()).exists():
            users.append(note.name)
        else:
            note.unlink(missing_ok=True)
    return users
