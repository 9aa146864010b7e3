"""Lab hosts: a root copied from the base, booted with systemd-nspawn, stopped so that nothing is left."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

from bigiron import paths
from bigiron.errors import BigironError
from bigiron.lab import base, cgroups, keys, network, state, tools

CCACHE_IN_HOST = "/var/cache/bigiron-ccache"
STOP_TIMEOUT_S = 15.0
BOOT_TIMEOUT_S = 120.0
LEGACY_CGROUPS = ("buster", "bullseye", "bookworm")
"""The releases that boot with whichever cgroup version the controller has."""


_NETWORK = """[Match]
Virtualization=container
Name=host0

[Network]
Address={address}/24
Gateway={gateway}
LinkLocalAddressing=no
IPv6AcceptRA=no
"""


def console_of(host: str) -> Path:
    """What the container's console said."""
    return state.HOSTS / host / "console.log"


def environment(host: str) -> dict[str, str]:
    """What systemd-nspawn is started with: since Debian 13 systemd has no cgroup v1, whatever the controller has."""
    unified = {} if state.release_of(host) in LEGACY_CGROUPS else {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
    return {**tools.environment(), **unified}


def argv(host: str) -> list[str]:
    """The systemd-nspawn command of a host."""
    command = ["systemd-nspawn", "--quiet", "--boot", "--register=no"]
    if cgroups.needed():
        command.append("--keep-unit")
    return [
        *command,
        f"--machine={state.machine_name(host)}",
        f"--hostname={host}",
        f"--directory={state.root_of(host)}",
        f"--network-bridge={state.BRIDGE}",
        "--link-journal=no",
        "--resolv-conf=off",
        "--timezone=off",
        "--rlimit=RLIMIT_MEMLOCK=infinity",
        "--bind=" + str(paths.cache_dir("ccache")).replace("\\", "\\\\").replace(":", "\\:") + ":" + CCACHE_IN_HOST,
        "--console=pipe",
    ]


def files(host: str, address: str, gateway: str) -> dict[str, tuple[str, int]]:
    """What makes the base root this host: path in the root -> (text, mode)."""
    key = state.HOSTS / host / "ssh_host_ed25519_key"
    return {
        "etc/hostname": (f"{host}\n", 0o644),
        "etc/hosts": (
            f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n{address}\t{host}\n{gateway}\tmirror\n",
            0o644,
        ),
        "etc/resolv.conf": (network.resolv_conf_for_hosts(), 0o644),
        # has to sort before systemd's own 80-container-host0.network, which would ask for an address by DHCP
        "etc/systemd/network/10-host0.network": (
            _NETWORK.format(address=address, gateway=gateway),
            0o644,
        ),
        "etc/ssh/ssh_host_ed25519_key": (key.read_text(encoding="ascii"), 0o600),
        "etc/ssh/ssh_host_ed25519_key.pub": (keys.host_key(host), 0o644),
        "root/.ssh/authorized_keys": (keys.client_key(), 0o600),
        f"home/{base.ADMIN}/.ssh/authorized_keys": (keys.client_key(), 0o600),
    }


def ensure_root(host: str, base_root: Path) -> None:
    """The host's root, copied from the base when there is none. Copied beside and renamed: a root that is there is whole."""
    root = state.root_of(host)
    if root.is_dir():
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    for stale in root.parent.glob("tmp-*"):
        tools.remove_tree(stale)
    work = Path(tempfile.mkdtemp(prefix="tmp-", dir=root.parent))
    copy = work / "root"
    tools.run(tools.bound(["cp", "-a", "--reflink=auto", str(base_root), str(copy)], "KILL"), timeout_s=600)
    base.write(copy / "etc/machine-id", uuid.uuid4().hex + "\n", 0o444)
    copy.rename(root)
    work.rmdir()


def configure(host: str, address: str, gateway: str) -> None:
    """Write the host's own files into its root; only while it does not run."""
    root = state.root_of(host)
    for name, (text, mode) in files(host, address, gateway).items():
        base.write(root / name, text, mode)
    for home in ("root", f"home/{base.ADMIN}"):
        owner = (root / home).stat()
        for path in (root / home / ".ssh", root / home / ".ssh/authorized_keys"):
            shutil.chown(path, owner.st_uid, owner.st_gid)
        (root / home / ".ssh").chmod(0o700)


def find(host: str) -> state.Process | None:
    """The running systemd-nspawn of this host, also one that a killed run started and did not record."""
    import psutil

    for one in state.find_processes(f"--machine={state.machine_name(host)}", f"--directory={state.root_of(host)}"):
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(one.pid).name().startswith("systemd-nspawn"):
                return one
    return None


def start(host: str) -> state.Process:
    """Boot the host; returns its systemd-nspawn, which outlives us."""
    command = argv(host)
    command[0] = tools.find("systemd-nspawn") or command[0]
    if cgroups.needed():
        command = cgroups.wrapped(cgroups.prepare(host), command)
    with console_of(host).open("wb") as console:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment(host),
            cwd="/",
        )
    leader = state.process(child.pid)
    if leader is None:
        raise BigironError(f"systemd-nspawn ended at once: {console_tail(host)}", where=host)
    _children.append(child)
    return leader


