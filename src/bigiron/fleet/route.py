"""The way to a host as ``ssh`` itself sees it: ``ssh -G`` reads ssh_config, Include, Match and the command line for us."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from bigiron.errors import UsageError
from bigiron.fleet.connection import Connection


@dataclass(frozen=True)
class Route:
    """One SSH hop, resolved. ``via`` holds the jump hosts, first hop first. ``strict`` is ssh's StrictHostKeyChecking mode."""

    label: str
    host: str
    port: int
    user: str
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    agent: str | None = None
    known_hosts: tuple[str, ...] = ()
    strict: str = "ask"
    host_key_alias: str | None = None
    hash_known_hosts: bool = False
    proxy_command: str | None = None
    connect_timeout_s: float = 20.0
    keepalive_s: int = 0
    via: tuple[Route, ...] = ()

    @property
    def key_name(self) -> str:
        """The name under which known_hosts lists this host."""
        if self.host_key_alias:
            return self.host_key_alias
        return self.host if self.port == 22 else f"[{self.host}]:{self.port}"

    @property
    def address(self) -> str:
        """``host:port`` for messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def resolve(connection: Connection) -> Route:
    """Ask ``ssh -G``. Raises UsageError when ssh is missing or rejects the arguments (with ssh's own words)."""
    return _resolve(connection.host, list(connection.ssh_args), connection.name, connection.timeout_s, 0)


def _resolve(host: str, args: list[str], label: str, timeout_s: float, depth: int) -> Route:
    if host.startswith("-"):
        raise UsageError(f"{host!r} cannot be a host name", where=label)
    if depth > 8:
        raise UsageError("the jump hosts lead in a circle", where=label, hint="check ProxyJump in ssh_config")
    options = _options(host, args, label)
    first = {key: values[0] for key, values in options.items()}
    jumps = first.get("proxyjump", "none")
    via: tuple[Route, ...] = ()
    if jumps.lower() != "none":
        config = _config_args(args)
        hops = [hop.strip().removeprefix("ssh://") for hop in jumps.split(",")]
        # each hop is looked up in ssh_config by itself; only the first may have jump hosts of its own, as with ssh -J
        found = [_resolve_hop(hop, config, timeout_s, depth + 1) for hop in hops]
        via = (*found[0].via, *(replace(route, via=()) for route in found))
    agent = first.get("identityagent", "SSH_AUTH_SOCK")
    connect = first.get("connecttimeout", "none")
    proxy = first.get("proxycommand", "none")
    strict = first.get("stricthostkeychecking", "ask")
    return Route(
        label=label,
        host=first["hostname"],
        port=int(first.get("port", "22")),
        user=first["user"],
        identity_files=tuple(_expand(path, first) for path in options.get("identityfile", [])),
        identities_only=first.get("identitiesonly") == "yes",
        agent=None
        if agent == "none"
        else os.environ.get("SSH_AUTH_SOCK")
        if agent == "SSH_AUTH_SOCK"
        else _expand(agent, first),
        known_hosts=tuple(
            _expand(path, first)
            for key in ("userknownhostsfile", "globalknownhostsfile")
            for path in _paths(first.get(key, ""))
            if path.lower() != "none"
        ),
        strict={"true": "yes", "false": "no", "off": "no"}.get(strict, strict),
        host_key_alias=first.get("hostkeyalias"),
        hash_known_hosts=first.get("hashknownhosts") == "yes",
        proxy_command=None if proxy.lower() == "none" else _tokens(proxy, first),
        connect_timeout_s=float(connect) if connect.isdigit() and int(connect) else timeout_s,
        keepalive_s=int(first.get("serveraliveinterval", "0")),
        via=via,
    )


def _tokens(text: str, first: dict[str, str]) -> str:
    """The tokens of ssh_config(5) that make sense here, which ``ssh -G`` prints as they were written."""
    values = {
        "%": "%",
        "d": str(Path.home()),
        "h": first["hostname"],
        "n": first.get("host", first["hostname"]),
        "p": first.get("port", "22"),
        "r": first["user"],
        "u": getpass.getuser(),
    }
    return re.sub(r"%(.)", lambda match: values.get(match[1], match[0]), text)


def _expand(path: str, first: dict[str, str]) -> str:
    text = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], match[0]), _tokens(path, first))
    return str(Path(text).expanduser())


def _paths(text: str) -> list[str]:
    """File names that ``ssh -G`` printed with spaces between; a name that has spaces itself is known by being there."""
    words = text.split(" ")
    found: list[str] = []
    while words:
        length = next((n for n in range(len(words), 1, -1) if Path(" ".join(words[:n])).expanduser().exists()), 1)
        found.append(" ".join(words[:length]))
        del words[:length]
    return [path for path in found if path]


def _resolve_hop(hop: str, config: list[str], timeout_s: float, depth: int) -> Route:
    user, at, rest = hop.rpartition("@")
    host, port = rest, ""
    if rest.startswith("["):
        host, _, tail = rest[1:].partition("]")
        port = tail.lstrip(":")
    elif rest.count(":") == 1:
        host, _, port = rest.partition(":")
    args = [*config, *(["-l", user] if at else []), *(["-p", port] if port else [])]
    return _resolve(host, args, f"jump host {host}", timeout_s, depth)


def _config_args(args: list[str]) -> list[str]:
    """The ``-F FILE`` of the command line: the one option that ssh also hands to its jump hosts."""
    for index, word in enumerate(args):
        if word == "-F" and index + 1 < len(args):
            return ["-F", args[index + 1]]
        if word.startswith("-F") and len(word) > 2:
            return ["-F", word[2:]]
    return []


def _options(host: str, args: list[str], label: str) -> dict[str, list[str]]:
    ssh = shutil.which("ssh")
    if ssh is None:
        raise UsageError(
            "the OpenSSH client `ssh` is not installed on this machine", where=label, hint="install openssh-client"
        )
    done = subprocess.run(
        [ssh, "-G", *args, "--", host], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=30
    )
    options: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key.lower(), []).append(value)
    if done.returncode != 0 or "hostname" not in options:
        said = done.stderr.strip().splitlines() or ["no answer"]
        raise UsageError(
            f"ssh does not accept this host's options: {said[-1]}",
            where=label,
            hint="check ansible_ssh_common_args, ansible_ssh_extra_args and ~/.ssh/config",
        )
    return options
