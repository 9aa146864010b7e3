"""What the installed llama-server understands, from its own ``--help``: flags change within weeks (facts of the build, not of this program)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ..errors import Refused

_NAME = r"--?[A-Za-z][\w-]*"
_TABLE_ROW = re.compile(r"^\|\s*`(?P<flag>[^`]*)`\s*\|\s*(?P<text>.*?)\s*\|\s*$")
_REMOVED = re.compile(r"argument has been removed|\[removed\]", re.IGNORECASE)


@dataclass(frozen=True)
class Flag:
    """One option: all its spellings, the metavar of its value ("" = a switch), its text."""

    names: tuple[str, ...]
    value: str
    text: str

    @property
    def takes_value(self) -> bool:
        """True when the next word of the command line belongs to it."""
        return bool(self.value)


@dataclass(frozen=True)
class Capabilities:
    """The options of one build. ``source`` says which text told so."""

    flags: tuple[Flag, ...]
    source: str = "--help"

    def find(self, name: str) -> Flag | None:
        """The option spelled ``name`` exactly; None when the build lacks it or only says that it was removed."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, Flag]:
        return {name: flag for flag in reversed(self.flags) for name in flag.names}

    def first(self, *names: str) -> str | None:
        """The first of ``names`` that the build knows."""
        return next((name for name in names if self.find(name)), None)

    def problems(self, line: Sequence[str]) -> list[str]:
        """What this build would not take as meant in a command line: unknown options, options without their value, stray words.

        An option that an older build took without a value and this one with (``-fa``) would eat the next option, and the other way round leave
        a stray word; both are found.
        """
        found = []
        words = list(line)
        while words:
            word = words.pop(0)
            flag = self.find(word)
            if flag is None:
                name, sign, _ = word.partition("=")
                if sign and self.find(name):
                    found.append(f"{word}: llama.cpp takes no --option=value, write {name} and the value as two words")
                    continue
                stray = f"{word} belongs to no option" if not word.startswith("-") else f"this build has no option {word}"
                near = difflib.get_close_matches(word, self._by_name, n=2)
                found.append(stray + (f" (near it: {', '.join(near)})" if near else ""))
            elif flag.takes_value:
                if words and not words[0].startswith("--") and self.find(words[0]) is None:
                    words.pop(0)
                else:  # [a|b] in the help are choices: no option of llama.cpp has a value that may be left out
                    found.append(f"{word} needs a value ({flag.value})")
        return found

    def to_json(self) -> dict[str, str]:
        """Longest spelling and metavar of every option, for the record of a release."""
        return {max(flag.names, key=len): flag.value for flag in self.flags}


@lru_cache(maxsize=8)  # hosts share builds
def parse(help_text: str, source: str = "--help") -> Capabilities:
    """The options in ``--help`` output, or in the generated table of tools/server/README.md.

    Raises Refused when the text holds fewer than ten options: then it is no help of llama-server.
    """
    flags = list(_from_table(help_text)) if "| Argument |" in help_text else list(_from_help(help_text))
    usable = tuple(flag for flag in flags if not _REMOVED.search(flag.text))
    if len(usable) < 10:
        raise Refused(
            f"found only {len(usable)} options in its help text, so its arguments cannot be checked",
            where=source,
            hint="is this llama-server? Run it with --help by hand",
        )
    return Capabilities(usable, source)


def _from_table(text: str) -> Iterable[Flag]:
    for line in text.splitlines():
        if row := _TABLE_ROW.match(line.replace("\\|", "\x00")):
            flag = row["flag"].replace("\x00", "|")
            names, value = _split(flag)
            if names:
                yield Flag(names, value, row["text"].replace("<br/>", " ").replace("\x00", "|"))


def _from_help(text: str) -> Iterable[Flag]:
    """Options start in column 0; their explanation starts behind two spaces or on the lines below."""
    current: list[str] | None = None
    for line in [*text.splitlines(), "-end-"]:
        if line.startswith("-") and not line.startswith("---"):
            if current:
                yield from _flag(current)
            current = [line]
        elif current is not None and line.startswith(" "):
            current.append(line.strip())
    return


def _flag(lines: list[str]) -> Iterable[Flag]:
    head, *rest = lines
    parts = re.split(r"\s{2,}", head.strip())
    # spellings are set in columns too ("-c,    --ctx-size N"): glue parts until one is neither a spelling nor its metavar
    flag, explanation = parts[0], parts[1:]
    while explanation and (flag.endswith(",") or explanation[0].startswith("-")) and re.match(r"-", explanation[0]):
        flag, explanation = f"{flag} {explanation[0]}", explanation[1:]
    names, value = _split(flag)
    if names:
        yield Flag(names, value, " ".join([*explanation, *rest]))


def _split(flag: str) -> tuple[tuple[str, ...], str]:
    names = []
    rest = flag.strip()
    while found := re.match(rf"({_NAME})(,\s*|\s+|$)", rest):
        names.append(found[1])
        rest = rest[found.end() :]
        if not found[2].startswith(","):
            break
    return tuple(names), rest.strip()


def unsupported(argv: Sequence[str], help_text: str) -> list[str]:
    """What the build with this ``--help`` would not accept in ``argv`` (program first)."""
    return parse(help_text).problems(argv[1:])
