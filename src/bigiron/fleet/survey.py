"""Look at hosts and say what differs: observe (one round trip each, in parallel), plan, desired state, diff. Changes nothing."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bigiron.errors import BigironError, Refused, UsageError
from bigiron.fleet.inventory import Target
from bigiron.fleet.ssh import Session, run_many
from bigiron.gguf.facts import ModelFacts
from bigiron.hub import headers, tree
from bigiron.hub.quants import QuantFiles
from bigiron.machine.description import Machine
from bigiron.paths import cache_dir, state_dir, write_atomic
from bigiron.plan import diff as differences_of
from bigiron.plan import host as planning
from bigiron.plan import intent as intents
from bigiron.plan.choose import AUTO
from bigiron.plan.desired import Resource, desired, key_path
from bigiron.plan.diff import Difference
from bigiron.plan.host import CachedRelease, HostFacts, HostPlan
from bigiron.plan.intent import BUILD_ROOT, CONFIG_DIR, PREFIX, USER, Intent
from bigiron.plan.places import MADE_FOLDERS
from bigiron.plan.refusals import refusals as reasons_not_to_start
from bigiron.plan.wishes import check_api_key

OBSERVE = "bigiron.onhost.observe:main"
OBSERVE_TIMEOUT_S = 60.0
_ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


@dataclass(frozen=True)
class Survey:
    """One host: what it is, what is on it, what should be, and the differences. ``refusals`` are reasons not to start at all."""

    target: Target
    intent: Intent
    machine: Machine
    observed: Mapping[str, Any]
    plan: HostPlan
    resources: list[Resource]
    differences: list[Difference]
    refusals: list[Refused] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def in_sync(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        return {
            **self.plan.to_json(),
            "in_sync": self.in_sync,
            "roles": differences_of.roles_of(self.differences),
            "differences": [difference.to_json() for difference in self.differences],
            "refusals": [refusal.to_json() for refusal in self.refusals],
        }


@dataclass(frozen=True)
class Look:
    """What one host answered; `Intent` is read before the network is touched, so a typo costs no connection."""

    target: Target
    intent: Intent
    nonce: str
    machine: Machine
    observed: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"host": self.target.name, "machine": self.machine.to_json(), "observed": dict(self.observed)}


def query(intent: Intent, nonce: str) -> dict[str, Any]:
    """The observer's request (docs/architecture.md)."""
    unit = f"llama-server-{intent.service}.service"
    address = "127.0.0.1" if intent.listen in _ANY_ADDRESS else intent.listen
    return {
        "prefix": PREFIX,
        "config_dir": CONFIG_DIR,
        "model_root": intent.model.root,
        "build_root": BUILD_ROOT,
        "user": USER,
        "unit_glob": "llama-server-*.service",
        "ports": [intent.port],
        "files": [MADE_FOLDERS, *(entry["path"] for entry in intent.files)],
        "models": [f"{intent.model.repo}/{intent.model.revision}"],
        "packages": [*planning.RUNTIME_PACKAGES, *planning.TOOLCHAIN_PACKAGES, *intent.extra_packages],
        "disks": [PREFIX, BUILD_ROOT, intent.model.root, "/usr"],
        "secret_nonce": nonce,
        "health": {unit: {"host": address, "port": intent.port}},
    }


def look(targets: Sequence[Target]) -> dict[str, Look | BigironError]:
    """Observe all ``targets`` in parallel, one SSH round trip each; a host that fails gets its error and stops no other.

    Raises UsageError (before any connection) when a host's variables are wrong.
    """
    wishes = {target.name: intents.read(target.name, target.vars, target.vars.pending()) for target in targets}
    nonce = secrets.token_hex(16)

    def observe(target: Target) -> Look:
        intent = wishes[target.name]
        with Session(target) as session:
            answer = session.run_program(OBSERVE, query(intent, nonce), timeout_s=OBSERVE_TIMEOUT_S)
        return Look(target, intent, nonce, Machine.from_json(answer["machine"]), answer["observed"])

    return run_many(targets, observe)


def survey(targets: Sequence[Target]) -> tuple[dict[str, Survey], dict[str, BigironError]]:
    """Surveys by host, and the errors of the hosts that could not be surveyed."""
    own_keys = {target.name: own_key(target) for target in targets}
    seen = look(targets)
    errors = {name: result for name, result in seen.items() if isinstance(result, BigironError)}
    looks = [result for result in seen.values() if isinstance(result, Look)]
    facts = []
    for one in looks:
        try:
            planning.check_machine(one.target.name, one.machine)
            found = candidates(one.target, one.intent)
            facts.append(HostFacts(one.target.name, one.intent, one.machine, one.observed, *found, measured_bandwidth(one)))
        except BigironError as error:
            errors[one.target.name] = error
    plans = planning.plan_hosts(facts, cached_releases())
    by_name = {one.target.name: one for one in looks}
    surveys = {}
    for fact in facts:
        plan = plans[fact.name]
        if isinstance(plan, BigironError):
            errors[fact.name] = plan
        else:
            surveys[fact.name] = _compare(by_name[fact.name], fact, plan, own_keys[fact.name])
    return surveys, errors


def own_key(target: Target) -> str:
    """The API key that the inventory gives ``target``, "" when the host makes its own. Raises UsageError for one that cannot work."""
    key = target.secret("llama_server_api_key") if "llama_server_api_key" in target.vars else ""
    if reason := check_api_key(key):
        raise UsageError(
            f"llama_server_api_key {reason}", where=target.name, hint="./inv vars llama_server_api_key says what it must be"
        )
    return key


def _compare(one: Look, fact: HostFacts, plan: HostPlan, secret: str) -> Survey:
    resources = desired(plan.variables)
    keys: dict[str, str] = {}
    if secret:
        keys[key_path(plan.variables)] = hmac.new(one.nonce.encode(), secret.encode(), "sha256").hexdigest()
    differences = differences_of.diff(resources, one.observed, keys)
    refusals = reasons_not_to_start(fact, plan)
    return Survey(one.target, one.intent, one.machine, one.observed, plan, resources, differences, refusals)


def candidates(target: Target, intent: Intent) -> tuple[dict[str, QuantFiles], dict[str, ModelFacts]]:
    """The quants that may be served (one, when it was named) and what their headers say, both cached: a commit never changes."""
    wish = intent.model
    # a secret is only opened when the hub is really asked
    token = (lambda: target.secret("model_token")) if "model_token" in target.vars else None
    listing = tree.list_files(wish.endpoint, wish.repo, wish.revision, token)
    if wish.quant.lower() != AUTO:
        chosen = tree.select(listing, wish.quant)
        return {chosen.name: chosen}, {chosen.name: headers.facts(listing, chosen, token)}
    found = tree.provable(listing)
    facts = headers.of_quants(listing, found, token)
    return {name: found[name] for name in facts}, facts


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


def completion_request(intent: Intent, prompt: str, tokens: int, timeout_s: float) -> dict[str, Any]:
    """What `bigiron.onhost.serving.main` needs to ask the host's own server; the key stays on the host."""
    return {
        "unit": f"llama-server-{intent.service}.service",
        "host": "127.0.0.1" if intent.listen in _ANY_ADDRESS else intent.listen,
        "port": intent.port,
        "key_file": f"{CONFIG_DIR}/credentials/{intent.service}.key",
        "prompt": prompt,
        "n_predict": tokens,
        "timeout_s": timeout_s,
    }
