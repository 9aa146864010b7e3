"""Which hosts there are and what is said about them: any Ansible inventory, as Ansible reads it.

``ansible-inventory`` reads the sources; templates are filled in by Ansible's own templating. The result is kept by content, so
a second command on an unchanged inventory imports and starts nothing. Secrets in clear text are never kept, vault text stays
ciphertext until someone asks for that very value.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bigiron.errors import BigironError, Unreachable, UsageError
from bigiron.fleet import patterns, values
from bigiron.fleet.connection import Connection, from_vars
from bigiron.fleet.environment import clean_env
from bigiron.fleet.sources import Sources, listing, locate, resolve, scan
from bigiron.paths import cache_dir, write_atomic

__all__ = ["Inventory", "Target", "Vars", "clean_env", "load"]

_KEPT = 24  # cache entries; an inventory under edit makes a new one with every change


class Vars(Mapping[str, Any]):
    """A host's variables, resolved. Asking for a sealed or unresolvable one does the work then, or raises BigironError."""

    def __init__(self, host: str, known: dict[str, Any], pending: dict[str, str], book: _Book) -> None:
        self._host = host
        self._values = known
        self._pending = pending
        self._book = book

    def __getitem__(self, name: str) -> Any:
        if name in self._pending:
            return self._book.reveal(self._host, name, self._pending[name])
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values or name in self._pending

    def __iter__(self) -> Iterator[str]:
        yield from self._values
        yield from self._pending

    def __len__(self) -> int:
        return len(self._values) + len(self._pending)

    def __repr__(self) -> str:
        return f"Vars({self._host}, {len(self)} names)"  # values may be secret

    def known(self) -> dict[str, Any]:
        """The values that need no secret and could be resolved; what a plan is made from."""
        return dict(self._values)

    def pending(self) -> dict[str, str]:
        """Names that are not in :meth:`known`, with why: ``"secret"``, ``"vault"``, ``"changing"`` or Ansible's words."""
        return dict(self._pending)


@dataclass(frozen=True)
class Target:
    """A host of the inventory at ``inventory`` (as it was named).

    ``groups`` are all it belongs to, ``all`` left out; ``down`` says why no connection is worth trying.
    """

    name: str
    groups: tuple[str, ...]
    vars: Vars = field(compare=False)
    down: Unreachable | None = field(default=None, compare=False)
    inventory: str = field(default="", compare=False)

    @cached_property
    def connection(self) -> Connection:
        """How to reach it. Raises UsageError for a connection bigiron does not speak."""
        return from_vars(self.name, self.vars)

    def secret(self, name: str) -> str:
        """The value of a secret, decrypted now. Raises BigironError when it cannot be opened, UsageError when unset."""
        if name not in self.vars:
            raise UsageError(f"{name} is not set", where=self.name, hint=f"ansible-vault encrypt_string --name {name}")
        return str(self.vars[name])


@dataclass(frozen=True)
class Inventory:
    """The hosts and groups of one inventory, in its own order. ``warnings`` are Ansible's, for a person to see."""

    path: str
    hosts: dict[str, Target]
    groups: dict[str, tuple[str, ...]]
    warnings: tuple[str, ...] = ()

    def select(self, host: str | None = None, group: str | None = None) -> list[Target]:
        """The targets that both patterns name (None is all). Raises UsageError for unknown names, or when nothing is left."""
        names = list(self.hosts)
        groups = {**self.groups, "all": tuple(names)}
        if group is not None:
            names = patterns.select(group, names, groups, where=self.path, groups_only=True)
        if host is not None:
            wanted = patterns.select(host, list(self.hosts), groups, where=self.path)
            names = [name for name in wanted if name in names]
        if not names:
            asked = " and ".join(f"--{word} {value}" for word, value in (("host", host), ("group", group)) if value is not None)
            raise UsageError(f"no host is left by {asked}", where=self.path)
        return [self.hosts[name] for name in names]


def load(path: str, *, cache: bool = True) -> Inventory:
    """Read the inventory at ``path``: file, folder, several of them with commas between, or ``"host1,host2,"``.

    Raises UsageError naming the file when it cannot be read or holds no host.
    """
    sources = scan(locate(path))
    file = cache_dir("inventory") / f"{sources.key}.json"
    kept = _read(file) if cache and sources.cacheable else None
    book = _Book(sources)
    if kept is not None:
        book.sealed = {host: entry["sealed"] for host, entry in kept["hosts"].items()}
    else:
        kept = book.digest()
        if cache and sources.cacheable:
            with contextlib.suppress(OSError):  # a full or read-only cache costs time, nothing else
                write_atomic(file, json.dumps(kept), 0o600)
                _prune(file.parent)
    return _inventory(sources.name, kept, book)


