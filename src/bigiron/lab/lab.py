"""The lab's commands: up, down, status, ssh, and the cheap check before every provision."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from bigiron import paths
from bigiron.errors import BigironError, Refused, Unreachable, UsageError
from bigiron.lab import state
from bigiron.lab.state import Host, State
from bigiron.units import GIB, gib

Say = Callable[[str], None]
Result = TypeVar("Result")
HOST_BYTES = GIB
"""What a lab host takes: 1.05 GB at most while it was provisioned, 0.5 GB with its server (measured, page cache included)."""


@dataclass(frozen=True)
class HostStatus:
    """One lab host: ``state`` is running, stopped or absent; ``boot_ok`` is None when it does not run, ``release`` when it has no root."""

    name: str
    release: str | None
    address: str | None
    state: str
    pid: int | None
    boot_ok: bool | None


@dataclass(frozen=True)
class LabStatus:
    """The lab of this folder. ``mirror_state`` is running, stopped or absent; the rest is None when there is no network."""

    hosts: list[HostStatus]
    bridge: str | None
    subnet: str | None
    gateway: str | None
    mirror_url: str | None
    mirror_state: str

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return asdict(self)


def up(count: int, say: Say, names: Sequence[str] | None = None, releases: Mapping[str, str] | None = None) -> LabStatus:
    """Bring up ``lab01`` to ``lab<count>`` (or ``names``), the network, the mirror and the inventory of it all; idempotent.

    ``releases`` says by name which Debian a host is to be (a codename; the controller's own when it is silent); one that is another is made anew.
    Raises Refused where a lab cannot be, UsageError for a name or release it cannot make or more hosts than fit, BigironError when a part fails.
    """
    from bigiron.lab import base, keys, mirror, network, nspawn, tools

    _check_count(count if names is None else len(set(names)), least=1 if names is None else 0)
    wanted = sorted(set(names)) if names is not None else [state.host_name(number) for number in range(1, count + 1)]
    for name in wanted:
        state.host_number(name)
    debian = _debian(wanted, releases or {})
    tools.ensure(say)
    with _locked(say):
        before = state.load()
        subnet, gateway = network.up(before.subnet if before else None)
        keep = [path.name for path in state.HOSTS.glob("lab*") if (path / "root").is_dir()]
        addresses = {name: _address(gateway, name) for name in sorted({*wanted, *keep})}
        hosts = {name: Host(address, _leader(before, name) or nspawn.find(name)) for name, address in addresses.items()}
        current = State(
            state.boot_id(), subnet, gateway, hosts, *((before.mirror, before.mirror_url) if before else (None, ""))
        )
        state.save(current)
        keys.client_key()
        keys.write_known_hosts(addresses)
        todo = []
        for name in wanted:
            leader = current.hosts[name].leader
            if _another(name, debian[name]) or leader is None or not nspawn.answers(addresses[name], 3):
                todo.append(name)
        if todo:
            bases = {release: base.ensure(release, say) for release in sorted({debian[name] for name in todo})}
            for name in todo:
                nspawn.stop(name, current.hosts[name].leader)
                if old := _another(name, debian[name]):
                    say(f"{name} is made anew: it is Debian {old}, and {debian[name]} is wanted")
                    nspawn.remove_root(name)
            say(f"booting {', '.join(todo)}")
            for name in todo:
                nspawn.ensure_root(name, bases[debian[name]])
                nspawn.configure(name, addresses[name], gateway)
                current = current.with_host(name, Host(addresses[name], nspawn.start(name)))
                state.save(current)
        served, url = mirror.serve(gateway, current.mirror, current.mirror_url, say)
        current = replace(current, mirror=served, mirror_url=url)
        state.save(current)
        for name, word in zip(todo, _at_once(lambda name: _wait(current, name), todo), strict=True):
            say(f"{name} is {word} at {addresses[name]}")
        _write_inventory(current)
    return status()


def down(say: Say) -> LabStatus:
    """Take everything down: hosts, mirror, bridge, rules, keys, generated inventory. Downloads and base root stay cached."""
    from bigiron.lab import mirror, network, nspawn, tools

    if not _anything_there():
        return status()
    why = tools.unmet()
    if why is not None:
        raise Refused(why, hint=tools.INSTEAD)
    with _locked(say):
        current = state.load()
        state.INVENTORY_STATE.unlink(missing_ok=True)
        names = sorted({*(current.hosts if current else {}), *(path.name for path in state.HOSTS.glob("lab*"))})
        if names:
            say(f"stopping {', '.join(names)}")
        _at_once(lambda name: nspawn.stop(name, _leader(current, name)), names)
        mirror.stop(current.mirror if current else None)
        network.down()
        for name in names:
            nspawn.remove(name)
        for path in state.LAB.iterdir():
            if path.name == "lock":
                continue
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return status()


def status() -> LabStatus:
    """What there is now, looked at, not remembered."""
    current = state.load()
    recorded = current.hosts if current else {}
    names = sorted({*recorded, *(path.name for path in state.HOSTS.glob("lab*") if (path / "root").is_dir())})
    bridge = Path("/sys/class/net", state.BRIDGE).exists()
    hosts = _at_once(lambda name: _host_status(name, recorded.get(name)), names)
    served = current is not None and current.mirror is not None and current.mirror.alive()
    return LabStatus(
        hosts=hosts,
        bridge=state.BRIDGE if bridge else None,
        subnet=current.subnet if current and bridge else None,
        gateway=current.gateway if current and bridge else None,
        mirror_url=current.mirror_url if current and served else None,
        mirror_state="running" if served else "stopped" if current and current.mirror else "absent",
    )


def ssh_argv(name: str) -> list[str]:
    """The ssh command that opens a shell on lab host ``name``, for os.execvp. Raises Unreachable when it is not up."""
    from bigiron.lab import nspawn

    state.host_number(name)
    current = state.load()
    host = current.hosts.get(name) if current else None
    if host is None or host.leader is None or not host.leader.alive():
        raise down_errors([name])[name]
    return nspawn.ssh_argv(name, host.address)


def down_errors(hosts: Sequence[str]) -> dict[str, Unreachable]:
    """Those of ``hosts`` that are the lab's and do not run, each with the error that says so; costs well under 20 ms."""
    current = state.load() if state.INVENTORY_STATE.exists() else None
    down = [name for name in hosts if state.is_host(name) and not _leader(current, name)]
    hint = f"./inv lab.up --host {','.join(down)}"
    return {name: Unreachable("this lab host is down", where=name, hint=hint) for name in down}


def ensure_for(hosts: Sequence[str], say: Say, releases: Mapping[str, str] | None = None) -> bool:
    """Bring up those of ``hosts`` that are the lab's, and its mirror; False, cheaply, when they are. Arguments and errors are those of :func:`up`."""
    names = [name for name in hosts if state.is_host(name)]
    debian = _debian(names, releases or {})
    current = state.load()
    served = current is not None and current.mirror is not None and current.mirror.alive()
    if not names or (served and not down_errors(names) and not any(_another(name, debian[name]) for name in names)):
        return False
    up(0, say, names=names, releases=debian)
    return True


def _debian(names: Sequence[str], releases: Mapping[str, str]) -> dict[str, str]:
    """The release that each of ``names`` is to be. Raises UsageError for one the lab cannot make."""
    from bigiron.lab import apt

    own = apt.own_release()
    return {name: apt.check_release(releases[name], name) if name in releases else own for name in names}


def _another(name: str, wanted: str) -> str | None:
    """The release of the host's root when that is not ``wanted``."""
    found = state.release_of(name)
    return found if found != wanted else None


def _at_once(work: Callable[[str], Result], names: list[str]) -> list[Result]:
    """``work`` for every name, in threads (it is all waiting); results in order, the first error raised after all ended."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=16) as pool:
        return list(pool.map(work, names))


def _check_count(count: int, least: int) -> None:
    from bigiron.onhost.probe import memory
    from bigiron.onhost.system import Tree

    if count < least:
        raise UsageError(f"{count} lab hosts is no lab", where="--count", hint=f"at least {least}")
    found = memory(Tree())
    available = found["cgroup_limit_bytes"] or found["total_bytes"]
    most = min(state.MAX_HOSTS, max(1, available // HOST_BYTES))
    if count > most:
        raise UsageError(
            f"{count} lab hosts do not fit in {gib(available)} of memory: each takes {gib(HOST_BYTES)}",
            where="lab.up",
            hint=f"at most {most} here: ./inv lab.up --count {most}",
        )


def _locked(say: Say) -> contextlib.AbstractContextManager[None]:
    return paths.locked(state.LAB / "lock", "waiting for another run that is changing this lab", say=say)


def _anything_there() -> bool:
    leftovers = [path for path in state.LAB.glob("*") if path.name != "lock"]
    return bool(leftovers) or state.INVENTORY_STATE.exists() or Path("/sys/class/net", state.BRIDGE).exists()


def _address(gateway: str, name: str) -> str:
    return f"{gateway.rpartition('.')[0]}.{10 + state.host_number(name)}"


def _leader(current: State | None, name: str) -> state.Process | None:
    host = current.hosts.get(name) if current else None
    return host.leader if host is not None and host.leader is not None and host.leader.alive() else None


def _wait(current: State, name: str) -> str:
    from bigiron.lab import nspawn

    host = current.hosts[name]
    if host.leader is None:
        raise BigironError("was not started", where=name)
    return nspawn.wait_booted(name, host.address, host.leader)


def _host_status(name: str, host: Host | None) -> HostStatus:
    from bigiron.lab import nspawn

    release = state.release_of(name)
    alive = host is not None and host.leader is not None and host.leader.alive()
    if host is not None and host.leader is not None and alive:
        return HostStatus(name, release, host.address, "running", host.leader.pid, nspawn.answers(host.address))
    there = state.root_of(name).is_dir()
    return HostStatus(name, release, host.address if host else None, "stopped" if there else "absent", None, None)


_SSH_ARGS = f"-o 'UserKnownHostsFile=\"{state.KNOWN_HOSTS}\"' -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes"


def inventory(current: State) -> dict[str, Any]:
    """The generated half of inventory/lab: how to reach each host that is there, and where the mirror is."""
    return {
        "lab": {
            "hosts": {name: {"ansible_host": host.address} for name, host in current.hosts.items()},
            "vars": {
                "ansible_user": "root",
                "ansible_ssh_private_key_file": str(state.CLIENT_KEY),
                "ansible_ssh_common_args": _SSH_ARGS,
                "ansible_python_interpreter": "/usr/bin/python3",
                "lab_mirror": current.mirror_url,
            },
        }
    }


def _write_inventory(current: State) -> None:
    # JSON is YAML: no yaml library on this path, and the same bytes for the same lab
    text = "# generated by lab.up; do not edit\n" + json.dumps(inventory(current), indent=2) + "\n"
    with contextlib.suppress(OSError):
        if state.INVENTORY_STATE.read_text(encoding="utf-8") == text:
            return
    paths.write_atomic(state.INVENTORY_STATE, text, mode=0o600)
