"""The releases that a lab has: packed on the controller and on its hosts, who uses them, which may go, and why one is not the planned one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bigiron.errors import BigironError, Refused, UsageError
from bigiron.fleet import lock, survey
from bigiron.fleet.inventory import Target
from bigiron.fleet.survey import Look, Survey
from bigiron.parts import llama_cpp, llama_server
from bigiron.paths import cache_dir
from bigiron.plan import releases

KEPT = 3
"""How many of the newest packed releases `prune` keeps besides those that something names."""
_LEVELS = ("avx512_bf16", "avx512f", "avx2", "avx", "sse4_2")


@dataclass
class Build:
    """One release. ``size_bytes`` is that of the packed file, 0 where it is not packed; ``used_by`` says ``lab01 (current)`` and so on."""

    fingerprint: str
    identity: Mapping[str, Any]
    size_bytes: int = 0
    made: float = 0.0
    used_by: list[str] = field(default_factory=list)

    @property
    def options(self) -> Mapping[str, str]:
        options: Mapping[str, str] = self.identity.get("options") or {}
        return options

    @property
    def build(self) -> str:
        commit, number = self.options.get("LLAMA_BUILD_COMMIT", "")[:12], self.options.get("LLAMA_BUILD_NUMBER", "")
        return commit if commit == f"b{number}" else f"{commit} {number}".strip()

    @property
    def platform(self) -> str:
        baseline = set(self.identity.get("cpu_baseline") or ())
        level = next((name for name in _LEVELS if name in baseline), "any CPU")
        return ", ".join(filter(None, (str(self.identity.get("libc") or ""), str(self.identity.get("compiler") or ""), level)))

    @property
    def backends(self) -> str:
        names = ("CUDA", "HIP", "VULKAN", "METAL", "SYCL", "RPC")
        return " + ".join(["cpu", *(name.lower() for name in names if self.options.get(f"GGML_{name}") == "ON")])

    def to_json(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint, "build": self.build, "platform": self.platform, "backends": self.backends,
            "packed": bool(self.size_bytes), "size_bytes": self.size_bytes, "used_by": self.used_by, "identity": dict(self.identity),
        }  # fmt: skip


def known(targets: Sequence[Target], inventory: str) -> tuple[list[Build], dict[str, BigironError]]:
    """All releases, the newest packed one first, and the hosts that could not be asked.

    Those of ``targets`` are asked; of all others the locks say what they run, in every inventory of the project.
    """
    found = {
        one.fingerprint: Build(
            one.fingerprint, one.identity, Path(one.archive).stat().st_size, Path(one.archive).stat().st_mtime
        )
        for one in survey.cached_releases()
    }
    locks = {path.resolve(): content for path, content in {**lock.read_all(), **lock.read_all(inventory)}.items()}
    for path, content in locks.items():
        mark = (content.get("release") or {}).get("fingerprint")
        if mark:
            identity = {key: value for key, value in content["release"].items() if key != "fingerprint"}
            found.setdefault(mark, Build(mark, identity)).used_by.append(f"{path.stem} (lock)")
    seen = survey.look(targets) if targets else {}
    for name, one in seen.items():
        if isinstance(one, Look):
            _note(found, name, one)
    errors = {name: one for name, one in seen.items() if isinstance(one, BigironError)}
    return sorted(found.values(), key=lambda one: (-one.made, one.fingerprint)), errors


def _note(found: dict[str, Build], host: str, one: Look) -> None:
    """What ``host`` has, and what it uses it for."""
    current = str(one.observed["paths"].get(llama_cpp.CURRENT, {}).get("target", "")).rsplit("/", 1)[-1]
    back = (one.observed["rollbacks"].get(llama_server.rollback_path(one.wish)) or {}).get("kept") or {}
    for mark, release in one.observed["releases"].items():
        use = "current" if mark == current else "way back" if mark == back.get("release") else "kept"
        words = use if release.get("ok") else f"{use}, damaged"
        build = found.setdefault(mark, Build(mark, release["manifest"].get("identity") or {}))
        build.used_by.append(f"{host} ({words})")


def prune(targets: Sequence[Target], inventory: str, keep: int, *, check: bool) -> tuple[list[Build], list[Build]]:
    """Remove packed releases that no lock and no host names, but for the ``keep`` newest of them: ``(gone, kept)``.

    What is installed on hosts is never touched. With ``check`` nothing is removed. Raises UsageError for a ``keep`` below 0, Refused when a host
    cannot be asked that has no lock either: what it runs is not known. A lab host that is down has nothing any more, and is not asked.
    """
    if keep < 0:
        raise UsageError(f"{keep} releases cannot be kept", where="--keep", hint="0 keeps only those that something names")
    builds, errors = known([target for target in targets if not target.down], inventory)
    unknown = [name for name in errors if not lock.path_for(inventory, name).exists()]
    if unknown:
        what = f"{', '.join(unknown)} cannot be asked and has no lock, so what it runs is not known; nothing was removed"
        raise Refused(what, hint=f"bring it back, or leave it out: --host 'all,!{unknown[0]}'")
    packed = [one for one in builds if one.size_bytes]
    gone = [one for one in packed if not one.used_by][keep:]
    if not check:
        for one in gone:
            for suffix in (".json", ".tar.gz"):  # the description first: without it nobody takes the rest for a release
                (cache_dir("releases") / f"{one.fingerprint}{suffix}").unlink(missing_ok=True)
    return gone, [one for one in packed if one not in gone]


@dataclass(frozen=True)
class Likeness:
    """A release that is there, and how it differs from the planned one; nothing differs when it is that one."""

    fingerprint: str
    where: tuple[str, ...]
    differences: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint, "where": list(self.where), "differences": list(self.differences)}


def explain(one: Survey, wanted: str = "") -> list[Likeness]:
    """Every release on the host and on the controller against the planned one, the most alike first; or only the one that ``wanted`` begins.

    Raises UsageError when there is no such release, or more than one.
    """
    planned = one.plan.release.identity.to_json()
    there: dict[str, tuple[list[str], Mapping[str, Any]]] = {}
    current = str(one.observed["paths"].get(llama_cpp.CURRENT, {}).get("target", "")).rsplit("/", 1)[-1]
    for mark, release in one.observed["releases"].items():
        where = f"{one.name} (current)" if mark == current else one.name
        there[mark] = ([where], release["manifest"].get("identity") or {})
    for cached in survey.cached_releases():
        there.setdefault(cached.fingerprint, ([], cached.identity))[0].append("controller")
    named = [mark for mark in there if mark.startswith(wanted)]
    if wanted and len(named) != 1:
        near = difflib.get_close_matches(wanted, there, n=4, cutoff=0.3) or sorted(there)
        what = (
            f"{len(named)} releases begin with {wanted!r}"
            if named
            else f"there is no release {wanted!r} on {one.name} or on the controller"
        )
        raise UsageError(
            what, where="--with", hint=f"near it: {', '.join(named or near)}" if there else "./inv builds.list shows all"
        )
    found = [
        Likeness(mark, tuple(where), tuple(releases.unlike(planned, identity)))
        for mark, (where, identity) in there.items()
        if mark in named
    ]
    return sorted(found, key=lambda each: (len(each.differences), each.fingerprint))


def help_of(mark: str) -> str:
    """What the llama-server of a packed release prints for ``--help``; empty when that is not known."""
    return next((one.help for one in survey.cached_releases() if one.fingerprint == mark), "")


def help_from_source(source: Mapping[str, str]) -> str:
    """The same, of any packed release built from this source (`bigiron.plan.sources.Source.identity`)."""
    fitting = (
        one for one in survey.cached_releases() if all(one.identity.get(name) == value for name, value in source.items())
    )
    return next((one.help for one in fitting if one.help), "")