def _inventory(path: str, kept: dict[str, Any], book: _Book) -> Inventory:
    membership: dict[str, list[str]] = {}
    for group, members in kept["groups"].items():
        for host in members:
            membership.setdefault(host, []).append(group)
    hosts = {
        name: Target(name, tuple(membership.get(name, ())), Vars(name, entry["values"], entry["pending"], book), inventory=path)
        for name, entry in kept["hosts"].items()
    }
    return Inventory(path, hosts, {name: tuple(members) for name, members in kept["groups"].items()}, tuple(kept["warnings"]))


def _read(file: Path) -> dict[str, Any] | None:
    try:
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return kept if {"groups", "hosts", "warnings"} <= set(kept) else None


def _prune(folder: Path) -> None:
    entries = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in entries[_KEPT:]:
        old.unlink(missing_ok=True)


class _Book:
    """The inventory's sources, read on demand; decides what may be kept and opens what was not."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._listing: dict[str, Any] | None = None
        self._warnings: list[str] = []
        self._revealed: dict[tuple[str, str], Any] = {}
        self.sealed: dict[str, dict[str, Any]] = {}

    def _raw(self) -> dict[str, Any]:
        if self._listing is None:
            self._listing, self._warnings = listing(self._sources)
        return self._listing

    def digest(self) -> dict[str, Any]:
        """Groups, and per host the values that may be kept plus the names that may not, with why. No clear secret is in it."""
        raw = self._raw()
        hostvars: dict[str, dict[str, Any]] = raw["_meta"]["hostvars"]
        moving, clear = values.changing(hostvars.values()), values.clear_secrets(hostvars.values())
        templated = {
            host: [name for name, value in mine.items() if name not in moving and values.is_template(value)]
            for host, mine in hostvars.items()
        }
        resolved = resolve(raw, self._sources, templated, secrets=False) if any(templated.values()) else {}
        order = list(dict.fromkeys([host for group in raw.values() for host in group.get("hosts", [])] + list(hostvars)))
        empty: dict[str, dict[str, Any]] = {"values": {}, "problems": {}}
        hosts = {host: values.sort(hostvars[host], resolved.get(host, empty), moving, clear) for host in order}
        self.sealed = {host: entry["sealed"] for host, entry in hosts.items()}
        return {
            "groups": {name: [h for h in order if h in _members(raw, name)] for name in raw if name not in {"_meta", "all"}},
            "hosts": hosts,
            "warnings": self._warnings,
        }

    def reveal(self, host: str, name: str, why: str) -> Any:
        """One value that was not kept: read, filled in and decrypted now. Raises BigironError naming variable, file, host."""
        if (host, name) in self._revealed:
            return self._revealed[host, name]
        if name in self.sealed.get(host, {}):
            hostvars, document = self.sealed, {"_meta": {"hostvars": self.sealed}}
        else:
            document = self._raw()
            hostvars = document["_meta"]["hostvars"]
        if name not in hostvars.get(host, {}):
            raise BigironError(f"{name} is no longer in the inventory", where=host)
        value = hostvars[host][name]
        if not values.ciphers(value) and not values.is_template(value):
            return self._revealed.setdefault((host, name), values.unwrap(value))
        # one child opens what a group shares for all of its hosts
        same = {other: [name] for other, theirs in hostvars.items() if name in theirs and theirs[name] == value}
        answer = resolve(document, self._sources, same, secrets=True)
        for other in same:
            if name in answer[other]["values"]:
                self._revealed[other, name] = answer[other]["values"][name]
        if (host, name) not in self._revealed:
            raise self._sealed(host, name, value, answer[host]["problems"].get(name, why))
        return self._revealed[host, name]

    def _sealed(self, host: str, name: str, value: Any, why: str) -> BigironError:
        cipher = next(iter(values.ciphers(value)), None)
        hidden = [str(file) for file in self._sources.vaulted]
        if cipher is None and "vault" not in why and not (hidden and "undefined" in why):
            return BigironError(f"{name} cannot be resolved: {why}", where=host)
        place = f" in {self._place(cipher)}" if cipher else f"; it may come from {', '.join(hidden)}" if hidden else ""
        words = cipher.splitlines()[0].split(";") if cipher else []
        label = f" of vault id {words[3]!r}" if len(words) > 3 else ""
        return BigironError(
            f"{name}{place} is encrypted and cannot be opened: {why}",
            where=host,
            hint=f"give the password{label}: ANSIBLE_VAULT_PASSWORD_FILE=FILE, or ANSIBLE_VAULT_IDENTITY_LIST="
            f"{words[3] if len(words) > 3 else 'id'}@FILE",
        )

    def _place(self, cipher: str) -> str:
        needle = cipher.splitlines()[1].encode()
        for file in self._sources.files:
            for number, line in enumerate(file.read_bytes().splitlines(), start=1):
                if needle in line:
                    return f"{file}:{number - 1}"
        return self._sources.name


def _members(raw: dict[str, Any], group: str) -> set[str]:
    entry = raw.get(group, {})
    return set(entry.get("hosts", [])).union(*(_members(raw, child) for child in entry.get("children", [])))
