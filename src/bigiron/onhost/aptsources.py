"""Where apt takes packages from: third-party repositories with their keys, pins, and what unattended upgrades must leave alone.

Every file written here is called ``bigiron-NAME``, so that what is ours is known without a record. A repository that another file lists
too is disabled there, in place and marked, because apt refuses to start when the two name different keys ("Conflicting values set for
option Signed-By"). Standard library only: this file also runs on hosts.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
import shutil
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from ..errors import BigironError
from . import openpgp
from .apt import Apt, Run, reason, run
from .progress import write_atomic

ETC = "/etc/apt"
SOURCES, KEYRINGS, PREFERENCES, CONF = (
    f"{ETC}/{name}" for name in ("sources.list.d", "keyrings", "preferences.d", "apt.conf.d")
)
OURS = re.compile(r"(?:\d\d)?bigiron-[a-z0-9-]+(?:\.\w+)?")
HELD = f"{CONF}/51bigiron-held"
BACKUPS = Path("/var/lib/bigiron/apt")
MARK = "#bigiron# "
"""Stands before each line that is disabled here, and nowhere else."""
HEAD = "# Written by bigiron: do not edit.\n"
KEY_LIMIT_BYTES = 1 << 20
FETCH_TIMEOUT_S = 30


class Entry(NamedTuple):
    """One repository that apt reads: ``lines`` are the first and the last line that list it (from 0), ``whole`` all that these lines list."""

    file: str
    lines: Tuple[int, int]
    uri: str
    suite: str
    signed_by: str
    whole: Tuple[Tuple[str, str], ...]

    @property
    def place(self) -> str:
        return f"{self.file}:{self.lines[0] + 1}"


def same(uri: str, suite: str) -> Tuple[str, str]:
    """What apt takes for one and the same repository."""
    return uri.rstrip("/") + "/", suite.removeprefix("./")


def parse(file: str, text: str) -> List[Entry]:
    """The enabled repositories of a one-line (.list) or a deb822 (.sources) file."""
    return list(_stanzas(file, text) if file.endswith(".sources") else _one_lines(file, text))


def _one_lines(file: str, text: str) -> Iterator[Entry]:
    for at, line in enumerate(text.splitlines()):
        match = re.match(r"\s*deb(?:-src)?\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)", line)
        if match:
            options = dict(word.partition("=")[::2] for word in (match.group(1) or "").split())
            key = same(match.group(2), match.group(3))
            yield Entry(file, (at, at), *key, options.get("signed-by", ""), (key,))


def _stanzas(file: str, text: str) -> Iterator[Entry]:
    lines = [*text.splitlines(), ""]
    begin = 0
    for at, line in enumerate(lines):
        if line.strip():
            continue
        fields: Dict[str, str] = {}
        name = ""
        for one in lines[begin:at]:
            if one.startswith("#"):
                continue
            if one[0] in " \t":
                fields[name] = f"{fields.get(name, '')}\n{one.strip()}"
            else:
                name, _, value = one.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if fields.get("enabled", "yes").lower() not in ("no", "false", "0", "off", "without", "disable"):
            keys = tuple(
                same(uri, suite) for uri in fields.get("uris", "").split() for suite in fields.get("suites", "").split()
            )
            signed = fields.get("signed-by", "")
            for key in keys:
                yield Entry(file, (begin, at - 1), *key, "a key of its own" if "\n" in signed else signed, keys)
        begin = at + 1


def render_sources(repository: Mapping[str, Any]) -> str:
    """The deb822 file of a repository."""
    fields = {
        "Types": "deb",
        "URIs": repository["uri"],
        "Suites": " ".join(repository["suites"]),
        "Components": " ".join(repository.get("components") or ()),
        "Architectures": " ".join(repository.get("architectures") or ()),
        "Signed-By": key_path(repository["name"]),
    }
    return HEAD + "".join(f"{name}: {value}\n" for name, value in fields.items() if value)


def render_pin(pin: Mapping[str, Any]) -> str:
    """The preferences file of a pin."""
    return f"{HEAD}Package: {' '.join(pin['packages'])}\nPin: {pin['pin']}\nPin-Priority: {pin['priority']}\n"


def render_held(names: Sequence[str]) -> str:
    """What unattended-upgrades must leave alone: it upgrades what a hold of apt-mark does not cover, such as a dependency's new name."""
    patterns = (re.sub(r"([+.])", r"[\1]", name) for name in sorted(names))
    rows = "".join(f'    "^{pattern}$";\n' for pattern in patterns)
    return f"{HEAD.replace('#', '//')}Unattended-Upgrade::Package-Blacklist {{\n{rows}}};\n"


def sources_path(name: str) -> str:
    return f"{SOURCES}/bigiron-{name}.sources"


def key_path(name: str) -> str:
    return f"{KEYRINGS}/bigiron-{name}.asc"


def pin_path(name: str) -> str:
    return f"{PREFERENCES}/bigiron-{name}.pref"


