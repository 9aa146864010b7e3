"""Host keys against known_hosts, so that a changed or unknown key is explained with fingerprints, file and line.

The file format is sshd(8) "SSH_KNOWN_HOSTS FILE FORMAT": hashed names, ``[host]:port``, wildcards, ``!``, ``@revoked``.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fnmatch
import hashlib
import hmac
import os
import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path

from bigiron.errors import Unreachable
from bigiron.fleet.route import Route


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file that is about the host asked for."""

    marker: str
    type: str
    blob: bytes
    file: str
    line: int


def fingerprint(blob: bytes) -> str:
    """``SHA256:...`` as ``ssh-keygen -l`` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode("ascii").rstrip("=")


def lookup(name: str, files: tuple[str, ...]) -> list[KnownKey]:
    """Every key that ``files`` list for ``name`` (``host`` or ``[host]:port``). Files that are missing are skipped."""
    found: list[KnownKey] = []
    for file in files:
        try:
            lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for number, line in enumerate(lines, start=1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            marker = words.pop(0) if words[0].startswith("@") else ""
            if len(words) < 3 or not _matches(name, words[0]):
                continue
            with contextlib.suppress(binascii.Error, ValueError):
                found.append(KnownKey(marker, words[1], base64.b64decode(words[2], validate=True), file, number))
    return found


def _matches(name: str, field: str) -> bool:
    if field.startswith("|1|"):
        _, _, salt, digest = [*field.split("|"), "", ""][:4]
        try:
            expected = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
            return hmac.compare_digest(expected, base64.b64decode(digest))
        except (binascii.Error, ValueError):
            return False
    matched = False
    for pattern in field.lower().split(","):
        bare = pattern.removeprefix("!").replace("[", "[[]") if "[" in pattern else pattern.removeprefix("!")
        if fnmatch.fnmatchcase(name.lower(), bare):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched


def preferred_types(known: list[KnownKey], offered: tuple[str, ...]) -> tuple[str, ...]:
    """``offered`` signature algorithms with those we hold a key for in front, so the server shows a key we can check."""
    types = {key.type for key in known if not key.marker}
    ours = [name for name in offered if ("ssh-rsa" if name.startswith("rsa-sha2") else name) in types]
    return (*ours, *(name for name in offered if name not in ours))


def check(route: Route, key_type: str, blob: bytes, known: list[KnownKey]) -> None:
    """Accept the key or raise Unreachable, as ``StrictHostKeyChecking`` says; a new key is recorded where ssh would."""
    got = f"{key_type} {fingerprint(blob)}"
    if any(key.marker == "@revoked" and key.blob == blob for key in known):
        raise Unreachable(f"the host key {got} is marked as revoked", where=route.label)
    plain = [key for key in known if not key.marker]
    if any(key.blob == blob for key in plain):
        return
    same_type = [key for key in plain if key.type == key_type]
    conflicting = same_type or plain
    if conflicting:
        if route.strict == "no":
            return
        old = conflicting[0]
        name = shlex.quote(route.key_name)
        raise Unreachable(
            f"the host key of {route.address} has changed: expected {old.type} {fingerprint(old.blob)} "
            f"({old.file}:{old.line}), got {got}",
            where=route.label,
            hint=f"if the machine was reinstalled: ssh-keygen -f {shlex.quote(old.file)} -R {name}; "
            "if not, someone may be answering in its place",
        )
    if route.strict in {"no", "accept-new"}:
        _record(route, key_type, blob)
        return
    authority = "; it is listed only through a certificate authority, which bigiron cannot check" if known else ""
    raise Unreachable(
        f"the host key of {route.address} is unknown: {got}{authority}",
        where=route.label,
        hint=f"compare the fingerprint with the machine's own, then accept it: {_accept_command(route)}",
    )


def _accept_command(route: Route) -> str:
    where = f"{route.user}@{route.host}" if not route.via else route.label
    port = "" if route.port == 22 else f" -p {route.port}"
    file = f" -o UserKnownHostsFile={shlex.quote(route.known_hosts[0])}" if route.known_hosts else ""
    return f"ssh -o StrictHostKeyChecking=ask{file}{port} {where} true"


def _record(route: Route, key_type: str, blob: bytes) -> None:
    if not route.known_hosts or route.known_hosts[0] == os.devnull:
        return
    file = Path(route.known_hosts[0])
    name = route.key_name
    if route.hash_known_hosts:
        salt = secrets.token_bytes(20)
        digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
        name = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    with contextlib.suppress(OSError):  # a read-only home must not stop a connection that the policy allows
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, f"{name} {key_type} {base64.b64encode(blob).decode()}\n".encode())
        finally:
            os.close(handle)
