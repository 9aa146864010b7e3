"""One step of llama.cpp in a person's inventory: the lines that pin it, changed as text, and what that means for the planned arguments."""

from __future__ import annotations

import hashlib
import re
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bigiron.errors import BigironError, Refused, UsageError
from bigiron.fleet import builds, lock, pinning
from bigiron.fleet.sources import locate
from bigiron.paths import cache_dir, write_atomic
from bigiron.plan import flags, sources

COMMIT, NUMBER, URL = "llama_cpp_commit", "llama_cpp_build_number", "llama_cpp_source_url"
SHA256, SUBDIR, MIRRORS = "llama_cpp_source_sha256", "llama_cpp_source_subdir", "llama_cpp_source_mirrors"
_LINE = r"^(?P<head>[ ]*{name}[ ]*:[ ]+)(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s#\n][^#\n]*?)(?P<tail>[ ]*(?:[ ]#[^\n]*)?)$"
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Step:
    """What to go to; what is empty follows from ``to`` and from what stands there."""

    to: str
    url: str = ""
    sha256: str = ""
    number: int = 0


@dataclass(frozen=True)
class HostFlags:
    """What the step means for the arguments of one host; ``unknown`` says why that cannot be told yet."""

    host: str
    changes: list[flags.Change] = field(default_factory=list)
    unknown: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"host": self.host, "changes": [each.to_json() for each in self.changes], "unknown": self.unknown or None}


@dataclass(frozen=True)
class Bump:
    """The file and its lines, before and after; nothing in ``lines`` when it stands there already."""

    file: Path
    lines: list[tuple[str, str]]
    hosts: list[HostFlags]
    written: bool

    def to_json(self) -> dict[str, Any]:
        lines = [{"before": before, "after": after} for before, after in self.lines]
        return {
            "file": str(self.file),
            "written": self.written,
            "lines": lines,
            "hosts": [each.to_json() for each in self.hosts],
        }


def bump(inventory: str, step: Step, *, file: str = "", check: bool = False) -> Bump:
    """Change the lines that pin llama.cpp in the file of ``inventory`` that has them, comments and all else as they were.

    The archive is fetched when no SHA-256 is given, and the commit of a tag is asked of the repository. Raises UsageError when it is not clear which
    lines to change, Refused when the result would not be what was asked for; nothing is written then.
    """
    if not re.fullmatch(r"[\w.+-]+", step.to):
        what = f"{step.to!r} is no build of llama.cpp" if step.to else "no build was named"
        raise UsageError(what, where="--to", hint="a tag like b11500, or a commit of 40 hex digits")
    path = Path(file) if file else _file(inventory)
    if not path.is_file():
        raise UsageError("there is no such file", where=file, hint=f"name a file of {inventory} that sets {COMMIT}")
    text = path.read_text(encoding="utf-8")
    old = {name: _value(text, name) for name in (COMMIT, NUMBER, URL, SHA256, SUBDIR)}
    new = _wanted(old, step, path)
    changed = text
    for name, value in new.items():
        if value != old[name]:
            changed = _set(changed, name, value)
    _check(text, changed, {name: value for name, value in new.items() if value != old[name]}, path)
    lines = [(a, b) for a, b in zip(text.splitlines(), changed.splitlines(), strict=True) if a != b]
    if lines and not check:
        real = path.resolve()
        write_atomic(real, changed, real.stat().st_mode & 0o777)
    source = sources.Source(str(new[URL]), str(new.get(SHA256) or ""), "", 0, str(new[COMMIT]))
    return Bump(path, lines, _hosts(inventory, source), bool(lines) and not check)


