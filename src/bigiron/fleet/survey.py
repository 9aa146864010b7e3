"""Look at hosts and say what differs: observe (one round trip each, in parallel), plan, compare. Changes nothing."""

from __future__ import annotations

import hashlib
import hmac
import importlib
import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bigiron import parts
from bigiron.errors import BigironError, Refused
from bigiron.fleet import pinning
from bigiron.fleet.inventory import Target
from bigiron.fleet.ssh import Session, run_many
from bigiron.hub import headers, tree
from bigiron.machine.description import Machine
from bigiron.parts import model as model_part
from bigiron.parts import planner
from bigiron.parts.difference import Difference, diff
from bigiron.parts.model import Repository
from bigiron.parts.part import Facts, Resource
from bigiron.parts.planner import HostPlan
from bigiron.paths import cache_dir, state_dir, write_atomic
from bigiron.plan import wishes
from bigiron.plan.releases import CachedRelease

OBSERVE = "bigiron.onhost.observe:main"
OBSERVE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Look:
    """What one host answered; the wish is read before the network is touched, so a typo costs no connection."""

    target: Target
    wish: Mapping[str, Any]
    nonce: str
    machine: Machine
    observed: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"host": self.target.name, "machine": self.machine.to_json(), "observed": dict(self.observed)}


@dataclass(frozen=True)
class Survey:
    """One host: what was seen, what should be, and the differences."""

    seen: Look
    plan: HostPlan
    differences: list[Difference]

    @property
    def name(self) -> str:
        return self.seen.target.name

    @property
    def target(self) -> Target:
        return self.seen.target

    @property
    def wish(self) -> Mapping[str, Any]:
        return self.seen.wish

    @property
    def machine(self) -> Machine:
        return self.seen.machine

    @property
    def observed(self) -> Mapping[str, Any]:
        return self.seen.observed

    @property
    def refusals(self) -> Sequence[Refused]:
        """Reasons not to start at all."""
        return self.plan.planned.refusals

    @property
    def in_sync(self) -> bool:
        return not self.differences

    @property
    def parts(self) -> list[str]:
        """The parts that have something to do, in their order."""
        return parts.to_apply(difference.part for difference in self.differences)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.plan.to_json(),
            "in_sync": self.in_sync,
            "roles": self.parts,
            "differences": [difference.to_json() for difference in self.differences],
            "refusals": [refusal.to_json() for refusal in self.refusals],
        }


def query(watch: Mapping[str, Any], nonce: str) -> dict[str, Any]:
    """The observer's request (docs/architecture.md)."""
    return {"watch": watch, "nonce": nonce, "sent": time.time()}


def look(targets: Sequence[Target]) -> dict[str, Look | BigironError]:
    """Observe all ``targets`` in parallel, one SSH round trip each; a host that fails gets its error and stops no other.

    A machine that turns out to need more than its wish tells (`parts.also`) is looked at a second time, over the same connection.

    Raises UsageError (before any connection) when a host's variables are wrong.
    """
    wanted = {
        target.name: wishes.read(target.name, target.vars, target.vars.pending()) for target in targets if not target.down
    }
    nonce = secrets.token_hex(16)

    def observe(target: Target) -> Look:
        wish = wanted[target.name]

        def ask(watch: Mapping[str, Any]) -> dict[str, Any]:
            modules = tuple(sorted(f"bigiron.onhost.kinds.{kind}" for kind in watch))
            return session.run_program(OBSERVE, query(watch, nonce), modules=modules, timeout_s=OBSERVE_TIMEOUT_S)

        with Session(target) as session:
            session.open()
            warming.submit(importlib.import_module, "jinja2")  # while the host works: the plan needs it next
            answer = ask(parts.watch(wish))
            machine, observed = Machine.from_json(answer["machine"]), answer["observed"]
            if more := parts.also(wish, machine):
                _add(observed, ask(more)["observed"])
        return Look(target, wish, nonce, machine, observed)

    with ThreadPoolExecutor(1) as warming:
        return run_many(targets, observe)


