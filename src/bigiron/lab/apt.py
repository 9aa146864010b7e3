"""The controller's apt settings that a container needs too: sources for its release, proxy, and index handling."""

from __future__ import annotations

import difflib
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from bigiron.errors import UsageError
from bigiron.lab import tools

FALLBACK_RELEASE = "bookworm"
RELEASES = {"bookworm": "12", "trixie": "13"}
"""The Debian releases that a lab host may be, by codename; besides them only the controller's own."""

_CARRIED = re.compile(
    r"Acquire::(Check-(Valid-Until|Date)|Languages|GzipIndexes|Retries|ForceIPv[46]|Max-ValidTime"
    r"|(https?|ftp)(::.*)?::(Proxy|No-Cache|Pipeline-Depth|Timeout)|IndexTargets::.*::DefaultEnabled)\b",
    re.IGNORECASE,
)


def debian_release() -> str | None:
    """The controller's Debian codename, or None when it is not Debian."""
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        return None
    return system.get("VERSION_CODENAME") if system.get("ID") == "debian" else None


def own_release() -> str:
    """What a lab host is when nothing else is wanted: the controller's own release, or the fallback where it is not Debian."""
    return debian_release() or FALLBACK_RELEASE


def check_release(release: object, where: str) -> str:
    """``release`` when the lab can make such a host. Raises UsageError with the near names, saying ``where`` it is wanted."""
    known = [*RELEASES, *({own_release()} - {*RELEASES})]
    if isinstance(release, str) and release in known:
        return release
    numbers = {number: name for name, number in RELEASES.items()}
    near = [numbers[str(release)]] if str(release) in numbers else difflib.get_close_matches(str(release), known, cutoff=0.5)
    raise UsageError(
        f"lab_release is {release!r}, which the lab does not know",
        where=where,
        hint=f"did you mean {near[0]}?" if near else f"it must be one of: {', '.join(known)}",
    )


def sources_of(release: str, files: Iterable[tuple[str, str]]) -> str:
    """The entries of apt source files (name, text) that belong to Debian's own ``release``, as one deb822 text, or "".

    Entries of other archives (their keys are not in a fresh machine) and of local files are left out.
    """
    stanzas: list[str] = []
    for name, text in files:
        plain = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        if name.endswith(".sources"):
            for block in re.split(r"\n[ \t]*\n", plain):
                fields = _fields(block)
                if fields.get("enabled", "yes").lower() != "no" and _wanted(release, fields):
                    stanzas.append(block.strip("\n"))
        else:
            stanzas += [_stanza(fields) for fields in map(_one_line, plain.splitlines()) if fields and _wanted(release, fields)]
    return "\n\n".join(stanzas) + "\n" if stanzas else ""


def derived(text: str, own: str, release: str) -> str:
    """The deb822 ``text`` of release ``own`` turned into one for ``release``: same addresses and keys, its suites renamed.

    A stanza that cannot be renamed is left out: one whose address or key names the release, or a suite of the old form ``own/updates``.
    """
    stanzas = []
    for stanza in filter(None, text.strip("\n").split("\n\n")):
        fields = _fields(stanza)
        suites = fields["suites"].split()
        others = " ".join(value for key, value in fields.items() if key != "suites")
        if own not in others and not any("/" in suite for suite in suites):
            renamed = " ".join(re.sub(rf"^{re.escape(own)}(?=-|$)", release, suite) for suite in suites)
            stanzas.append(_stanza({**fields, "suites": renamed}))
    return "\n\n".join(stanzas) + "\n" if stanzas else ""


def controller_sources(release: str) -> str:
    """:func:`sources_of` for /etc/apt on this machine, :func:`derived` from those of its own release where it has none of ``release``."""
    folder = Path("/etc/apt")
    found = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    readable = [path for path in found if path.suffix in {".list", ".sources"} and path.is_file()]
    files = [(path.name, path.read_text(encoding="utf-8", errors="replace")) for path in readable]
    own = debian_release()
    return sources_of(release, files) or (derived(sources_of(own, files), own, release) if own else "")


def settings_of(dump: str, environment: dict[str, str]) -> str:
    """The lines of ``apt-config dump`` that matter behind the bridge, with the proxy variables apt would have honoured."""
    lines = [line for line in dump.splitlines() if _CARRIED.match(line) and not line.rstrip().endswith('"";')]
    for scheme in ("http", "https"):
        proxy = environment.get(f"{scheme}_proxy", "")
        if proxy and not any(f"Acquire::{scheme}::Proxy ".lower() in line.lower() for line in lines):
            lines.append(f'Acquire::{scheme}::Proxy "{proxy}";')
    return "".join(f"{line}\n" for line in lines)


def controller_settings() -> str:
    """:func:`settings_of` for this machine."""
    return settings_of(tools.run(["apt-config", "dump", "Acquire"], check=False).stdout, dict(os.environ))


def _fields(block: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    key = ""
    for line in block.splitlines():
        if line[:1] in {" ", "\t"}:
            fields[key] = fields.get(key, "") + "\n" + line.strip()
        elif ":" in line:
            key, _, value = line.partition(":")
            key = key.strip().lower()
            fields[key] = value.strip()
    return fields


def _one_line(line: str) -> dict[str, str]:
    match = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+(.+)", line)
    if match is None:
        return {}
    options = dict(word.split("=", 1) for word in (match[1] or "").split() if "=" in word)
    fields = {"types": "deb", "uris": match[2], "suites": match[3], "components": match[4].strip()}
    if "signed-by" in options:
        fields["signed-by"] = options["signed-by"]
    return fields


def _stanza(fields: dict[str, str]) -> str:
    names = {key: "URIs" if key == "uris" else key.capitalize() for key in fields}
    return "\n".join(f"{names[key]}: {value}".replace("\n", "\n ") for key, value in fields.items())


def _wanted(release: str, fields: dict[str, str]) -> bool:
    signer = fields.get("signed-by", "")
    return (
        "deb" in fields.get("types", "").split()
        and all(re.match(r"(https?|mirror\+https?)://", uri) for uri in fields.get("uris", "-").split())
        and all(suite.split("/")[0].split("-")[0] == release for suite in fields.get("suites", "-").split())
        and (not signer or "debian-archive-keyring" in signer)
    )
