"""From (machine, observed state, intent, model files) to everything the roles need, for all hosts of a run together.

Hosts are planned together because a release is built once per platform: the same source, options, libc and CPU baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bigiron.errors import BigironError, Refused, UsageError
from bigiron.gguf.facts import ModelFacts
from bigiron.hub.quants import QuantFiles
from bigiron.machine.description import Machine
from bigiron.machine.hardware import from_machine
from bigiron.plan import build_options as build
from bigiron.plan import capabilities
from bigiron.plan.build_options import Identity
from bigiron.plan.choose import ModelPlan, Wish, choose
from bigiron.plan.intent import BUILD_ROOT, CONFIG_DIR, PREFIX, USER, Intent
from bigiron.units import count, gib

RUNTIME_PACKAGES = ("ca-certificates", "libgomp1")
TOOLCHAIN_PACKAGES = ("ccache", "cmake", "g++", "ninja-build")


@dataclass(frozen=True)
class CachedRelease:
    """A packed release on the controller; ``help`` is what its llama-server printed for ``--help``."""

    fingerprint: str
    identity: Mapping[str, Any]
    archive: str
    archive_sha256: str
    help: str = ""


@dataclass(frozen=True)
class Reason:
    """One decision for the person: ``topic`` decided as ``decision`` because of ``why``."""

    topic: str
    decision: str
    why: str


@dataclass(frozen=True)
class HostFacts:
    """What the plan starts from for one host; ``observed`` is the document of docs/architecture.md.

    ``quants`` are the candidates by name (one, when a quant was asked for) and ``facts`` what their headers say. ``bandwidth``
    is the measured read rate of its memory in bytes per second, None while nobody measured it.
    """

    name: str
    intent: Intent
    machine: Machine
    observed: Mapping[str, Any]
    quants: Mapping[str, QuantFiles]
    facts: Mapping[str, ModelFacts]
    bandwidth: float | None = None


@dataclass(frozen=True)
class HostPlan:
    """Everything wanted on one host: ``variables`` are the complete role variables.

    ``build_from`` says where the release comes from: ``"here"`` (compiled on this host), ``"installed"``, ``"archive"`` (packed on the
    controller) or another host's name. ``arguments_proved`` is False until a build can be asked what it understands.
    """

    host: str
    variables: dict[str, Any]
    build_from: str
    model: ModelPlan
    files: QuantFiles
    arguments_proved: bool
    reasons: list[Reason] = field(default_factory=list)

    @property
    def fingerprint(self) -> str:
        return str(self.variables["llama_cpp_fingerprint"])

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "build_from": self.build_from,
            "model": self.model.to_json(),
            "reasons": [vars(reason) for reason in self.reasons],
            "variables": self.variables,
        }


@dataclass(frozen=True)
class _Choice:
    """Which release a host gets: its identity with the compiler filled in, and where it comes from."""

    identity: Identity
    build_from: str
    archive: CachedRelease | None
    why: str


def plan_hosts(facts: Sequence[HostFacts], cached: Sequence[CachedRelease]) -> dict[str, HostPlan | BigironError]:
    """One plan per host, or why there is none for it; a host without a plan stops no other.

    Raises Refused when one of them can never be a llama.cpp host (`check_machine`).
    """
    for fact in facts:
        check_machine(fact.name, fact.machine)
    plans: dict[str, HostPlan | BigironError] = {}

    for fact in facts:  # a host that cannot be planned must not be the one that builds for the others
        try:
            _model(fact, None)
        except BigironError as error:
            plans[fact.name] = _of_host(error, fact.name)
    sound = [fact for fact in facts if fact.name not in plans]
    choices = _choose_releases(sound, {fact.name: _identity(fact) for fact in sound}, cached)
    for fact in sound:
        try:
            plans[fact.name] = _plan(fact, choices[fact.name])
        except BigironError as error:
            plans[fact.name] = _of_host(error, fact.name)
    return plans


def _of_host(error: BigironError, host: str) -> BigironError:
    error.where = f"{host}: {error.where}" if error.where else host
    return error


def _model(fact: HostFacts, built: capabilities.Capabilities | None) -> ModelPlan:
    # a backend that leaves GPUs alone need not know them
    seen = replace(fact.machine, gpus=()) if fact.intent.backend == "cpu" else fact.machine
    return choose(from_machine(seen, bandwidth=fact.bandwidth), fact.facts, Wish.of(fact.intent), build=built)


def check_machine(host: str, machine: Machine) -> None:
    """Refuse, before anything is touched, a machine that these roles cannot serve."""
    if machine.init != "systemd":
        raise Refused(
            f"PID 1 is {machine.init or 'unknown'}, not systemd: llama-server needs a unit to run under",
            where=host,
            hint="boot the host with systemd (a container needs its own init), or choose another host",
        )
    if not machine.os.debian_like:
        raise Refused(
            f"{machine.os.pretty or machine.os.id or 'this system'} is not Debian-like",
            where=host,
            hint="this version installs packages with apt only; use Debian or Ubuntu on this host",
        )


def _identity(fact: HostFacts) -> Identity:
    intent, machine = fact.intent, fact.machine
    options, baseline = build.options(
        machine.arch, machine.cpu.flags, intent.source, web_ui=intent.web_ui, extra=intent.extra_options
    )
    return Identity(intent.source.sha256, options, "", machine.libc, baseline)


def _same_but_compiler(identity: Identity, other: Mapping[str, Any]) -> bool:
    return {**identity.to_json(), "compiler": ""} == {**other, "compiler": ""}


def _installed(fact: HostFacts) -> tuple[str, Mapping[str, Any]] | None:
    """The sound release that ``current`` points at, as (fingerprint, identity)."""
    link = fact.observed.get("paths", {}).get(f"{PREFIX}/current", {})
    name = str(link.get("target", "")).rsplit("/", 1)[-1]
    release = fact.observed.get("releases", {}).get(name)
    if release and release.get("ok"):
        return name, release["manifest"].get("identity", {})
    return None


def _choose_releases(
    facts: Sequence[HostFacts], wanted: Mapping[str, Identity], cached: Sequence[CachedRelease]
) -> dict[str, _Choice]:
    """A release per host, the same one for every host of a platform.

    In this order: what runs on one of them already (it is proved), what lies packed on the controller, else the first host of the platform
    builds it and the others wait for that build.
    """
    choices: dict[str, _Choice] = {}
    platforms: dict[str, list[HostFacts]] = {}
    for fact in facts:
        platforms.setdefault(build.fingerprint(wanted[fact.name].to_json()), []).append(fact)
    for members in platforms.values():
        identity = wanted[members[0].name]
        holders = {
            fact.name: found for fact in members if (found := _installed(fact)) and _same_but_compiler(identity, found[1])
        }
        packed = [release for release in cached if _same_but_compiler(identity, release.identity)]
        running = {found[0] for found in holders.values()}
        packed.sort(key=lambda release: (release.fingerprint not in running, release.fingerprint))
        if packed:
            archive = packed[0]
            identity = replace(identity, compiler=str(archive.identity["compiler"]))
            for fact in members:
                here = holders.get(fact.name, ("",))[0] == archive.fingerprint
                choices[fact.name] = _Choice(
                    identity,
                    "installed" if here else "archive",
                    archive,
                    "runs here already" if here else "built earlier for this platform and kept on the controller",
                )
            continue
        if holders:
            owner, (_, proved) = min(holders.items(), key=lambda item: (item[1][0], item[0]))
            identity, why = replace(identity, compiler=str(proved["compiler"])), "runs here already"
        else:
            builder = next((fact for fact in members if _compiler(fact)), members[0])
            owner, why = builder.name, "the first of its platform builds, the others install its release"
            identity = replace(identity, compiler=_compiler(builder))
        mark = build.fingerprint(identity.to_json())
        for fact in members:
            if fact.name in holders and holders[fact.name][0] == mark:
                choices[fact.name] = _Choice(identity, "installed", None, "runs here already")
            elif fact.name == owner:
                choices[fact.name] = _Choice(identity, "here", None, why)
            else:
                choices[fact.name] = _Choice(identity, owner, None, f"the same platform as {owner}: no second compile")
    return choices


def _compiler(fact: HostFacts) -> str:
    """``"g++ 12.2.0"``: installed, or what the host's package index would install; empty when neither is known."""
    return str(fact.observed.get("compiler") or fact.observed.get("compiler_candidate") or "")


