"""Addresses, folders and files that a person names: which of them a llama.cpp host may have. Pure functions.

Each ``check_*`` of one value returns the reason against it, to stand behind the variable's name (``is "/tmp": shared ...``), or None.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Any

from bigiron.errors import Refused
from bigiron.machine.description import Machine

HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - refused, not used
"""The unit cannot see these: ``ProtectHome=yes`` and ``PrivateTmp=yes`` in roles/llama_server/templates."""
SYSTEM = (
    "/bin", "/boot", "/dev", "/efi", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/lost+found", "/proc", "/run", "/sbin", "/snap", "/sys",
    "/usr", "/var",
)  # fmt: skip
DATA = ("/var/cache", "/var/lib", "/var/local", "/var/opt")
"""Below /var, a folder of one's own may only be here."""
PACKAGES = ("/var/cache/apt", "/var/cache/debconf", "/var/lib/apt", "/var/lib/dpkg", "/var/lib/systemd", "/var/lib/private")
SHARED = ("/", "/srv", "/opt", "/mnt", "/media", *DATA)
OWN = ("/opt/bigiron", "/etc/bigiron", "/var/cache/bigiron", "/var/lib/bigiron")
"""What bigiron makes and teardown removes whole."""
GUARDED = (
    "/boot", "/dev", "/efi", "/etc/group", "/etc/group-", "/etc/gshadow", "/etc/gshadow-", "/etc/pam.d", "/etc/passwd", "/etc/passwd-",
    "/etc/shadow", "/etc/shadow-", "/etc/ssh", "/etc/subgid", "/etc/subuid", "/etc/sudoers", "/etc/sudoers.d", "/proc", "/run", "/sys",
    "/var/run",
)  # fmt: skip
"""Where a plain file would take the host, its accounts or its logins apart, or vanish with the next boot."""
MADE_FOLDERS = "/var/lib/bigiron/folders"
"""The record on a host of the folders that role base made, one path a line."""
UNITS = "/etc/systemd/system/llama-server-*.service"
PLANNED = {"--host": "llama_server_host", "--port": "llama_server_port", "--model": "model_repo", "-m": "model_repo"}
"""Arguments that would change what the plan, the unit and the checks rely on."""


def inside(path: str, folder: str) -> bool:
    """Whether ``path`` is ``folder`` or below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _within(path: str, folders: Iterable[str]) -> str | None:
    return next((folder for folder in folders if inside(path, folder)), None)


def _written(path: str) -> str | None:
    """Why ``path`` is not an absolute path in its shortest form."""
    if not path.startswith("/"):
        return "not an absolute path"
    plain = "/" + posixpath.normpath(path).lstrip("/")
    return None if path == plain else f"not in its shortest form, which is {plain}"


def check_root(path: str) -> str | None:
    """Why no models may lie in ``path``: it must be a folder of its own that the service can see and nothing else uses."""
    if wrong := _written(path):
        return f'is "{path}": {wrong}'
    reason = _occupied(path)
    return f'is "{path}": {reason}' if reason else None


def check_resolved(path: str, resolved: str) -> str | None:
    """Why the folder that ``path`` turned out to be on the host (links followed) may hold no models."""
    reason = _occupied(resolved) if resolved != path else None
    return f'is "{path}", which leads to {resolved}: {reason}' if reason else None


def _occupied(path: str) -> str | None:
    if path in SHARED:
        return "a folder that everything on the host shares"
    if folder := _within(path, HIDDEN):
        return f"the service cannot see {folder} (ProtectHome, PrivateTmp)"
    if folder := _within(path, OWN):
        return f"{folder} is bigiron's own, teardown removes it"
    if folder := _within(path, PACKAGES):
        return f"{folder} belongs to the system"
    if (folder := _within(path, SYSTEM)) and not _within(path, DATA):
        return f"{folder} belongs to the system"
    return None


def kept(path: str, observed: Mapping[str, Any]) -> bool:
    """Whether a folder was on the host before bigiron, so that its owner and mode are not bigiron's to change."""
    paths = observed.get("paths", {})
    return path in paths and path not in paths.get(MADE_FOLDERS, {}).get("text", "").splitlines()


def check_folder(path: str, observed: Mapping[str, Any], user: str) -> str | None:
    """Why ``user`` cannot read a folder that was there before; an access list may still allow it, which only the host can tell."""
    have = observed.get("paths", {}).get(path, {})
    if not kept(path, observed) or have.get("type") != "directory" or have.get("mode") is None:
        return None
    who = 0o700 if have["owner"] == user else 0o070 if have["group"] == user else 0o007
    if int(have["mode"], 8) & who & 0o555 == who & 0o555:
        return None
    return f"is {path} ({have['owner']}:{have['group']}, {have['mode']}), which was there before and which {user} cannot read"


def check_listen(address: str) -> str | None:
    """Why a server cannot listen on ``address``: it must be one literal IPv4 or IPv6 address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        local = "; the local one is 127.0.0.1" if address == "localhost" else ""
        return f'is "{address}", not an IPv4 or IPv6 address{local}'
    return f'is "{address}", a multicast address' if found.is_multicast else None


def check_address(address: str, machine: Machine) -> Refused | None:
    """Refused when no interface of ``machine`` has ``address``; loopback and the wildcards are on every host."""
    wanted = ipaddress.ip_address(address)
    have = sorted({each for nic in machine.nics for each in nic.addresses})
    plain = {str(ipaddress.ip_address(each.split("/")[0].split("%")[0])) for each in have}
    if wanted.is_loopback or wanted.is_unspecified or str(wanted).split("%")[0] in plain:
        return None
    return Refused(
        f"llama_server_host is {address}, an address that no interface has",
        hint=f"it has {', '.join(['127.0.0.1', *have])}; 0.0.0.0 listens on all of them",
    )


def check_files(files: Iterable[Mapping[str, Any]]) -> str | None:
    """Why these plain files (``path``, ``mode``) may not be written."""
    reasons = []
    for entry in files:
        path, mode = str(entry["path"]), entry.get("mode")
        if wrong := _written(path):
            reasons.append(f"{path} is {wrong}")
        elif folder := _within(path, GUARDED):
            reasons.append(f"{path} is the system's own" if path == folder else f"{path} is below {folder}, the system's own")
        elif _within(path, OWN) or fnmatch.fnmatchcase(path, UNITS):
            reasons.append(f"{path} is bigiron's own")
        if mode is not None and not re.fullmatch(r"0[0-7]{3}", mode):
            reasons.append(f'{path} has the mode "{mode}", not four octal digits such as "0644"')
        elif mode is not None and int(mode, 8) & 0o002:
            reasons.append(f"{path} has the mode {mode}, which lets everyone write to it")
    return f"cannot be written: {'; '.join(reasons)}" if reasons else None


def check_arguments(words: Iterable[str]) -> str | None:
    """Why these words cannot be arguments of llama-server, whatever the build."""
    for word in words:
        if word.startswith("--api-key") and word != "--api-key-file":
            return "holds an API key, which every local user could read; set llama_server_api_key instead"
        if variable := PLANNED.get(word):
            return f"holds {word}, which the plan gives; set {variable} instead"
        if "\0" in word:
            return "holds a NUL character, which no argument can"
    return None
