"""What another build of llama.cpp means for a command line: options removed, renamed, with another kind of value or another default."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bigiron.plan.capabilities import Capabilities, Flag, parse

_ALIKE = 0.85
"""How alike two explanations must be to take an option that went for the one that came."""


@dataclass(frozen=True)
class Change:
    """``kind`` is removed, renamed, value or default; ``told`` says it in words."""

    option: str
    kind: str
    told: str

    def to_json(self) -> dict[str, str]:
        return {"option": self.option, "kind": self.kind, "told": self.told}


def changes(argv: Sequence[str], old_help: str, new_help: str) -> list[Change]:
    """The changes between two builds, by their ``--help``, that touch ``argv`` (program first): its options in their order, then what it leaves open.

    A default matters only where ``argv`` does not say the value. Raises Refused when one of the texts is no help of llama-server.
    """
    old, new = parse(old_help, "--help of the old build"), parse(new_help, "--help of the new build")
    given = dict.fromkeys(argv[1:])
    found = []
    for word in given:
        before = old.find(word)
        if before and (change := _change(word, before, old, new)):
            found.append(change)
    for flag in old.flags:
        now = next((same for name in flag.names if (same := new.find(name))), None)
        if now and not any(name in given for name in (*flag.names, *now.names)):
            was, becomes = _default(flag), _default(now)
            if was != becomes and was and becomes:
                option = max(now.names, key=len)
                told = f"{option}, which the plan leaves open, has another default: {becomes}, before {was}"
                found.append(Change(option, "default", told))
    return found


def _change(word: str, before: Flag, old: Capabilities, new: Capabilities) -> Change | None:
    now = new.find(word)
    if now is None:
        other = new.first(*before.names) or _successor(before, old, new)
        if other:
            return Change(word, "renamed", f"{word} is called {other} now")
        return Change(word, "removed", f"{word} is gone")
    if bool(before.value) != bool(now.value):
        what = f"takes a value now ({now.value})" if now.value else "takes no value any more"
        return Change(word, "value", f"{word} {what}")
    return None


def _successor(before: Flag, old: Capabilities, new: Capabilities) -> str | None:
    """The option that came with about the explanation of the one that went."""
    came = [flag for flag in new.flags if not any(old.find(name) for name in flag.names)]
    alike = [(difflib.SequenceMatcher(None, before.text, flag.text).ratio(), max(flag.names, key=len)) for flag in came]
    best = max(alike, default=(0.0, ""))
    return best[1] if best[0] >= _ALIKE else None


def _default(flag: Flag) -> str:
    """``(default: 0, 0 = loaded from model)`` and ``('on' or 'off', default: 'on')``: the value itself."""
    found = re.search(r"\bdefault: *([^,;)]*)", flag.text)
    return found[1].strip().strip("'\"") if found else ""
