"""The controller's apt settings that a container needs too: sources of the same release, proxy, and index handling."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from bigiron.lab import tools

FALLBACK_RELEASE = "bookworm"

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


def controller_sources(release: str) -> str:
    """:func:`sources_of` for /etc/apt on this machine."""
    folder = Path("/etc/apt")
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    readable = [path for path in files if path.suffix in {".list", ".sources"} and path.is_file()]
    return sources_of(release, [(path.name, path.read_text(encoding="utf-8", errors="replace")) for path in readable])


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
    return "\n".join(f"{key.capitalize() if key != 'uris' else 'URIs'}: {value}" for key, value in fields.items())


def _wanted(release: str, fields: dict[str, str]) -> bool:
    signer = fields.get("signed-by", "")
    return (
        "deb" in fields.get("types", "").split()
        and all(re.match(r"(https?|mirror\+https?)://", uri) for uri in fields.get("uris", "-").split())
        and all(suite.split("/")[0].split("-")[0] == release for suite in fields.get("suites", "-").split())
        and (not signer or "debian-archive-keyring" in signer)
    )
