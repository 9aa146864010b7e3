"""From facts to plans, for all hosts of a run together: asks the parts in their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bigiron.errors import BigironError, Refused
from bigiron.machine.description import Machine
from bigiron.machine.hardware import from_machine
from bigiron.parts import PARTS, directories, llama_cpp, llama_server
from bigiron.parts.part import Facts, Planned, Space
from bigiron.plan import capabilities, releases
from bigiron.plan.choose import ModelPlan, choose
from bigiron.plan.releases import CachedRelease, Release
from bigiron.units import GIB, gib

RESERVE_BYTES = GIB
"""Left free on every file system that bigiron fills."""


@dataclass(frozen=True)
class HostPlan:
    """Everything wanted on one host: complete role variables, resources, why, why not.

    ``arguments_proved`` is False until a build can be asked what it understands.
    """

    host: str
    facts: Facts
    planned: Planned
    arguments_proved: bool

    @property
    def variables(self) -> Mapping[str, Any]:
        return self.planned.variables

    @property
    def release(self) -> Release:
        return self.facts.release

    @property
    def model(self) -> ModelPlan:
        return self.facts.served

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "build_from": self.release.build_from,
            "model": self.model.to_json(),
            "reasons": [vars(reason) for reason in self.planned.reasons],
            "findings": list(self.planned.findings),
            "variables": dict(self.variables),
        }


def suited(host: str, machine: Machine) -> None:
    """Raise Refused, before anything is asked or touched, for a machine that one of the parts can never serve."""
    for part in PARTS:
        problem: Refused | None = part.unsuited(machine) if hasattr(part, "unsuited") else None
        if problem:
            raise of_host(problem, host)


def of_host(error: BigironError, host: str) -> BigironError:
    """``error``, saying which host it is about."""
    if error.where != host:
        error.where = f"{host}: {error.where}" if error.where else host
    return error


def plan_hosts(facts: Sequence[Facts], cached: Sequence[CachedRelease]) -> dict[str, HostPlan | BigironError]:
    """One plan per host, or why there is none for it; a host without a plan stops no other.

    Hosts are planned together because a release is built once per platform: the same source, options, libc and CPU baseline.
    """
    plans: dict[str, HostPlan | BigironError] = {}
    left = [equipped(fact) for fact in facts]
    while left:
        wanted = [llama_cpp.candidate(fact) for fact in left]
        chosen = releases.choose(wanted, cached)
        for fact in left:
            try:
                suited(fact.host, fact.machine)
                plans[fact.host] = _plan(replace(fact, release=chosen[fact.host]))
            except BigironError as error:
                plans[fact.host] = of_host(error, fact.host)
        lost = {fact.host for fact in left if isinstance(plans[fact.host], BigironError)}
        # a host that cannot be planned must not be the one that builds for the others: those are planned again without it
        orphans = {name for name, release in chosen.items() if release.build_from in lost}
        left = [fact for fact in left if fact.host in orphans]
    return plans


def equipped(fact: Facts) -> Facts:
    """``fact`` with the backends of its host and what they are built with."""
    built: dict[str, Any] = {part.BACKEND: part for part in PARTS if hasattr(part, "BACKEND")}
    fact = replace(fact, backend=llama_cpp.backend(fact.wish, fact.machine, built))
    wanted = [built[backend.name] for backend in fact.backend.all if backend.name in built]
    return replace(fact, toolchains=tuple(part.toolchain(fact) for part in wanted))


def _serve(fact: Facts, help_text: str) -> ModelPlan:
    """Which quant, where its tensors go, with which arguments; checked against a build that can be asked."""
    wish = llama_server.wanted(fact.wish)
    build = capabilities.parse(help_text) if help_text else None
    found = choose(from_machine(fact.machine, bandwidth=fact.bandwidth, backend=fact.backend), fact.models, wish, build=build)
    return replace(found, warnings=(*fact.left_out, *found.warnings))


def _plan(fact: Facts) -> HostPlan:
    help_text = llama_cpp.help_text(fact)
    fact = replace(fact, served=_serve(fact, help_text), directories=tuple(directories(fact.wish)))
    fact = replace(fact, packages=tuple(name for part in PARTS if hasattr(part, "packages") for name in part.packages(fact)))
    total = Planned()
    for part in PARTS:
        mine = part.plan(fact, total)
        total = Planned(
            {**total.variables, **mine.variables},
            [*total.resources, *mine.resources],
            [*total.reasons, *mine.reasons],
            [*total.refusals, *(Refused(each.what, where=fact.host, hint=each.hint) for each in mine.refusals)],
            [*total.findings, *mine.findings],
            [*total.space, *mine.space],
        )
    total = replace(total, refusals=[*total.refusals, *_too_small(fact, total.space)])
    return HostPlan(fact.host, fact, total, bool(help_text))


def _too_small(fact: Facts, needs: Iterable[Space]) -> list[Refused]:
    """File systems without room for what all parts together write to them."""
    by_device: dict[str, list[Space]] = {}
    disks = fact.observed["disks"]
    for need in sorted(needs, key=lambda each: -each.nbytes):
        if need.nbytes and "free_bytes" in disks.get(need.path, {}):
            by_device.setdefault(str(disks[need.path]["device"]), []).append(need)
    found = []
    for entries in by_device.values():
        disk, total = disks[entries[0].path], sum(entry.nbytes for entry in entries)
        if total + RESERVE_BYTES > disk["free_bytes"]:
            terms = " + ".join(f"{entry.what} {gib(entry.nbytes)}" for entry in entries)
            what = f"{disk['mount']} has {gib(disk['free_bytes'])} free, but needs {gib(total)} ({terms}) and a reserve of {gib(RESERVE_BYTES)}"
            movable = [entry.variable for entry in entries if entry.variable]
            elsewhere = f", or put {movable[0]} on a larger filesystem" if movable else ""
            hint = f"free space{elsewhere}; nothing was downloaded"
            found.append(Refused(what, where=fact.host, hint=hint))
    return found
