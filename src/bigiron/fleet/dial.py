"""Opening SSH connections: sockets, jump hosts, host key, login; every failure as a sentence that names its hop.

Fabric holds the connection and Paramiko speaks; what to connect to comes from :mod:`bigiron.fleet.route`, and Fabric's own
configuration files and environment are shut out, so there is one source for each setting.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import fabric
import paramiko
from paramiko.config import SSHConfig

from bigiron.errors import Unreachable
from bigiron.fleet import hostkeys
from bigiron.fleet.auth import Login
from bigiron.fleet.connection import Secret
from bigiron.fleet.route import Route

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # else a refused handshake prints its thread's traceback

# Curve25519 takes a millisecond; what stands before it in Paramiko's own order does not fail safe against older servers
_KEX_FIRST = ("curve25519-sha256@libssh.org",)
_CIPHERS_FIRST = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr")


@dataclass
class Line:
    """An open connection with the jump hosts it came through (``hops``, first hop first) and a proxy command's process."""

    connection: Any  # fabric.Connection
    hops: list[Any]
    proxy: subprocess.Popen[bytes] | None = None

    @property
    def transport(self) -> paramiko.Transport:
        """Paramiko's end of the connection."""
        transport: paramiko.Transport = self.connection.transport
        return transport

    def close(self) -> None:
        """Close everything, last hop first."""
        for connection in (self.connection, *reversed(self.hops)):
            with contextlib.suppress(Exception):
                connection.close()
        if self.proxy is not None:
            self.proxy.kill()
            self.proxy.wait()


def dial(route: Route, password: Secret | None) -> Line:
    """Connect and log in. Raises Unreachable, naming the hop that failed."""
    hops: list[Any] = []
    proxy: subprocess.Popen[bytes] | None = None
    previous: Any = None
    try:
        for hop in (*route.via, replace(route, via=())):
            final = hop.label == route.label
            sock: Any
            if hop.proxy_command and previous is None:
                sock, proxy = _proxy(hop)
            else:
                sock = _tcp(hop) if previous is None else _through(previous, hop)
            previous = _login(hop, sock, password if final else None, proxy)
            hops.append(previous)
    except BaseException:
        for connection in reversed(hops):
            with contextlib.suppress(Exception):
                connection.close()
        if proxy is not None:
            proxy.kill()
            proxy.wait()
        raise
    return Line(hops[-1], hops[:-1], proxy)


def _tcp(route: Route) -> socket.socket:
    try:
        sock = socket.create_connection((route.host, route.port), timeout=route.connect_timeout_s)
    except socket.gaierror as error:
        raise Unreachable(
            f"the name {route.host} cannot be resolved ({error.strerror})",
            where=route.label,
            hint="set ansible_host to an address",
        ) from None
    except TimeoutError:
        raise Unreachable(
            f"no answer from {route.address} within {route.connect_timeout_s:.0f} s",
            where=route.label,
            hint="is the machine on, and is the address right?",
        ) from None
    except ConnectionRefusedError:
        raise Unreachable(
            f"{route.address} refuses the connection",
            where=route.label,
            hint="is sshd running there, on that port (ansible_port)?",
        ) from None
    except OSError as error:
        raise Unreachable(f"cannot connect to {route.address}: {error.strerror or error}", where=route.label) from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _proxy(route: Route) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A ProxyCommand on one end of a socket pair: a real socket, so Paramiko waits on it instead of polling."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = f"exec {route.proxy_command}"
        process = subprocess.Popen(
            ["/bin/sh", "-c", command], stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.PIPE
        )
    return ours, process


def _through(jump: Any, route: Route) -> paramiko.Channel:
    transport: paramiko.Transport = jump.transport
    try:
        return transport.open_channel("direct-tcpip", (route.host, route.port), ("", 0), timeout=route.connect_timeout_s)
    except paramiko.ChannelException as error:
        raise Unreachable(
            f"jump host {jump.host} cannot reach {route.address}: {error.text}",
            where=route.label,
            hint="try from the jump host itself; AllowTcpForwarding must be on there",
        ) from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise Unreachable(f"jump host {jump.host} gave no way to {route.address}: {error}", where=route.label) from None


def _login(route: Route, sock: Any, password: Secret | None, proxy: subprocess.Popen[bytes] | None) -> Any:
    known = hostkeys.lookup(route.key_name, route.known_hosts)
    config = fabric.Config(lazy=True, ssh_config=SSHConfig())
    connection = fabric.Connection(
        route.host,
        user=route.user,
        port=route.port,
        config=config,
        gateway=False,
        connect_kwargs={
            "sock": sock,
            "auth_strategy": Login(route, password),
            "transport_factory": _transport_factory(known),
            "timeout": route.connect_timeout_s + 10,  # the key exchange; the banner before it has its own limit
            "banner_timeout": route.connect_timeout_s,
            "auth_timeout": max(route.connect_timeout_s, 30.0),
        },
    )
    connection.client.set_missing_host_key_policy(_Policy(route, known))
    try:
        connection.open()
    except Unreachable:
        _abandon(connection, sock)
        raise
    except (paramiko.SSHException, EOFError, OSError) as error:
        _abandon(connection, sock)
        raise Unreachable(_handshake(route, error, proxy), where=route.label) from None
    except BaseException:
        _abandon(connection, sock)
        raise
    if route.keepalive_s:
        connection.transport.set_keepalive(route.keepalive_s)
    return connection


def _abandon(connection: Any, sock: Any) -> None:
    with contextlib.suppress(Exception):
        connection.client.close()
    with contextlib.suppress(Exception):
        sock.close()


def _handshake(route: Route, error: Exception, proxy: subprocess.Popen[bytes] | None) -> str:
    if proxy is not None:
        proxy.kill()
        said = (proxy.communicate()[1] or b"").decode("utf-8", "replace").strip().splitlines()
        return f"the proxy command ({route.proxy_command}) gave no connection: {said[-1] if said else error}"
    text = str(error) or type(error).__name__
    if "banner" in text.lower():
        return f"{route.address} accepts connections but does not answer as an SSH server"
    if isinstance(error, TimeoutError):
        return f"{route.address} stopped answering during the SSH handshake"
    return f"the SSH handshake with {route.address} failed: {text}"


class _Policy(paramiko.MissingHostKeyPolicy):
    """The client's own known_hosts stay empty, so every host key comes here."""

    def __init__(self, route: Route, known: list[hostkeys.KnownKey]) -> None:
        self._route = route
        self._known = known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        del client, hostname
        hostkeys.check(self._route, key.get_name(), key.asbytes(), self._known)


def _transport_factory(known: list[hostkeys.KnownKey]) -> Callable[..., paramiko.Transport]:
    def make(sock: Any, **options: Any) -> paramiko.Transport:
        transport = paramiko.Transport(sock, **options)
        security = transport.get_security_options()
        security.key_types = hostkeys.preferred_types(known, tuple(security.key_types))
        security.kex = _first(_KEX_FIRST, tuple(security.kex))
        security.ciphers = _first(_CIPHERS_FIRST, tuple(security.ciphers))
        return transport

    return make


def _first(wanted: tuple[str, ...], offered: tuple[str, ...]) -> tuple[str, ...]:
    ahead = tuple(name for name in wanted if name in offered)
    return (*ahead, *(name for name in offered if name not in ahead))
