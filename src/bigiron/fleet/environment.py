"""The environment and the settings that every Ansible child, and our own SSH, work under.

Precedence is Ansible's: a host's own variables, then ``ANSIBLE_*`` in the environment, then ``ansible.cfg``.
"""

from __future__ import annotations

import configparser
import functools
import locale
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bigiron.errors import UsageError
from bigiron.paths import PROJECT, state_dir

ANSIBLE_CFG = PROJECT / "ansible.cfg"
_UTF8_LOCALES = ("C.UTF-8", "C.utf8", "en_US.UTF-8")

# name -> (host variables, environment variables, ansible.cfg section, key); sources: the options of ansible-core 2.19's
# ssh connection and sudo become plugins (`ansible-doc -t connection ssh`, `ansible-doc -t become sudo`).
_SETTINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str, str]] = {
    "host": (("ansible_host", "ansible_ssh_host"), (), "", ""),
    "user": (("ansible_user", "ansible_ssh_user"), ("ANSIBLE_REMOTE_USER",), "defaults", "remote_user"),
    "port": (("ansible_port", "ansible_ssh_port"), ("ANSIBLE_REMOTE_PORT",), "defaults", "remote_port"),
    "key_file": (
        ("ansible_private_key_file", "ansible_ssh_private_key_file"),
        ("ANSIBLE_PRIVATE_KEY_FILE",),
        "defaults",
        "private_key_file",
    ),
    "connection": (("ansible_connection",), ("ANSIBLE_TRANSPORT",), "defaults", "transport"),
    "ssh_args": (("ansible_ssh_args",), ("ANSIBLE_SSH_ARGS",), "ssh_connection", "ssh_args"),
    "ssh_common_args": (("ansible_ssh_common_args",), ("ANSIBLE_SSH_COMMON_ARGS",), "ssh_connection", "ssh_common_args"),
    "ssh_extra_args": (("ansible_ssh_extra_args",), ("ANSIBLE_SSH_EXTRA_ARGS",), "ssh_connection", "ssh_extra_args"),
    "host_key_checking": (
        ("ansible_host_key_checking", "ansible_ssh_host_key_checking"),
        ("ANSIBLE_HOST_KEY_CHECKING", "ANSIBLE_SSH_HOST_KEY_CHECKING"),
        "defaults",
        "host_key_checking",
    ),
    "timeout": (("ansible_ssh_timeout",), ("ANSIBLE_TIMEOUT", "ANSIBLE_SSH_TIMEOUT"), "defaults", "timeout"),
    "python": (("ansible_python_interpreter",), ("ANSIBLE_PYTHON_INTERPRETER",), "defaults", "interpreter_python"),
    "become": (("ansible_become",), ("ANSIBLE_BECOME",), "privilege_escalation", "become"),
    "become_user": (
        ("ansible_become_user", "ansible_sudo_user"),
        ("ANSIBLE_BECOME_USER", "ANSIBLE_SUDO_USER"),
        "privilege_escalation",
        "become_user",
    ),
    "become_method": (("ansible_become_method",), ("ANSIBLE_BECOME_METHOD",), "privilege_escalation", "become_method"),
    "become_exe": (
        ("ansible_become_exe", "ansible_sudo_exe"),
        ("ANSIBLE_BECOME_EXE", "ANSIBLE_SUDO_EXE"),
        "privilege_escalation",
        "become_exe",
    ),
    "become_password": (
        ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass"),
        ("ANSIBLE_BECOME_PASS", "ANSIBLE_SUDO_PASS"),
        "",
        "",
    ),
    "become_password_file": ((), ("ANSIBLE_BECOME_PASSWORD_FILE",), "defaults", "become_password_file"),
    "password": (("ansible_password", "ansible_ssh_pass", "ansible_ssh_password"), (), "", ""),
    "password_file": ((), ("ANSIBLE_CONNECTION_PASSWORD_FILE",), "defaults", "connection_password_file"),
}


@functools.cache
def _config(path: Path, _mtime_ns: int) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=(";",))
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except configparser.Error as error:
        raise UsageError(f"is not a valid ansible.cfg: {error}", where=str(path)) from error
    return parser


def holder(name: str, variables: Mapping[str, Any]) -> str | None:
    """The host variable that sets ``name``, if one does (its value is not looked at, so a sealed one stays sealed)."""
    return next((variable for variable in _SETTINGS[name][0] if variable in variables), None)


def setting(name: str, variables: Mapping[str, Any]) -> Any:
    """The effective value of ``name`` for a host with ``variables``; None where nobody sets it."""
    variable = holder(name, variables)
    return variables[variable] if variable is not None else _outside(name)[0]


def _outside(name: str) -> tuple[str | None, str]:
    """What the environment or ansible.cfg says of ``name``, and which of them."""
    _, environment, section, key = _SETTINGS[name]
    for env in environment:
        if os.environ.get(env):
            return os.environ[env], f"{env} in the environment"
    if section and ANSIBLE_CFG.exists():
        value = _config(ANSIBLE_CFG, ANSIBLE_CFG.stat().st_mtime_ns).get(section, key, fallback=None)
        if value is not None:
            return value, f"{key} in [{section}] of ansible.cfg"
    return None, ""


def effective(variables: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Every connection setting that somebody sets for a host with ``variables``: name -> (value, who sets it). Passwords are masked."""
    found = {}
    for name in _SETTINGS:
        variable = holder(name, variables)
        secret = name in {"password", "become_password"}
        value, origin = (None, f"{variable} in the inventory") if variable is not None else _outside(name)
        if variable is not None and not secret:  # a sealed password stays sealed
            value = variables[variable]
        if variable is not None or value is not None:
            found[name] = ("***" if secret else str(value), origin)
    return found


def as_bool(value: object, default: bool) -> bool:
    """Ansible's truth: ``yes``, ``on``, ``1``, ``true`` in any case; None is ``default``."""
    if value is None or value == "":
        return default
    return str(value).strip().lower() in {"yes", "on", "1", "true", "t", "y", "1.0"}


def clean_env() -> dict[str, str]:
    """The environment for every Ansible child: the project's ``ansible.cfg``, no colours, a UTF-8 locale that is installed.

    Ansible refuses to start under ``LC_ALL=C`` or a locale that is not installed; a person's own UTF-8 locale is kept.
    """
    env = dict(os.environ)
    env["ANSIBLE_CONFIG"] = str(ANSIBLE_CFG)
    env["ANSIBLE_NOCOLOR"] = "1"
    env.pop("ANSIBLE_FORCE_COLOR", None)
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH") or os.defpath])
    home = env.get("HOME", "")
    if not (home and os.access(home, os.W_OK | os.X_OK)):
        env["ANSIBLE_HOME"] = str(state_dir("ansible"))
    if not _locale_is_utf8():
        env["LC_ALL"] = next((name for name in _UTF8_LOCALES if _installed(name)), "C.UTF-8")
    return env


def _locale_is_utf8() -> bool:
    return _installed("")


def _installed(name: str) -> bool:
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, name)
        return locale.nl_langinfo(locale.CODESET).upper().replace("-", "") == "UTF8"
    except locale.Error:
        return False
    finally:
        locale.setlocale(locale.LC_ALL, before)
