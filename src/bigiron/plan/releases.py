"""Which release each host gets: built once per platform, for all hosts of a run together."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from bigiron.onhost.fit import old_drivers, unfit
from bigiron.plan import build_options
from bigiron.plan.build_options import Identity

HERE, INSTALLED, ARCHIVE = "here", "installed", "archive"
Architectures = dict[str, frozenset[str]]
"""By option of the build (CMAKE_CUDA_ARCHITECTURES)."""


@dataclass(frozen=True)
class CachedRelease:
    """A packed release on the controller; ``help`` is what its llama-server printed for ``--help``."""

    fingerprint: str
    identity: Mapping[str, Any]
    archive: str
    archive_sha256: str
    help: str = ""


@dataclass(frozen=True)
class Candidate:
    """One host: the release it wants (compiler left open), the sound one it runs as (fingerprint, identity), its compiler ("" unknown).

    ``drivers`` are the versions of the kernel drivers that are loaded there, by module; ``widens`` are options of the build whose list of
    GPU architectures may be longer than this host needs.
    """

    host: str
    identity: Identity
    installed: tuple[str, Mapping[str, Any]] | None
    compiler: str
    drivers: Mapping[str, str] = field(default_factory=dict)
    widens: tuple[str, ...] = ()


@dataclass(frozen=True)
class Release:
    """The release of one host.

    ``build_from`` is ``here`` (compiled on this host), ``installed``, ``archive`` (packed on the controller) or the name of the host that builds it.
    """

    identity: Identity
    build_from: str
    archive: CachedRelease | None
    why: str

    @cached_property
    def fingerprint(self) -> str:
        """Its name; empty while a compiler is not known."""
        return build_options.fingerprint(self.identity.to_json()) if self.identity.complete else ""

    @property
    def built_here(self) -> bool:
        return self.build_from == HERE


def choose(candidates: Sequence[Candidate], cached: Sequence[CachedRelease]) -> dict[str, Release]:
    """A release per host, the same one for every host of a platform.

    In this order: what runs on one of them already (it is proved), what lies packed on the controller, else the first host of the platform
    builds it and the others wait for that build. Hosts that differ only in their GPUs are one platform: it is built for all their architectures,
    and a host stays with what it runs when its own are among those.
    """
    platforms: dict[str, list[Candidate]] = {}
    for candidate in _widened(candidates, cached):
        platforms.setdefault(build_options.fingerprint(_unversioned(candidate.identity.to_json())), []).append(candidate)
    choices: dict[str, Release] = {}
    for members in platforms.values():
        choices.update(_of_platform(members, cached))
    return choices


def _widened(candidates: Sequence[Candidate], cached: Sequence[CachedRelease]) -> list[Candidate]:
    """The candidates, with the GPU architectures of the release that each would get."""
    kin = {one.host: _but_for(one, one.identity.to_json()) for one in candidates if one.widens}
    together: dict[str, Architectures] = {}
    for one in candidates:
        for name, listed in _architectures(one, one.identity.to_json()).items():
            all_of = together.setdefault(kin[one.host], {})
            all_of[name] = all_of.get(name, frozenset()) | listed
    return [_wide(one, kin[one.host], together[kin[one.host]], cached) if one.widens else one for one in candidates]


def _wide(one: Candidate, kin: str, together: Architectures, cached: Sequence[CachedRelease]) -> Candidate:
    own = [(_architectures(one, one.identity.to_json()), one.installed[1])] if one.installed else []
    packed = [(together, release.identity) for release in sorted(cached, key=lambda each: each.fingerprint)]
    options = {name: ";".join(sorted(listed, key=_by_number)) for name, listed in together.items()}
    for wanted, other in (*own, *packed):
        there = _architectures(one, other)
        if _but_for(one, other) == kin and all(listed <= there.get(name, set()) for name, listed in wanted.items()):
            options = {name: str(other["options"][name]) for name in wanted}
            break
    return replace(one, identity=replace(one.identity, options={**one.identity.options, **options}))


def _but_for(one: Candidate, identity: Mapping[str, Any]) -> str:
    """What hosts of one platform have in common: all but versions and the GPU architectures that may be more."""
    options = {name: value for name, value in identity.get("options", {}).items() if name not in one.widens}
    return build_options.fingerprint({**_unversioned(identity), "options": options, "widens": one.widens})


def _architectures(one: Candidate, identity: Mapping[str, Any]) -> Architectures:
    options = identity.get("options", {})
    return {name: frozenset(str(options[name]).split(";")) for name in one.widens if options.get(name)}


def _by_number(architecture: str) -> tuple[int, str]:
    """CUDA's 89-real before 120-real; names such as gfx1100 in their alphabet."""
    return int("".join(itertools.takewhile(str.isdigit, architecture)) or 0), architecture