def wanted_files(
    repositories: Sequence[Mapping[str, Any]], pins: Sequence[Mapping[str, Any]], held: Sequence[str]
) -> Dict[str, str]:
    """Every file but the keys, by path."""
    files = {sources_path(each["name"]): render_sources(each) for each in repositories}
    files.update({pin_path(each["name"]): render_pin(each) for each in pins})
    return {**files, **({HELD: render_held(held)} if held else {})}


def wrong_key(repository: Mapping[str, Any], data: bytes) -> str:
    """Why ``data`` is not the key of the repository; "" when it is."""
    try:
        found = openpgp.fingerprints(data)
    except ValueError as error:
        return f"the key of repository {repository['name']} {error}"
    wanted = {re.sub(r"\s", "", each).upper() for each in repository["fingerprints"]}
    strange = [each for each in found if each not in wanted]
    return (
        f"the key of repository {repository['name']} is {', '.join(strange)}, not {' or '.join(sorted(wanted))}"
        if strange
        else ""
    )


class AptSources:
    """The files of apt below ``root`` (a test brings its own)."""

    def __init__(self, root: str = "", runner: Run = run, lock_timeout_s: int = 300) -> None:
        self.root = root.rstrip("/")
        self.runner = runner
        self.apt = Apt(runner, lock_timeout_s)

    def path(self, name: str) -> Path:
        return Path(self.root + name)

    def ensure(
        self,
        repositories: Sequence[Mapping[str, Any]],
        pins: Sequence[Mapping[str, Any]],
        held: Sequence[str],
        *,
        check: bool = False,
    ) -> Dict[str, Any]:
        """Bring the files to what is wanted; returns ``{"changed", "written": [path], "removed": [path], "disabled": [file:line]}``.

        Raises BigironError, with everything of this call put back, when a key is another one, when the repository cannot be read, or when a pin
        matches nothing.
        """
        files = wanted_files(repositories, pins, held)
        keys = {key_path(each["name"]): each for each in repositories}
        twice = self.duplicates(repositories)
        old_keys = [path for path, each in keys.items() if not self._has_key(path, each)]
        written = [*old_keys, *(path for path, text in files.items() if self._text(path) != text)]
        removed = [path for path in self.ours() if path not in files and path not in keys]
        answer = {"changed": bool(written or removed or twice), "written": written, "removed": removed}
        answer["disabled"] = [entry.place for entry in twice]
        if check or not answer["changed"]:
            return answer
        texts = {path: self._key(keys[path]) for path in old_keys}
        texts.update({path: files[path] for path in written if path in files})
        before = {path: self._text(path) for path in (*texts, *(entry.file for entry in twice))}
        self.disable(twice)
        try:
            for path in sorted(texts, key=lambda each: not each.startswith(KEYRINGS)):
                if not path.startswith(PREFERENCES):
                    self._write(path, texts[path])
            for each in repositories:
                if {key_path(each["name"]), sources_path(each["name"])} & set(written):
                    self.update(each)
            for each in pins:
                self.matches(each)
                self._write(pin_path(each["name"]), render_pin(each))
        except BaseException:
            for path, text in before.items():
                self._write(path, text) if text is not None else self.path(path).unlink(missing_ok=True)
            raise
        for path in removed:
            self.path(path).unlink()
        return answer

    def remove(self, *, check: bool = False) -> Dict[str, Any]:
        """Remove every file of ours, and enable again what was disabled for one of them."""
        ours = self.ours()
        back = [path for path in self._lists() if any(line.startswith(MARK) for line in (self._text(path) or "").splitlines())]
        if not check:
            for path in ours:
                self.path(path).unlink()
            for path in back:
                text = self._text(path) or ""
                self._write(path, "".join(line.removeprefix(MARK) for line in text.splitlines(True)))
            shutil.rmtree(self.path(str(BACKUPS)), ignore_errors=True)
        return {"changed": bool(ours or back), "removed": ours, "enabled": back}

    def ours(self) -> List[str]:
        """The files that bigiron wrote, by their names."""
        found = []
        for folder in (SOURCES, KEYRINGS, PREFERENCES, CONF):
            with contextlib.suppress(OSError):
                found += [f"{folder}/{path.name}" for path in sorted(self.path(folder).iterdir()) if OURS.fullmatch(path.name)]
        return found

    def entries(self) -> List[Entry]:
        """All that apt reads, in files that are not ours."""
        return [
            entry
            for path in self._lists()
            if not OURS.fullmatch(Path(path).name)
            for entry in parse(path, self._text(path) or "")
        ]

    def duplicates(self, repositories: Sequence[Mapping[str, Any]]) -> List[Entry]:
        """Where somebody else lists one of ``repositories``. Raises BigironError for one whose stanza lists others besides."""
        mine = {same(each["uri"], suite) for each in repositories for suite in each["suites"]}
        found = [entry for entry in self.entries() if (entry.uri, entry.suite) in mine]
        for entry in found:
            others = sorted({" ".join(each) for each in entry.whole if each not in mine})
            if others:
                raise BigironError(
                    f"lists {entry.uri} {entry.suite}, which bigiron is to set up, together with {', '.join(others)}",
                    where=entry.place,
                    hint="split the entry by hand, so that the one can be disabled without the other",
                )
        return found

    def disable(self, entries: Sequence[Entry]) -> None:
        """Comment the lines out, marked, with a copy of each file as it was in /var/lib/bigiron/apt."""
        for file in sorted({entry.file for entry in entries}):
            lines = (self._text(file) or "").splitlines(True)
            backup = self.path(str(BACKUPS / Path(file).name))
            backup.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_atomic(backup, "".join(lines))
            for first, last in {entry.lines for entry in entries if entry.file == file}:
                lines[first : last + 1] = [MARK + line for line in lines[first : last + 1]]
            self._write(file, "".join(lines))

    def update(self, repository: Mapping[str, Any]) -> None:
        """Fetch the lists of this repository alone, so that no other one's failure is taken for its own. Raises BigironError."""
        name = repository["name"]
        alone = ["-o", f"Dir::Etc::sourcelist={sources_path(name)}", "-o", "Dir::Etc::sourceparts=-"]
        answer = self.apt.wait(
            self.apt.argv(*alone, "-o", "APT::Get::List-Cleanup=0", "-o", "APT::Update::Error-Mode=any", "update")
        )
        if answer.returncode:
            hint = f"check {repository['uri']} and its key; nothing of it was kept"
            raise BigironError(f"repository {name} cannot be read: {reason(answer)}", where=repository["uri"], hint=hint)

    def matches(self, pin: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Raise BigironError for a pin that applies to no version of any package that apt knows, with lists that are ``fresh``."""
        names = self._known(pin["packages"])
        draft = self.path(f"/run/bigiron/pin-{pin['name']}")
        draft.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_atomic(draft, render_pin(pin))
        try:
            only = ["-o", f"Dir::Etc::preferences={draft}", "-o", "Dir::Etc::preferencesparts=-"]
            told = self.runner(["apt-cache", *only, "policy", *names]).stdout if names else ""
        finally:
            draft.unlink()
        versions = re.findall(r"^ (?:\*\*\*|   ) (\S+) (-?\d+)$", told, re.MULTILINE)
        if any(priority == str(pin["priority"]) for _, priority in versions):
            return
        if not fresh:
            self.apt.call("update")
            self.matches(pin, fresh=True)
            return
        there = (
            f"apt has {', '.join(dict.fromkeys(version for version, _ in versions))}"
            if versions
            else "apt knows no such package"
        )
        raise BigironError(
            f"the pin {pin['name']} ({' '.join(pin['packages'])}: {pin['pin']}) matches nothing: {there}",
            where=pin_path(pin["name"]),
            hint="a pin without a match keeps nothing back: correct the version or the names (apt-cache policy NAME)",
        )

    def _known(self, patterns: Sequence[str]) -> List[str]:
        plain = [each for each in patterns if not re.search(r"[*?\[]", each)]
        globs = [each for each in patterns if each not in plain]
        names = self.runner(["apt-cache", "pkgnames"]).stdout.split() if globs else []
        return [*plain, *(name for name in names if any(fnmatch.fnmatchcase(name, each) for each in globs))]

    def _lists(self) -> List[str]:
        found = [f"{ETC}/sources.list"]
        with contextlib.suppress(OSError):
            found += [
                f"{SOURCES}/{path.name}"
                for path in sorted(self.path(SOURCES).iterdir())
                if path.suffix in (".list", ".sources")
            ]
        return found

    def _text(self, path: str) -> Any:
        try:
            return self.path(path).read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return None

    def _write(self, path: str, text: str) -> None:
        self.path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_atomic(self.path(path), text)

    def _has_key(self, path: str, repository: Mapping[str, Any]) -> bool:
        text = self._text(path)
        if text is None or wrong_key(repository, text.encode(errors="surrogateescape")):
            return False
        return not repository.get("key") or text == openpgp.armored(repository["key"].encode())

    def _key(self, repository: Mapping[str, Any]) -> str:
        data = repository["key"].encode() if repository.get("key") else self._fetch(repository["key_url"])
        problem = wrong_key(repository, data)
        if problem:
            hint = "a key that changed must be confirmed with its owner before it is trusted; nothing was written"
            raise BigironError(problem, where=repository.get("key_url") or key_path(repository["name"]), hint=hint)
        return openpgp.armored(data)

    @staticmethod
    def _fetch(url: str) -> bytes:
        import urllib.request  # costs a host that is only looked at more than the look

        try:
            with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as answer:  # noqa: S310 - its content is checked by fingerprint
                data: bytes = answer.read(KEY_LIMIT_BYTES)
                return data
        except (OSError, ValueError) as error:
            raise BigironError(f"the key cannot be fetched: {error}", where=url) from error