def _add(observed: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Put a second look's entries beside those of the first; a list (what is held) gets longer."""
    for section, entries in more.items():
        if isinstance(entries, Mapping):
            mine = observed.setdefault(section, {})
            mine.update(
                {
                    name: [*mine[name], *entry] if isinstance(entry, list) and isinstance(mine.get(name), list) else entry
                    for name, entry in entries.items()
                }
            )


def survey(targets: Sequence[Target]) -> tuple[dict[str, Survey], dict[str, BigironError]]:
    """Surveys by host, and the errors of the hosts that could not be surveyed."""
    own = {target.name: opened(target) for target in targets if not target.down}
    seen = look(targets)
    errors = {name: result for name, result in seen.items() if isinstance(result, BigironError)}
    looks = {name: result for name, result in seen.items() if isinstance(result, Look)}
    facts: list[Facts] = []
    listed: dict[Repository, headers.Candidates] = {}
    for name, seen_there in list(looks.items()):
        asked = model_part.repository(seen_there.wish)
        try:
            planner.suited(name, seen_there.machine)
            looks[name] = one = replace(seen_there, wish=pinning.pinned(seen_there.wish))
            if asked not in listed:  # a lab serves few models on many hosts
                listed[asked] = candidates(one.target, asked)
        except BigironError as error:
            errors[name] = error
            continue
        bandwidth = measured_bandwidth(one)
        folder = str(cache_dir("releases"))
        facts.append(
            Facts(name, one.wish, one.machine, one.observed, *listed[asked], bandwidth=bandwidth, release_folder=folder)
        )
    surveys = {}
    for name, plan in planner.plan_hosts(facts, cached_releases()).items():
        if isinstance(plan, BigironError):
            errors[name] = plan
        else:
            one = looks[name]
            resources = plan.planned.resources
            surveys[name] = Survey(one, plan, diff(resources, one.observed, _hmacs(one, resources, own[name])))
    return surveys, errors


def _hmacs(one: Look, resources: Iterable[Resource], secrets: Mapping[str, str]) -> dict[str, str]:
    """By path, the HMAC that each secret of the inventory should have on the host."""
    wanted = {each.name: secrets.get(each.want["variable"], "") for each in resources if each.kind == "secret"}
    return {
        path: hmac.new(one.nonce.encode(), secret.encode(), "sha256").hexdigest() for path, secret in wanted.items() if secret
    }


def opened(target: Target) -> dict[str, str]:
    """The secrets of the inventory that the host must hold too. Raises UsageError for one that cannot work."""
    found = {name: target.secret(name) for name in parts.SECRETS if name in target.vars}
    for name, value in found.items():
        wishes.check_secret(target.name, name, value)
    return found


def candidates(target: Target, asked: Repository) -> headers.Candidates:
    """The quants that may be served (one, when it was named) and what their headers say, both cached: a commit never changes."""
    # a secret is only opened when the hub is really asked
    token = (lambda: target.secret(model_part.TOKEN)) if model_part.TOKEN in target.vars else None
    listing = tree.list_files(asked.endpoint, asked.repo, asked.revision, token)
    return headers.candidates(listing, asked.quant, token)


def measured_bandwidth(one: Look) -> float | None:
    """What `record_bandwidth` noted for this host, as long as it still has the CPU and memory it had then; bytes per second."""
    try:
        document = json.loads((state_dir("measured") / f"{one.target.name}.json").read_text(encoding="utf-8"))
        return float(document["bytes_per_s"]) if document["of"] == _kind(one.machine) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def record_bandwidth(host: str, machine: Machine, bytes_per_s: float) -> None:
    """Note the measured memory bandwidth of ``host`` for later plans."""
    write_atomic(state_dir("measured") / f"{host}.json", json.dumps({"of": _kind(machine), "bytes_per_s": bytes_per_s}))


def _kind(machine: Machine) -> list[object]:
    return [machine.cpu.model, machine.cpu.cores, machine.memory.total_bytes]


def cached_releases() -> list[CachedRelease]:
    """The packed releases under ``~/.cache/bigiron/releases``; one without a readable description is passed over."""
    found = []
    for description in sorted(cache_dir("releases").glob("*.json")):
        archive = description.with_name(f"{description.stem}.tar.gz")
        try:
            document = json.loads(description.read_text(encoding="utf-8"))
            if archive.stat().st_size == document["archive_size"]:
                found.append(
                    CachedRelease(
                        document["fingerprint"],
                        document["identity"],
                        str(archive),
                        document["archive_sha256"],
                        document.get("help", ""),
                    )
                )
        except (OSError, ValueError, KeyError):
            continue
    return found


def release_archive(mark: str) -> Path:
    """Where the packed release ``mark`` (a fingerprint) is kept on the controller."""
    return cache_dir("releases") / f"{mark}.tar.gz"


def describe_release(mark: str, identity: Mapping[str, Any]) -> None:
    """Record a packed release that was just brought here, so that later plans can use it."""
    archive = release_archive(mark)
    with archive.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    description = archive.with_name(f"{mark}.json")
    try:
        manifest = json.loads(description.read_text(encoding="utf-8"))  # the role brought it beside the archive
    except (OSError, ValueError):
        manifest = {}
    document = {
        **manifest,
        "fingerprint": mark,
        "identity": dict(identity),
        "archive_sha256": digest,
        "archive_size": archive.stat().st_size,
    }
    write_atomic(description, json.dumps(document, indent=1))