def _of_platform(members: Sequence[Candidate], cached: Sequence[CachedRelease]) -> dict[str, Release]:
    identity = members[0].identity
    holders = {one.host: one.installed for one in members if one.installed and _same_but_compiler(identity, one.installed[1])}
    packed = [release for release in cached if _same_but_compiler(identity, release.identity)]
    packed = [release for release in packed if not any(old_drivers(release.identity, one.drivers) for one in members)]
    running = {found[0] for found in holders.values()}
    packed.sort(key=lambda release: (release.fingerprint not in running, release.fingerprint))
    if packed:
        archive = packed[0]
        identity = _of(identity, archive.identity)
        kept = Release(identity, ARCHIVE, archive, "built earlier for this platform and kept on the controller")
        here = Release(identity, INSTALLED, archive, "runs here already")
        return {one.host: here if holders.get(one.host, ("",))[0] == archive.fingerprint else kept for one in members}
    if holders:
        owner, (_, proved) = min(holders.items(), key=lambda item: (item[1][0], item[0]))
        identity, why = _of(identity, proved), "runs here already"
    else:
        builder = max(members, key=lambda one: bool(one.compiler) + all(one.identity.toolchains.values()))
        owner, why = builder.host, f"the first of its platform builds, the others install its release{_left(identity, cached)}"
        identity = replace(builder.identity, compiler=builder.compiler)
    mark = build_options.fingerprint(identity.to_json())
    choices = {}
    for one in members:
        if holders.get(one.host, ("",))[0] == mark:
            choices[one.host] = Release(identity, INSTALLED, None, "runs here already")
        elif one.host == owner:
            choices[one.host] = Release(identity, HERE, None, why)
        else:
            choices[one.host] = Release(identity, owner, None, f"the same platform as {owner}: no second compile")
    return choices


def _same_but_compiler(identity: Identity, other: Mapping[str, Any]) -> bool:
    """The same but for the versions of what compiled it."""
    return _unversioned(identity.to_json()) == _unversioned(other)


def _unversioned(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Without what follows from the versions of what compiled it."""
    kept = {name: value for name, value in identity.items() if name != "drivers"}
    return {**kept, "compiler": "", "toolchains": sorted(identity.get("toolchains", {}))}


def _of(identity: Identity, other: Mapping[str, Any]) -> Identity:
    """``identity`` with the versions of ``other``."""
    toolchains, drivers = dict(other.get("toolchains", {})), dict(other.get("drivers", {}))
    return replace(identity, compiler=str(other["compiler"]), toolchains=toolchains, drivers=drivers)


def _left(identity: Identity, cached: Sequence[CachedRelease]) -> str:
    """Why a packed release of the same source and options, made on another system, is of no use here; empty when there is none."""
    for one in cached:
        if _same_but_compiler(identity, {**one.identity, "libc": identity.libc}):
            for problem in unfit(one.identity, identity.cpu_baseline, identity.libc):
                return f"; {one.fingerprint} is left out: {problem}"
    return ""


def unlike(planned: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Why two identities have two fingerprints: one sentence for each thing that differs, none when they are the same."""
    told = []
    for name, word in (
        ("source_sha256", "source SHA-256"),
        ("source_commit", "source commit"),
        ("compiler", "compiler"),
        ("libc", "C library"),
    ):
        if planned.get(name) != there.get(name):
            told.append(f"{word}: {there.get(name) or 'none'} there, {planned.get(name) or 'not known yet'} planned")
    for group, word in (("options", "option"), ("toolchains", "toolchain"), ("drivers", "oldest driver")):
        mine, theirs = planned.get(group) or {}, there.get(group) or {}
        told += [
            f"{word} {name}: {theirs.get(name, 'not set')} there, {mine.get(name, 'not set')} planned"
            for name in sorted({*mine, *theirs})
            if mine.get(name) != theirs.get(name)
        ]
    mine, theirs = set(planned.get("cpu_baseline") or ()), set(there.get("cpu_baseline") or ())
    if theirs - mine:
        told.append(f"CPU: it needs {', '.join(sorted(theirs - mine))}, which the plan does not")
    if mine - theirs:
        told.append(f"CPU: it makes no use of {', '.join(sorted(mine - theirs))}")
    known = {"source_sha256", "source_commit", "compiler", "libc", "options", "toolchains", "drivers", "cpu_baseline"}
    told += [
        f"{name}: {there.get(name)} there, {planned.get(name)} planned"
        for name in sorted({*planned, *there} - known)
        if planned.get(name) != there.get(name)
    ]
    return told
