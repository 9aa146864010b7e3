"""A built llama.cpp: which source, options and compiler, from where, and that it is the current release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bigiron.machine.description import Machine
from bigiron.parts import base
from bigiron.parts.part import RELEASE, Facts, Planned, Reason, Resource, Space, Watched
from bigiron.plan import build_options, sources
from bigiron.plan.build_options import Identity
from bigiron.plan.releases import Candidate
from bigiron.units import count, gib

STAGE = RELEASE
PREFIX = "/opt/bigiron"
BUILD_ROOT = "/var/cache/bigiron"
CURRENT = f"{PREFIX}/current"
PACKAGES = ("ccache", "cmake", "g++", "git", "ninja-build")
"""What a build may need; git only to bring the source of a repository."""
_COMPILER = "g++"


def packages(facts: Facts) -> tuple[str, ...]:
    unneeded = () if sources.read(facts.wish).kind == sources.GIT else ("git",)
    return tuple(name for name in PACKAGES if name not in unneeded) if facts.release.built_here else ()


def directories(_wish: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"path": path, "owner": "root", "group": "root", "mode": "0755"} for path in (PREFIX, f"{PREFIX}/releases")]


def watch(_wish: Mapping[str, Any]) -> Watched:
    return {"release": [PREFIX], "link": [CURRENT], "compiler": [_COMPILER], "disk": [PREFIX, BUILD_ROOT]}


def candidate(host: str, wish: Mapping[str, Any], machine: Machine, observed: Mapping[str, Any]) -> Candidate:
    """What this host brings to the choice of a release for its platform."""
    source = sources.read(wish)
    options, baseline = build_options.options(
        machine.arch, machine.cpu.flags, source, web_ui=wish["llama_cpp_web_ui"], extra=wish["llama_cpp_extra_options"]
    )
    compiler = observed.get("compilers", {}).get(_COMPILER, {})
    identity = Identity(source.identity(), options, "", machine.libc, baseline)
    return Candidate(host, identity, _installed(observed), compiler.get("version") or compiler.get("candidate") or "")


def _installed(observed: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """The sound release that ``current`` points at, as (fingerprint, identity)."""
    name = str(observed["paths"].get(CURRENT, {}).get("target", "")).rsplit("/", 1)[-1]
    release = observed["releases"].get(name)
    return (name, release["manifest"].get("identity", {})) if release and release.get("ok") else None


def help_text(facts: Facts) -> str:
    """What the release's own llama-server says it understands; empty while there is no such build to ask."""
    manifest = facts.observed["releases"].get(facts.release.fingerprint, {}).get("manifest", {})
    return str(manifest.get("help") or (facts.release.archive.help if facts.release.archive else ""))


def plan(facts: Facts, _so_far: Planned) -> Planned:
    release, machine = facts.release, facts.machine
    mark, archive, identity = release.fingerprint, release.archive, release.identity.to_json()
    source = sources.read(facts.wish)
    jobs = build_options.jobs(machine.cpu.threads, machine.memory.available_bytes)
    variables = {
        "llama_cpp_prefix": PREFIX,
        "llama_cpp_build_root": BUILD_ROOT,
        "llama_cpp_user": base.USER,
        **(source.found if release.built_here else {}),
        "llama_cpp_options": identity["options"],
        "llama_cpp_targets": list(build_options.TARGETS),
        "llama_cpp_identity": identity,
        "llama_cpp_fingerprint": mark,
        "llama_cpp_jobs": jobs,
        "llama_cpp_archive": archive.archive if archive else "",
        "llama_cpp_archive_sha256": archive.archive_sha256 if archive else "",
        # a folder lets the role name the file, once the compiler is known
        "llama_cpp_fetch_to": f"{facts.release_folder}/{f'{mark}.tar.gz' if mark else ''}" if release.built_here else "",
    }
    resources = (
        Resource("release", mark, "llama_cpp", {"fingerprint": mark}),
        Resource("link", CURRENT, "llama_cpp", {"target": f"releases/{mark}"}),
    )
    return Planned(variables, resources, _reasons(facts, jobs), space=_space(facts))


def _reasons(facts: Facts, jobs: int) -> list[Reason]:
    release, machine = facts.release, facts.machine
    built = f"llama.cpp {sources.read(facts.wish).commit}, {release.identity.compiler or 'compiler unknown'}, {machine.libc}: {release.why}"
    origin = f"{release.fingerprint or '(named once the compiler is installed)'} from {release.build_from}"
    baseline = ", ".join(release.identity.cpu_baseline) or "baseline"
    reasons = [
        Reason("release", origin, built),
        Reason("CPU", baseline, "instruction sets this CPU reports; a CPU without them gets its own build"),
    ]
    if "amx_tile" in machine.cpu.flags:
        why = "llama.cpp pull request #26954: its AMX kernels die of an illegal instruction when built with GCC"
        reasons.append(Reason("AMX", "off", why))
    if release.built_here:
        memory = f"{gib(machine.memory.available_bytes)} available, {gib(build_options.JOB_MEMORY_BYTES)} a job"
        reasons.append(Reason("build jobs", str(jobs), f"{count(machine.cpu.threads, 'thread')}, {memory}"))
    return reasons


def _space(facts: Facts) -> list[Space]:
    needs = []
    if facts.release.built_here and not facts.observed["releases"].get(facts.release.fingerprint, {}).get("ok"):
        needs.append(Space(BUILD_ROOT, "source and build", build_options.BUILD_DISK_BYTES))
    if set(packages(facts)) - set(facts.observed["packages"]):
        needs.append(Space("/usr", "toolchain packages", build_options.TOOLCHAIN_DISK_BYTES))
    return needs


def lock(facts: Facts, variables: Mapping[str, Any]) -> dict[str, Any]:
    pinned = sources.read(facts.wish)
    return {
        "release": {"fingerprint": variables["llama_cpp_fingerprint"], **variables["llama_cpp_identity"]},
        "source": {"url": pinned.url, "commit": pinned.commit},
    }


def remove(_wish: Mapping[str, Any], _models: bool) -> dict[str, Any]:
    return {"llama_cpp_prefix": PREFIX, "llama_cpp_build_root": BUILD_ROOT}
