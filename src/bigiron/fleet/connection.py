"""How one host is reached: Ansible's connection variables as one frozen value.

The SSH part stays as the argument list that Ansible itself would hand to ``ssh``; :mod:`bigiron.fleet.route` lets ``ssh -G``
turn it into addresses, keys and jump hosts, so that our connection and Ansible's can never disagree.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bigiron.errors import UsageError
from bigiron.fleet.environment import as_bool, holder, setting

Secret = Callable[[], str]

_KINDS = {
    "ssh": "ssh",
    "smart": "ssh",
    "ansible.builtin.ssh": "ssh",
    "paramiko": "ssh",
    "local": "local",
    "ansible.builtin.local": "local",
}
_SUDO = {"sudo", "ansible.builtin.sudo"}


@dataclass(frozen=True)
class Connection:
    """Where and as whom to connect, before ``ssh_config`` has its say.

    ``user`` and ``port`` are None where the inventory leaves them to ``ssh_config``. ``ssh_args`` holds, in Ansible's order,
    everything it would pass to ``ssh`` (``-o``, ``-J``, ``-F``, ``-i`` ...). Passwords are functions: they are only looked up
    (and decrypted) when a prompt asks for them.
    """

    kind: Literal["ssh", "local"]
    name: str
    host: str
    user: str | None = None
    port: int | None = None
    ssh_args: tuple[str, ...] = ()
    become: bool = True
    become_user: str = "root"
    become_exe: str = "sudo"
    python: str | None = None
    timeout_s: float = 20.0
    password: Secret | None = field(default=None, repr=False, compare=False)
    become_password: Secret | None = field(default=None, repr=False, compare=False)


def from_vars(name: str, variables: Mapping[str, Any]) -> Connection:
    """The connection of host ``name``. Raises UsageError for a connection or become method bigiron does not speak."""
    wanted = str(setting("connection", variables) or "ssh")
    kind = _KINDS.get(wanted)
    if kind is None:
        raise UsageError(
            f"ansible_connection is {wanted!r}; bigiron reaches hosts by ssh or local",
            where=name,
            hint="set ansible_connection to ssh, or to local for this machine",
        )
    method = str(setting("become_method", variables) or "sudo")
    if method not in _SUDO:
        raise UsageError(
            f"ansible_become_method is {method!r}; bigiron becomes root by sudo only",
            where=name,
            hint="set ansible_become_method: sudo, or connect as root",
        )
    python = str(setting("python", variables) or "auto")
    user = setting("user", variables)
    port = _integer(name, "ansible_port", setting("port", variables))
    timeout_s = float(_integer(name, "the connect timeout", setting("timeout", variables)) or 20)
    return Connection(
        kind="local" if kind == "local" else "ssh",
        name=name,
        host=str(setting("host", variables) or name),
        user=str(user) if user else None,
        port=port,
        ssh_args=_ssh_args(name, variables, str(user) if user else None, port, timeout_s),
        become=as_bool(setting("become", variables) if holder("become", variables) else None, default=True),
        become_user=str(setting("become_user", variables) or "root"),
        become_exe=str(setting("become_exe", variables) or "sudo"),
        python=None if python.startswith("auto") else python,
        timeout_s=timeout_s,
        password=_secret("password", variables),
        become_password=_secret("become_password", variables),
    )


def _integer(name: str, what: str, value: object) -> int | None:
    if value in (None, ""):
        return None
    try:
        return int(str(value))
    except ValueError:
        raise UsageError(f"{what} is {value!r}, which is not a number", where=name) from None


def _ssh_args(name: str, variables: Mapping[str, Any], user: str | None, port: int | None, timeout_s: float) -> tuple[str, ...]:
    """The same options in the same order as Ansible's ssh plugin: ssh keeps the first value it sees of each."""
    argv = _words(name, "ssh_args", variables)
    if not as_bool(setting("host_key_checking", variables), default=True):
        argv += ["-o", "StrictHostKeyChecking=no"]
    if port is not None:
        argv += ["-o", f"Port={port}"]
    key_file = setting("key_file", variables)
    if key_file:
        argv += ["-o", f'IdentityFile="{Path(str(key_file)).expanduser()}"']
    if user is not None:
        argv += ["-o", f'User="{user}"']
    argv += ["-o", f"ConnectTimeout={timeout_s:.0f}"]
    return tuple(argv + _words(name, "ssh_common_args", variables) + _words(name, "ssh_extra_args", variables))


def _words(name: str, key: str, variables: Mapping[str, Any]) -> list[str]:
    value = setting(key, variables)
    if not value:
        return []
    try:
        return shlex.split(str(value))
    except ValueError as error:
        raise UsageError(f"ansible_{key} cannot be split into words: {error}", where=name) from None


def _secret(key: str, variables: Mapping[str, Any]) -> Secret | None:
    variable = holder(key, variables)
    if variable is not None:
        return lambda: str(variables[variable])
    value = setting(key, {})
    if value:
        return lambda: str(value)
    file = setting(f"{key}_file", {})
    if file:
        return lambda: Path(str(file)).expanduser().read_text(encoding="utf-8").strip()
    return None
