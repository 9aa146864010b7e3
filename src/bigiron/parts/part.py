"""What a part is, what it is told, and what it answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bigiron.errors import Refused
from bigiron.gguf.facts import ModelFacts
from bigiron.hub.quants import QuantFiles
from bigiron.machine.backends import Choice
from bigiron.machine.description import Machine
from bigiron.plan.apt import Apt
from bigiron.plan.build_options import Toolchain
from bigiron.plan.choose import ModelPlan
from bigiron.plan.releases import Release

HOST, RELEASE, MODEL, SERVICE = STAGES = ("host", "release", "model", "service")
"""In the order in which a host is brought to its plan."""

Watched = dict[str, Any]
"""Kind of resource -> names to look at (`bigiron.onhost.kinds`); a mapping where the kind needs to know more of each name."""


@dataclass(frozen=True)
class Facts:
    """What one host is planned from.

    ``wish`` are the person's variables, typed and complete (`bigiron.plan.wishes`); ``observed`` is the document of docs/architecture.md;
    ``quants`` the candidates by name (one, when a quant was asked for), ``models`` what their headers say, ``left_out`` the candidates that could
    not be considered and why. ``bandwidth`` is the measured read rate of its memory in bytes per second, None while nobody measured
    it; ``release_folder`` is where the controller keeps packed releases. The rest is decided before the parts are asked.
    """

    host: str
    wish: Mapping[str, Any]
    machine: Machine
    observed: Mapping[str, Any]
    quants: Mapping[str, QuantFiles]
    models: Mapping[str, ModelFacts]
    left_out: tuple[str, ...] = ()
    bandwidth: float | None = None
    release_folder: str = ""
    backend: Choice = field(kw_only=True, default=None)  # type: ignore[assignment]  # set by bigiron.parts.plan_hosts
    toolchains: tuple[Toolchain, ...] = field(kw_only=True, default=())
    release: Release = field(kw_only=True, default=None)  # type: ignore[assignment]
    served: ModelPlan = field(kw_only=True, default=None)  # type: ignore[assignment]
    packages: tuple[str, ...] = ()
    directories: tuple[Mapping[str, Any], ...] = ()
    apt: Apt = field(default_factory=Apt)

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that the service user must be in: those of the nodes that its backends need."""
        return tuple(sorted({group for each in self.toolchains for group in each.access.groups}))

    def toolchain(self, backend: str) -> Toolchain | None:
        """What ``backend`` is built with here; None where this host does not use it."""
        return next((each for each in self.toolchains if each.backend == backend), None)

    @property
    def files(self) -> QuantFiles:
        """The files of the quant that was chosen."""
        return self.quants[self.served.quant]


@dataclass(frozen=True)
class Resource:
    """One thing on a host: ``kind`` decides how ``want`` is compared; ``part`` is whose role makes it so."""

    kind: str
    name: str
    part: str
    want: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.kind}:{self.name}"


def file_resource(part: str, path: str, text: str, mode: str = "0644", owner: str = "root", group: str = "root") -> Resource:
    """A file with this content."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Resource("file", path, part, {"owner": owner, "group": group, "mode": mode, "sha256": digest, "text": text})


@dataclass(frozen=True)
class Reason:
    """One decision for the person: ``topic`` decided as ``decision`` because of ``why``."""

    topic: str
    decision: str
    why: str


@dataclass(frozen=True)
class Space:
    """Bytes that will be written below ``path``, for ``what``; ``variable`` is the one that puts it elsewhere, if one does."""

    path: str
    what: str
    nbytes: int
    variable: str = ""


@dataclass(frozen=True)
class Planned:
    """What a part wants on one host: complete role variables, resources, why, why not, and what a person should know.

    ``refusals`` are reasons not to start; ``findings`` are worth knowing and stop nothing. ``reboot`` says, each in a sentence, why a reboot is
    pending now (`bigiron.plan.reboot`). ``waits`` says what the stages after the host's still lack ("the driver is not loaded") that the
    host stage or a reboot is going to bring: until then they are pending, not failed.
    """

    variables: Mapping[str, Any] = field(default_factory=dict)
    resources: Sequence[Resource] = ()
    reasons: Sequence[Reason] = ()
    refusals: Sequence[Refused] = ()
    findings: Sequence[str] = ()
    space: Sequence[Space] = ()
    reboot: Sequence[str] = ()
    waits: str = ""


class Part(Protocol):
    """A module of `bigiron.parts`: one thing that bigiron manages; the role of the same name makes it so. All functions are pure.

    It may also have any of these:

    - ``PACKAGES`` it may need, and ``packages(facts)``, those it needs now: role base installs them,
    - ``apt(facts)``: repositories, pins and holds of those packages (`Apt`); it watches ``{"apt": [its name]}`` then,
    - ``directories(wish)`` it stands in, ``{"path", "owner", "group", "mode"}``, with ``keep`` where a person's own folder keeps both: role base makes them,
    - ``SECRETS``: variables whose value a resource of kind secret holds; they are opened and checked before anything connects,
    - ``BACKEND`` and ``toolchain(facts)``: what that backend is built with on this host and what its service may touch; asked before
      ``release`` and ``served`` are known, only where the backend is used. The groups of its access are the service user's
      (`bigiron.plan.devices`); one that the host lacks is refused where ``{"group": names}`` is watched,
    - ``also(wish, machine)``: what must be looked at besides ``watch`` once the machine is known: a second look over the same connection, at
      those hosts alone that need it,
    - ``unsuited(machine)``: why this machine cannot have it at all (a `Refused`, or None),
    - ``lock(facts, variables)``: its sections of the host's lock,
    - ``status(wish, observed)``: its columns of ``./inv status``,
    - ``remove(wish, models)``: variables that its role needs to remove what it made, model files too if asked (``tasks_from: remove``).
    """

    __name__: str
    STAGE: str

    def watch(self, wish: Mapping[str, Any]) -> Watched:
        """What must be looked at on the host before it can be planned."""

    def plan(self, facts: Facts, so_far: Planned) -> Planned:
        """What it wants; ``so_far`` is what the parts before it want."""