_children: list[subprocess.Popen[bytes]] = []
"""Kept so that Python reaps them when they end before us; they are not ours to wait for otherwise."""


def answers(address: str, timeout_s: float = 1.0) -> bool:
    """True when an SSH server greets at ``address``."""
    try:
        with socket.create_connection((address, 22), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def wait_booted(host: str, address: str, leader: state.Process) -> str:
    """Wait until the host is reached by SSH and systemd has finished booting; returns its word ("running", "degraded").

    Raises BigironError with the console's last lines when it ends or takes too long.
    """
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    while time.monotonic() < deadline:
        if not leader.alive():
            raise BigironError(
                f"the container ended while booting: {console_tail(host)}", where=host, hint=f"see {console_of(host)}"
            )
        if answers(address):
            done = tools.run(
                [*ssh_argv(host, address), "systemctl is-system-running --wait"], check=False, timeout_s=BOOT_TIMEOUT_S
            )
            if done.stdout.strip() in {"running", "degraded"}:
                return done.stdout.strip()
        time.sleep(0.1)
    raise BigironError(
        f"not booted after {BOOT_TIMEOUT_S:.0f} s: {console_tail(host)}", where=host, hint=f"see {console_of(host)}"
    )


def ssh_argv(host: str, address: str, user: str = "root") -> list[str]:
    """An ssh command that talks to exactly this lab host, whatever the person's own ssh configuration says."""
    options = {
        "UserKnownHostsFile": f'"{state.KNOWN_HOSTS}"',
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
        "ConnectTimeout": "10",
        "LogLevel": "ERROR",
        "HostKeyAlias": host,
    }
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return ["ssh", "-F", "none", "-i", str(state.CLIENT_KEY), *words, "-l", user, address]


def console_tail(host: str) -> str:
    """The last line of the console that says something."""
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in console_of(host).read_text(encoding="utf-8", errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "nothing on the console")
    return "nothing on the console"


def stop(host: str, leader: state.Process | None) -> None:
    """Shut the host down in order, by force after a bounded wait; no process, group or run-time file of it survives."""
    for one in {process for process in (leader, find(host)) if process is not None and process.alive()}:
        # systemd-nspawn passes SIGTERM on as SIGRTMIN+3, systemd's own "halt"
        one.send(signal.SIGTERM)
        if not one.wait_gone(STOP_TIMEOUT_S):
            one.send(signal.SIGKILL)
            one.wait_gone(5)
    cgroups.remove(host)
    machine = state.machine_name(host)
    for folder in (Path("/run/systemd/nspawn/propagate") / machine, Path("/run/systemd/nspawn/unix-export") / machine):
        shutil.rmtree(folder, ignore_errors=True)
    left = find(host)
    if left is not None:
        raise BigironError(f"process {left.pid} does not end", where=host, hint="see what it waits for: cat /proc/<pid>/stack")


def remove(host: str) -> None:
    """Remove the host's root, keys and console. The host is stopped."""
    remove_root(host)
    tools.remove_tree(state.HOSTS / host)


def remove_root(host: str) -> None:
    """Remove the host's root, keep its keys. The host is stopped."""
    root = state.root_of(host)
    if root.is_dir():  # out of the way first: a half removed root must not be taken for one to boot
        away = Path(tempfile.mkdtemp(prefix="tmp-", dir=root.parent))
        root.rename(away / "root")
        tools.remove_tree(away)
