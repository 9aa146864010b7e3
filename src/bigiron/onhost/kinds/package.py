"""A Debian package: installed, in its version where one is wanted, and held where that is wanted."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, Iterator, Mapping, Optional, Tuple

from ..reader import Reader, unreadable

SECTION = "packages"
STATUS = "/var/lib/dpkg/status"
HELD = "*held"
"""The entry with the names of the held ones among those looked at; there is none while none is held."""


def observe(reader: Reader, names: Iterable[str]) -> Dict[str, Any]:
    """Versions of the installed ones among ``names``, from dpkg's status file.

    A name that is virtual (``awk``) has the version of an installed package that provides it.
    """
    data = reader.tree.data(STATUS)
    if data is None:
        why = reader.tree.unreadable.get(STATUS)
        return {name: {"error": f"{STATUS}: {why}"} for name in names} if why else {}
    # looked up one by one: a workstation's status file has megabytes, and this runs every time
    text = b"\n\n" + data
    found = {name: _find(text, name.split(":")[0]) for name in names}
    installed: Dict[str, Any] = {name: facts["Version"] for name, facts in found.items() if facts}
    held = [name for name, facts in found.items() if facts and facts["Status"].startswith("hold ")]
    return {**installed, HELD: held} if held else installed


def find(section: Mapping[str, Any], name: str, want: Mapping[str, Any]) -> Any:
    """The version, or ``{"version", "held"}`` where a hold is wanted."""
    have = section.get(name)
    return {"version": have, "held": name in section.get(HELD, ())} if want.get("hold") and isinstance(have, str) else have


def _stanza(stanza: bytes) -> Dict[str, str]:
    """Package, Version and Provides of an installed package; {} for one that is removed or half installed."""
    if b" ok installed\n" not in stanza:
        return {}
    facts = re.findall(r"^(Package|Version|Provides|Status): (.*)$", stanza.decode(errors="replace"), re.MULTILINE)
    return {"Package": "", "Version": "", **dict(facts)}


def _find(text: bytes, name: str) -> Optional[Dict[str, str]]:
    def around(at: int) -> Dict[str, str]:
        end = text.find(b"\n\n", at)
        return _stanza(text[text.rfind(b"\n\n", 0, at) + 2 : end if end >= 0 else len(text)])

    at = text.find(b"\nPackage: %s\n" % name.encode())
    while at >= 0:  # one stanza for each architecture
        facts = around(at + 1)
        if facts:
            return facts
        at = text.find(b"\nPackage: %s\n" % name.encode(), at + 1)
    for match in re.finditer(rb"\nProvides: [^\n]*(?<![\w.+-])%s(?![\w.+-])" % re.escape(name.encode()), text):
        facts = around(match.start() + 1)
        if facts:
            return facts
    return None


def differs(_name: str, want: Mapping[str, Any], have: Any) -> Iterator[Tuple[str, str]]:
    """``want``: ``{"version", "hold"}``; an empty version is any."""
    version = have.get("version") if isinstance(have, Mapping) else have
    if have is None:
        yield "not installed", ""
    elif unreadable(have):
        yield unreadable(have), ""
    elif want.get("version") and version != want["version"]:
        yield f"is {version}, not {want['version']}", ""
    elif want.get("hold") and not have["held"]:
        yield "is not held: an upgrade may change it", ""
