"""The key is nowhere but in its file: not in arguments, environments, the journal, systemd's properties or readable files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bigiron.report.verdict import Check

from .subject import CannotTell, Subject

MOST_FILES = 5000
PLACES = {"arguments": "argument lists", "environments": "environments", "files": "files other users can read"}


def searched(s: Subject, place: str) -> tuple[bool, str]:
    if s.fact("host", "euid") != 0 and place == "environments":
        raise CannotTell("needs root to read other users' environments")
    found = s.fact("secrets", place)
    number = s.fact("secrets", "scanned" if place == "files" else "processes")
    more = ", the rest was left out" if place == "files" and number >= MOST_FILES else ""
    return (
        not found,
        f"the key is in {', '.join(found[:5])}" if found else f"not in the {PLACES[place]} ({number} searched{more})",
    )


def absent(s: Subject, place: str, words: str) -> tuple[bool, str]:
    found = s.fact("secrets", place)
    return found is False, f"the key is in {words}" if found else f"not in {words}"


def long_enough(s: Subject) -> tuple[bool, str]:
    length = s.facts.get("secrets", {}).get("length") or s.fact("secrets", "length")
    return length >= 16, f"the key has {length} characters, at least 16"


def no_argument(s: Subject) -> tuple[bool, str]:
    """Even a key that is not ours: no --api-key in the running argument list."""
    found = [
        word.split("=")[0] for word in s.fact("process", "cmdline") if word.split("=")[0] in ("--api-key", "--hf-token", "-hft")
    ]
    return (
        not found,
        f"the server was given {', '.join(found)} as an argument" if found else "no secret option in its arguments",
    )


def checks(s: Subject) -> Iterator[Check]:
    renew = f"remove {s.key_file} on {s.name} (or set another llama_server_api_key), then {s.provision}"
    yield s.check("secret.no-argument", s.provision, no_argument)
    if s.keyed:
        yield s.check("secret.length", renew, long_enough)
        for place in PLACES:
            yield s.check(f"secret.{place}", renew, searched, place)
        yield s.check("secret.journal", renew, absent, "journal", f"the journal of {s.unit}")
        yield s.check("secret.show", renew, absent, "show", "what systemctl show prints to everybody")


def test_secrets(check: Check, judge: Any) -> None:
    judge(check)