def _help_of(fact: HostFacts, mark: str, choice: _Choice) -> str:
    """What the release's own llama-server says it understands; empty while there is no such build to ask."""
    manifest = fact.observed.get("releases", {}).get(mark, {}).get("manifest", {})
    return str(manifest.get("help") or (choice.archive.help if choice.archive else ""))


def _argv(intent: Intent, model: ModelPlan, entry: str) -> list[str]:
    return [
        f"{PREFIX}/current/bin/llama-server",
        "--model", f"{intent.model.directory}/{entry}",
        "--alias", f"{intent.model.repo.split('/')[-1]}:{model.quant}",
        "--host", intent.listen,
        "--port", str(intent.port),
        *model.arguments,
        "--api-key-file", f"/run/credentials/llama-server-{intent.service}.service/api-key",
        "--metrics",
        "--offline",
        *([] if intent.web_ui else ["--no-ui"]),
        *intent.extra_args,
    ]  # fmt: skip


def _plan(fact: HostFacts, choice: _Choice) -> HostPlan:
    intent, machine = fact.intent, fact.machine
    identity = choice.identity.to_json()
    mark = build.fingerprint(identity) if choice.identity.compiler else ""
    builds = choice.build_from == "here"
    jobs = build.jobs(machine.cpu.threads, machine.memory.available_bytes)
    packages = sorted({*RUNTIME_PACKAGES, *(TOOLCHAIN_PACKAGES if builds else ()), *intent.extra_packages})
    help_text = _help_of(fact, mark, choice)
    model = _model(fact, capabilities.parse(help_text) if help_text else None)
    files = fact.quants[model.quant]
    argv = _argv(intent, model, files.entry)
    if help_text and (wrong := capabilities.unsupported(argv, help_text)):
        raise UsageError("; ".join(wrong), where="llama-server", hint="correct llama_server_extra_args")
    variables: dict[str, Any] = {
        "base_packages": packages,
        "base_user": USER,
        "base_directories": _directories(intent),
        "base_files": [_file(entry, fact.observed) for entry in intent.files],
        "llama_cpp_prefix": PREFIX,
        "llama_cpp_build_root": BUILD_ROOT,
        "llama_cpp_options": identity["options"],
        "llama_cpp_targets": list(build.TARGETS),
        "llama_cpp_identity": identity,
        "llama_cpp_fingerprint": mark,
        "llama_cpp_jobs": jobs,
        "llama_cpp_archive": choice.archive.archive if choice.archive else "",
        "llama_cpp_archive_sha256": choice.archive.archive_sha256 if choice.archive else "",
        "llama_cpp_fetch_to": "",
        "llama_cpp_user": USER,
        "model_files": [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in files.files],
        "model_entry": files.entry,
        "model_repo": intent.model.repo,
        "model_revision": intent.model.revision,
        "model_quant": model.quant,
        "model_root": intent.model.root,
        "llama_server_service": intent.service,
        "llama_server_host": intent.listen,
        "llama_server_port": intent.port,
        "llama_server_argv": argv,
        "llama_server_environment": {"HOME": "/nonexistent", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        "llama_server_user": USER,
        "llama_server_prefix": PREFIX,
        "llama_server_config_dir": CONFIG_DIR,
        "llama_server_model_root": intent.model.root,
        "llama_server_weight_bytes": files.total_bytes,
        "llama_server_start_timeout_s": model.start_timeout_s,
        "llama_server_memory_max_bytes": 0,
        "llama_server_lock_memory": any("mlock" in word for word in (*model.arguments, *intent.extra_args)),
    }
    reasons = [
        Reason(
            "release",
            f"{mark or '(named once the compiler is installed)'} from {choice.build_from}",
            f"llama.cpp {intent.source.commit}, {choice.identity.compiler or 'compiler unknown'}, {machine.libc}: {choice.why}",
        ),
        Reason("CPU", ", ".join(choice.identity.cpu_baseline) or "baseline", "instruction sets this CPU reports; a CPU without them gets its own build"),
        *(
            [Reason("AMX", "off", "llama.cpp pull request #26954: its AMX kernels die of an illegal instruction when built with GCC")]
            if "amx_tile" in machine.cpu.flags
            else []
        ),
        Reason(
            "model",
            f"{model.quant}, {count(len(files.files), 'file')}, {gib(files.total_bytes)}",
            f"{intent.model.repo} at {intent.model.revision[:12]}",
        ),
        Reason("listen", f"{intent.listen}:{intent.port}", "with an API key that only root and the unit can read"),
    ]  # fmt: skip
    if builds:
        reasons.append(
            Reason(
                "build jobs",
                str(jobs),
                f"{count(machine.cpu.threads, 'thread')}, {gib(machine.memory.available_bytes)} available, {gib(build.JOB_MEMORY_BYTES)} a job",
            )
        )
    return HostPlan(fact.name, variables, choice.build_from, model, files, bool(help_text), reasons)


def _directories(intent: Intent) -> list[dict[str, Any]]:
    modes = {
        PREFIX: "0755",
        f"{PREFIX}/releases": "0755",
        CONFIG_DIR: "0755",
        f"{CONFIG_DIR}/credentials": "0700",
        intent.model.root: "0755",
    }
    shared = {intent.model.root}
    return [
        {"path": path, "owner": "root", "group": "root", "mode": mode, "keep": path in shared} for path, mode in modes.items()
    ]


def _file(entry: Mapping[str, Any], observed: Mapping[str, Any]) -> dict[str, Any]:
    """A plain file with the mode that it has or gets when the inventory gives none, as role base does it."""
    return {**entry, "mode": entry.get("mode") or observed.get("paths", {}).get(entry["path"], {}).get("mode") or "0644"}
