"""Desired state against observed state: the one comparison behind plan, drift, provision, and the no-op fast path."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bigiron.plan.desired import ROLES, Resource
from bigiron.plan.places import kept
from bigiron.units import gib


@dataclass(frozen=True)
class Difference:
    """One thing that is not as planned. ``text`` is a unified diff for files, else empty."""

    role: str
    resource: str
    problem: str
    text: str = ""

    def to_json(self) -> dict[str, str]:
        return {"role": self.role, "resource": self.resource, "problem": self.problem, "diff": self.text}


Found = Iterable[tuple[str, str]]  # (problem, text)


def diff(
    resources: Iterable[Resource], observed: Mapping[str, Any], secrets: Mapping[str, str] | None = None
) -> list[Difference]:
    """The differences, in the order of ``resources``.

    ``secrets`` maps a secret file's path to the HMAC its content should have (the observer's nonce as key); a secret without an entry may hold
    anything. Something that could not be read counts as a difference and says so: it is never taken for absent or for right.
    """
    found = []
    for resource in resources:
        compare = _COMPARE[resource.kind]
        wanted = dict(resource.want)
        if resource.kind == "secret" and secrets and resource.name in secrets:
            wanted["hmac"] = secrets[resource.name]
        found += [
            Difference(resource.role, resource.id, problem, text) for problem, text in compare(resource.name, wanted, observed)
        ]
    return found


def roles_of(differences: Iterable[Difference]) -> list[str]:
    """The roles that have something to do, in the order in which they run."""
    needed = {difference.role for difference in differences}
    return [role for role in ROLES if role in needed]


def _package(name: str, _want: Mapping[str, Any], observed: Mapping[str, Any]) -> Found:
    if "error" in observed["packages"]:
        yield f"cannot be read: {observed['packages']['error']}", ""
    elif name not in observed["packages"]:
        yield "not installed", ""


def _user(name: str, want: Mapping[str, Any], observed: Mapping[str, Any]) -> Found:
    have = observed["users"].get(name)
    if have is None:
        yield "no such user", ""
        return
    for key, value in want.items():
        if have.get(key) != value:
            yield f"{key} is {have.get(key)}, not {value}", ""


def _status(want: Mapping[str, Any], have: Mapping[str, Any], kind: str) -> Found:
    if "error" in have:
        yield f"cannot be read: {have['error']}", ""
        return
    if have["type"] != kind:
        yield f"is a {have['type']}, not a {kind}", ""
    for key in ("owner", "group", "mode"):
        if have.get(key) != want[key]:
            yield f"{key} is {have.get(key)}, not {want[key]}", ""


def _directory(path: str, want: Mapping[str, Any], observed: Mapping[str, Any]) -> Found:
    have = observed["paths"].get(path)
    if have is None:
        yield "does not exist", ""
    else:
        theirs = want.get("keep") and kept(path, observed)
        yield from _status({**want, **have} if theirs else want, have, "directory")


def _file(path: str, want: Mapping[str, Any], observed: Mapping[str, Any]) -> Found:
    have = observed["paths"].get(path)
    if have is None:
        yield "does not exist", _unified(path, "", want["text"])
        return
    yield from _status(want, have, "file")
    if "error" not in have and have["type"] == "file" and have.get("sha256") != want["sha256"]:
        text = have.get("text")
        yield "content differs", _unified(path, text, want["text"]) if text is not None else ""


def _unified(path: str, have: str, want: str) -> str:
    lines = difflib.unified_diff(
        have.splitlines(), want.splitlines(), f"{path} (on the host)" if have else "/dev/null", f"{path} (planned)", lineterm=""
    )
    return "\n".join(lines)


def _secret(path: str, want: Mapping[str, Any], observed: Mapping[str, Any]) -> Found:
    have = observed["paths"].get(path)
    if have is None:
        yield "does not exist", ""
        return
    yield from _status(want, have, "file")
    if "error" in have:
        return
    if not have.get("size"):
        yield "is empty", ""
    elif "hmac" in want and have.get("hmac") != want["hmac"]:
        yield "holds another secret than the inventory", ""


def _release(name: str, _want: Mapping[str, Any], observed: Mapping[str, Any]) -> Found:
    if not name:
        yield "not built yet (its name needs the compiler's version)", ""
        return
    have = observed["releases"].get(name)
    if have is None:
        yield "not installed", ""
    elif not have["ok"]:
        yield "; ".join(have["problems"]) or "damaged", ""


def _link(path: str, want: Mapping[str, Any], observed: Mapping[str, Any]) -> Found:
    have = observed["paths"].get(path)
    if have is None:
        yield "does not exist", ""
    elif "error" in have:
        yield f"cannot be read: {have['error']}", ""
    elif have.get("type") != "link":
        yield f"is a {have.get('type')}, not a link", ""
    elif have.get("target") != want["target"]:
        yield f"points at {have.get('target')}, not {want['target']}", ""


def _shard(path: str, want: Mapping[str, Any], observed: Mapping[str, Any]) -> Found:
    revision = observed["models"].get(want["revision"], {})
    have = revision.get("files", {}).get(path)
    if have is None:
        part = revision.get("partial", {}).get(path)
        yield (f"{gib(part)} of {gib(want['size'])} fetched" if part else f"not fetched ({gib(want['size'])})"), ""
    elif "error" in have:
        yield f"cannot be read: {have['error']}", ""
    elif have.get("size") != want["size"]:
        yield f"has {have.get('size')} bytes, the hub says {want['size']}", ""
    elif not have.get("proved"):
        yield "not proved: no record that these bytes were hashed", ""
    elif have.get("sha256") != want["sha256"]:
        yield f"SHA-256 is {have.get('sha256')}, the hub says {want['sha256']}", ""


def _service(unit: str, want: Mapping[str, Any], observed: Mapping[str, Any]) -> Found:
    have = observed["services"].get(unit)
    if have is not None and "error" in have:
        yield f"cannot be read: {have['error']}", ""
        return
    if have is None or have.get("LoadState") in (None, "not-found"):
        yield "no such unit", ""
        return
    if have.get("UnitFileState") != "enabled":
        yield f"is {have.get('UnitFileState') or 'not enabled'}, not enabled", ""
    if have.get("NeedDaemonReload"):
        yield "systemd has not read the unit file as it is now", ""
    if have.get("ActiveState") != "active":
        yield f"is {have.get('ActiveState')} ({have.get('SubState')}, result {have.get('Result')})", ""
        return
    if have.get("exe") != want["exe"]:
        yield f"runs {have.get('exe')}, not {want['exe']}", ""
    started = float(have.get("started") or 0)
    for path in want["newer_than"]:
        changed = float(observed["paths"].get(path, {}).get("mtime") or 0)
        if changed > started:
            yield f"was started before {path} changed", ""
    if have.get("health") != 200:
        yield f"is not ready: {have.get('health_detail') or have.get('health')}", ""
    elif not have.get("listening"):
        yield f"another process answers on port {want['port']}", ""


_COMPARE: dict[str, Callable[[str, Mapping[str, Any], Mapping[str, Any]], Found]] = {
    "package": _package,
    "user": _user,
    "directory": _directory,
    "file": _file,
    "secret": _secret,
    "release": _release,
    "link": _link,
    "shard": _shard,
    "service": _service,
}