def _file(inventory: str) -> Path:
    """The one file of the inventory that sets the commit."""
    found = []
    for part in locate(inventory):
        root = Path(part)
        files = (
            sorted(path for path in root.rglob("*") if path.is_file() and "locks" not in path.parts)
            if root.is_dir()
            else [root]
        )
        if root.is_file():
            files += sorted(
                path for folder in ("group_vars", "host_vars") for path in (root.parent / folder).rglob("*") if path.is_file()
            )
        found += [path for path in files if _value(_text(path), COMMIT) is not None]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(
            f"no file sets {COMMIT}", where=inventory, hint="./inv vars llama_cpp_commit says how; --file names the file"
        )
    raise UsageError(
        f"{len(found)} files set {COMMIT}: {', '.join(map(str, found))}", where=inventory, hint="name one with --file"
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _value(text: str, name: str) -> Any:
    """What the one line of ``name`` sets; None without such a line. Raises UsageError when several do."""
    found = list(re.finditer(_LINE.format(name=name), text, re.MULTILINE))
    if len(found) > 1:
        raise UsageError(f"{name} is set {len(found)} times in one file", hint="change it by hand")
    return yaml.safe_load(found[0]["value"]) if found else None


def _wanted(old: Mapping[str, Any], step: Step, path: Path) -> dict[str, Any]:
    if old[URL] is None and not step.url:
        raise UsageError(f"{URL} is not set beside {COMMIT}", where=str(path), hint="give --file of the file that sets both")
    before, url = str(old[COMMIT]), str(old[URL] or "")
    git = sources.kind(step.url or url) == sources.GIT
    new: dict[str, Any] = {COMMIT: step.to, URL: step.url or url}
    if git and not sources.COMMIT.fullmatch(step.to):
        new[COMMIT] = pinning.resolve((new[URL],), step.to)
    number = step.number or (int(step.to[1:]) if re.fullmatch(r"b\d+", step.to) else old[NUMBER] if step.to == before else 0)
    if not number:
        raise UsageError(
            f"the build number of {step.to} is not known", hint="give it with --number: git rev-list --count COMMIT"
        )
    if old[NUMBER] is None:
        raise UsageError(f"{NUMBER} is not set beside {COMMIT}", where=str(path), hint="give --file of the file that sets both")
    new[NUMBER] = number
    if git or sources.kind(new[URL]) == sources.TREE:
        return new
    if step.to != before and not step.url:
        new[URL] = _replaced(url, before, step.to)
        if new[URL] == url:
            raise UsageError(
                f"{URL} does not hold {before!r}, so the new address is not known", where=str(path), hint="give --url"
            )
    if old[SUBDIR]:
        new[SUBDIR] = _replaced(str(old[SUBDIR]), before, step.to)
    if old[SHA256] is None:
        raise UsageError(f"{SHA256} is not set beside {COMMIT}", where=str(path), hint="give --file of the file that sets both")
    same = (new[URL], step.to) == (url, before) and old[SHA256]
    new[SHA256] = step.sha256 or (old[SHA256] if same else _fetched(new[URL], str(new.get(SUBDIR) or "")))
    if not re.fullmatch(r"[0-9a-f]{64}", str(new[SHA256])):
        raise UsageError(f"{new[SHA256]!r} is no SHA-256", where="--sha256", hint="64 lower-case hex digits")
    return new


def _replaced(text: str, before: str, after: str) -> str:
    return re.sub(rf"(?<![0-9A-Za-z]){re.escape(before)}(?![0-9A-Za-z])", after, text)


def _fetched(url: str, subdir: str) -> str:
    """The SHA-256 of the archive at ``url``, which is seen to hold llama.cpp."""
    if "{{" in url or not url.startswith(("http://", "https://")):
        raise UsageError(f"the SHA-256 of {url} is not known", hint="give it with --sha256")
    digest = hashlib.sha256()
    with tempfile.TemporaryFile(dir=cache_dir("sources")) as kept:
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - http or https, see above
                while block := answer.read(1 << 20):
                    digest.update(block)
                    kept.write(block)
        except (OSError, urllib.error.URLError) as error:
            raise BigironError(
                f"cannot be fetched: {error}", where=url, hint="is there such a build? Give --url, or --sha256 if you know it"
            ) from None
        kept.seek(0)
        try:
            with tarfile.open(fileobj=kept) as tar:
                names = {name for name in tar.getnames() if name.count("/") <= 2 + subdir.count("/")}
        except (tarfile.TarError, EOFError) as error:
            raise Refused(f"it is no tar archive: {error}", where=url, hint="give --url of an archive of llama.cpp") from None
    marker = f"{subdir.strip('/')}/CMakeLists.txt" if subdir else "CMakeLists.txt"
    if not any(name == marker or (not subdir and name.endswith(f"/{marker}")) for name in names):
        raise Refused(f"the archive has no {marker}", where=url, hint=f"is it llama.cpp? Correct {SUBDIR} and try again")
    return digest.hexdigest()


def _set(text: str, name: str, value: Any) -> str:
    def line(found: re.Match[str]) -> str:
        quote = found["value"][0] if found["value"][0] in "\"'" else ""
        written = str(value) if not isinstance(value, str) or quote or yaml.safe_load(str(value)) == value else None
        return (
            f"{found['head']}{quote}{written}{quote}{found['tail']}"
            if written is not None
            else f'{found["head"]}"{value}"{found["tail"]}'
        )

    return re.sub(_LINE.format(name=name), line, text, flags=re.MULTILINE)


def _check(before: str, after: str, changed: Mapping[str, Any], path: Path) -> None:
    """Raise Refused unless ``after`` is ``before`` with exactly ``changed``: both are read as YAML."""
    for name, value in changed.items():
        if _value(after, name) != value:
            raise Refused(f"{name} could not be changed as text", where=str(path), hint="change it by hand")
    strange = [
        a
        for a, b in zip(before.splitlines(), after.splitlines(), strict=True)
        if a != b and not any(name in a for name in changed)
    ]
    if strange:
        raise Refused(f"another line would change: {strange[0].strip()}", where=str(path), hint="change it by hand")


def _hosts(inventory: str, source: sources.Source) -> list[HostFlags]:
    """What the new build means for each host that has a lock, by the two builds' own ``--help``, as far as they are known."""
    new = builds.help_from_source(source.identity())
    found = []
    for path, content in lock.read_all(inventory).items():
        mark, argv = (content.get("release") or {}).get("fingerprint", ""), (content.get("service") or {}).get("argv") or []
        old = builds.help_of(mark)
        if not new:
            why = f"the new build can only be asked once it is there: ./inv builds.build --host {path.stem}, then this command again"
            found.append(HostFlags(path.stem, unknown=why))
        elif not old or not argv:
            found.append(
                HostFlags(path.stem, unknown=f"the build that it runs ({mark or 'unknown'}) is not packed on this controller")
            )
        else:
            found.append(HostFlags(path.stem, flags.changes(argv, old, new)))
    return found
