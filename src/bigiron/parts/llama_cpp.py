"""A built llama.cpp: which source, options and compiler, from where, and that it is the current release."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from bigiron.errors import Refused
from bigiron.machine import backends
from bigiron.machine.backends import Choice
from bigiron.machine.description import Machine
from bigiron.onhost import buildlog
from bigiron.onhost.budget import JOB_MEMORY_BYTES
from bigiron.parts import base
from bigiron.parts.part import RELEASE, Facts, Planned, Reason, Resource, Space, Watched
from bigiron.plan import build_options, sources
from bigiron.plan.build_options import Access, Identity
from bigiron.plan.releases import Candidate
from bigiron.units import MIB, count, gib

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


def backend(wish: Mapping[str, Any], machine: Machine, built: Collection[str]) -> Choice:
    """What computes on this host: as the person says, else by its GPUs; ``built`` are the backends that some part has the toolchain of."""
    software = wish["llama_cpp_software_gpu_mib"] * MIB
    return backends.choose(machine, wish["llama_cpp_backend"], wish["llama_cpp_more_backends"], software, {"cpu", *built})


def access(facts: Facts) -> Access:
    """What processes of the release need to reach the GPUs of this host; nothing where the model runs on the CPU alone."""
    main = facts.toolchain(facts.backend.main.name)
    return main.access if main and facts.backend.gpus else Access()


def gpu(facts: Facts) -> dict[str, Any]:
    """What the installed release must find (the role's ``llama_cpp_gpu``)."""
    main, needs = facts.backend.main, access(facts)
    if not facts.backend.gpus:
        return {}
    return {
        "device": main.device,
        "library": main.library,
        "count": sum(1 for each in facts.served.hardware.gpus if each.device.startswith(main.device)),
        "nodes": [f"/dev/{each}" for each in needs.devices],
        "modules": list(needs.modules),
        "groups": list(needs.groups),
        "environment": dict(needs.environment),
    }


def candidate(facts: Facts) -> Candidate:
    """What this host brings to the choice of a release for its platform."""
    wish, machine = facts.wish, facts.machine
    source = sources.read(wish)
    options, baseline = build_options.options(
        machine.arch,
        machine.cpu.flags,
        source,
        web_ui=wish["llama_cpp_web_ui"],
        extra=wish["llama_cpp_extra_options"],
        toolchains=facts.toolchains,
        all_cpus=wish["llama_cpp_all_cpus"],
        cache_types=_cache_types(facts),
    )
    compiler = facts.observed.get("compilers", {}).get(_COMPILER, {})
    versions = {each.backend: each.version for each in facts.toolchains}
    drivers = {name: version for each in facts.toolchains for name, version in each.drivers.items()}
    alone = facts.host if buildlog.native(options) else ""
    identity = Identity(source.identity(), options, "", machine.libc, baseline, versions, drivers, alone)
    loaded = {name: str(each.get("version") or "") for name, each in facts.observed.get("boot", {}).items()}
    widens = () if alone else tuple(name for each in facts.toolchains for name in each.widens)
    known = compiler.get("version") or compiler.get("candidate") or ""
    return Candidate(facts.host, identity, _installed(facts.observed), known, loaded, widens)


def _cache_types(facts: Facts) -> tuple[str, str]:
    return facts.wish["llama_server_cache_type_k"], facts.wish["llama_server_cache_type_v"]


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
    jobs = build_options.jobs(machine.cpu.threads, _memory_bytes(machine))
    variables = {
        "llama_cpp_prefix": PREFIX,
        "llama_cpp_build_root": BUILD_ROOT,
        "llama_cpp_user": base.USER,
        **(source.found if release.built_here else {}),
        "llama_cpp_options": identity["options"],
        "llama_cpp_build_environment": {name: value for each in facts.toolchains for name, value in each.environment.items()},
        "llama_cpp_library_path": [folder for each in facts.toolchains for folder in each.library_path],
        "llama_cpp_compilers": [language for each in facts.toolchains for language in each.compilers],
        "llama_cpp_gpu": gpu(facts),
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
    refusals, findings = _no_gpu(facts)
    refusals += _unbuildable(facts)
    gap = (
        build_options.attention_gap(_cache_types(facts))
        if facts.backend.main.name in ("cuda", "hip") and facts.backend.gpus
        else ""
    )
    if gap:
        hint = f"set llama_server_cache_type_k and _v to one of {', '.join(build_options.FA_TYPES)}"
        findings.append(f"{gap}; {hint}")
    return Planned(variables, resources, _reasons(facts, jobs), refusals, findings, space=_space(facts))


def _memory_bytes(machine: Machine) -> int:
    """What a build may take: what is free, and never more than the control group allows."""
    return min(machine.memory.available_bytes, machine.memory.usable_bytes)


def _unbuildable(facts: Facts) -> list[Refused]:
    """What the options ask for and must not be built for this host."""
    found = []
    options = facts.release.identity.options
    if unclear := [name for name in buildlog.native(options) if name.endswith(buildlog.GPU_ARCHITECTURES)]:
        what = f"{', '.join(unclear)}: native is whatever GPU the builder has, or none"
        found.append(Refused(what, hint="name the architectures, such as 89;120a or gfx1100; nothing was changed"))
    found += [Refused(what, hint=hint) for what, hint in build_options.wrong_architectures(options)]
    if facts.wish["llama_cpp_all_cpus"] and facts.machine.arch not in build_options.X86:
        what = f"llama_cpp_all_cpus is for x86-64, and this host is {facts.machine.arch}"
        found.append(Refused(what, hint="set llama_cpp_all_cpus: false for this host; nothing was changed"))
    if facts.wish["llama_cpp_all_cpus"] and "amx_tile" in facts.machine.cpu.flags and "g++" in facts.release.identity.compiler:
        what = (
            "llama_cpp_all_cpus builds a variant with AMX, which this CPU would take, and which dies of an illegal instruction when "
            "built with GCC (llama.cpp pull request #26954)"
        )
        found.append(Refused(what, hint="set llama_cpp_all_cpus: false for this host: it then gets its own build without AMX"))
    return found


def _no_gpu(facts: Facts) -> tuple[list[Refused], list[str]]:
    """A GPU backend that cannot be built, or that finds no GPU: refused; the latter unless the person says that the CPU will do."""
    main = facts.backend.main
    if missing := [each.name for each in facts.backend.all if facts.toolchain(each.name) is None]:
        what = f"this version of bigiron has no toolchain for the backend {' and '.join(missing)}"
        return [Refused(what, hint="set llama_cpp_backend: cpu, and leave llama_cpp_more_backends empty")], []
    if main == backends.CPU or facts.backend.gpus:
        return [], []
    what = f"llama_cpp_backend is {main.name}, and this host has no GPU for it"
    if not facts.wish["llama_cpp_require_gpu"]:
        return [], [f"{what}: the model runs on the CPU (llama_cpp_require_gpu is false)"]
    return [Refused(what, hint="set llama_cpp_backend: auto, or llama_cpp_require_gpu: false to run on the CPU")], []


def _reasons(facts: Facts, jobs: int) -> list[Reason]:
    release, machine = facts.release, facts.machine
    built = f"llama.cpp {sources.read(facts.wish).commit}, {release.identity.compiler or 'compiler unknown'}, {machine.libc}: {release.why}"
    origin = f"{release.fingerprint or '(named once the compiler is installed)'} from {release.build_from}"
    baseline = ", ".join(release.identity.cpu_baseline) or "baseline"
    why_cpu = "instruction sets this CPU reports; a CPU without them gets its own build"
    if release.identity.only_for:
        native = ", ".join(buildlog.native(release.identity.options))
        why_cpu = f"{native} builds for this machine alone: no other host gets this release, and none of theirs is taken"
    if facts.wish["llama_cpp_all_cpus"]:
        baseline, why_cpu = (
            "every x86-64 generation",
            f"as asked (llama_cpp_all_cpus): one release for all; {build_options.ALL_VARIANTS_COST}",
        )
    names = " + ".join(each.name for each in (facts.backend.main, *facts.backend.more))
    reasons = [
        Reason("backend", names, facts.backend.why),
        Reason("release", origin, built),
        Reason("CPU", baseline, why_cpu),
    ]
    if "amx_tile" in machine.cpu.flags:
        why = "llama.cpp pull request #26954: its AMX kernels die of an illegal instruction when built with GCC"
        reasons.append(Reason("AMX", "off", why))
    if release.built_here:
        memory = f"{gib(_memory_bytes(machine))} available, {gib(JOB_MEMORY_BYTES)} a job"
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
