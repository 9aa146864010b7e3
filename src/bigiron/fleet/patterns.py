"""Host patterns with Ansible's meaning: ``a,b`` ``a:b`` ``gpu*`` ``~regex`` ``group[0:2]`` ``&group`` ``!host`` ``all``.

Unlike Ansible, a part that matches nothing is an error: a typo must never quietly shrink (or, after ``!``, widen) a run.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping, Sequence

from bigiron.errors import UsageError

_SUBSCRIPT = re.compile(r"^(?P<name>.+)\[(?:(?P<index>-?\d+)|(?P<start>\d*)[:-](?P<end>\d*))\]$")


def select(
    pattern: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]], *, where: str, groups_only: bool = False
) -> list[str]:
    """The hosts that ``pattern`` names, part by part. Raises UsageError (with near names) for an unknown part."""
    parts = _split(pattern)
    if not parts:
        raise UsageError("the host pattern is empty", where=where)
    chosen: list[str] = []
    plain = [part for part in parts if part[0] not in "!&"]
    for part in plain or ["all"]:
        chosen += [host for host in _match(part, hosts, groups, where, groups_only) if host not in chosen]
    for part in (part for part in parts if part[0] == "&"):
        keep = set(_match(part[1:], hosts, groups, where, groups_only=False))
        chosen = [host for host in chosen if host in keep]
    for part in (part for part in parts if part[0] == "!"):
        drop = set(_match(part[1:], hosts, groups, where, groups_only=False))
        chosen = [host for host in chosen if host not in drop]
    return chosen


def _split(pattern: str) -> list[str]:
    if "," in pattern:
        parts = pattern.split(",")
    elif pattern.startswith("~") or (pattern.count(":") > 1 and "[" not in pattern and "::" in pattern):
        parts = [pattern]  # a regular expression, or an IPv6 address
    else:
        parts = re.split(r":(?![^\[]*\])", pattern)
    return [part.strip() for part in parts if part.strip()]


def _match(part: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]], where: str, groups_only: bool) -> list[str]:
    if part in {"all", "*"}:
        return list(hosts)
    subscript = _SUBSCRIPT.match(part)
    if subscript and part not in hosts:
        found = _match(subscript["name"], hosts, groups, where, groups_only)
        if subscript["index"] is not None:
            index = int(subscript["index"])
            if not -len(found) <= index < len(found):
                raise UsageError(f"{part!r} is out of range: {subscript['name']} has {len(found)} hosts", where=where)
            return [found[index]]
        start, end = subscript["start"], subscript["end"]
        return found[int(start or 0) : int(end) + 1 if end else None]
    if part.startswith("~"):
        try:
            test = re.compile(part[1:]).match
        except re.error as error:
            raise UsageError(f"{part!r} is not a regular expression: {error}", where=where) from None
    else:
        test = re.compile(fnmatch.translate(part)).match
    found = [host for name, members in groups.items() if test(name) for host in members]
    matched = bool(found) or any(test(name) for name in groups)
    if not groups_only:
        names = [host for host in hosts if test(host)]
        found += names
        matched = matched or bool(names)
    if not matched:
        raise _unknown(part, hosts, groups, where, groups_only)
    return list(dict.fromkeys(found))


def _unknown(part: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]], where: str, groups_only: bool) -> UsageError:
    kind = "group" if groups_only else "host or group"
    if groups_only and part in hosts:
        return UsageError(f"{part} is a host, not a group", where=where, hint=f"use --host {part}")
    names = [*groups] if groups_only else [*hosts, *groups]
    near = difflib.get_close_matches(part, names, n=3, cutoff=0.5)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    else:
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        hint = f"known: {shown}"
    return UsageError(f"there is no {kind} {part!r}", where=where, hint=hint)
