"""Applies plans: one play over several hosts with its progress, and what became of each host."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bigiron import parts
from bigiron.errors import EXIT_FAILED, EXIT_OK, EXIT_REBOOT, EXIT_UNREACHABLE, BigironError, Unreachable
from bigiron.fleet import plandir, play, survey
from bigiron.fleet.inventory import Target
from bigiron.fleet.play import Say
from bigiron.fleet.ssh import Session
from bigiron.fleet.survey import Survey
from bigiron.judge.verdict import Verdict
from bigiron.parts.part import RELEASE
from bigiron.report.live import Progress

PENDING = "reboot pending"
GRAVE = {"unreachable": EXIT_UNREACHABLE, "failed": EXIT_FAILED, PENDING: EXIT_REBOOT}


@dataclass
class Outcome:
    """What became of one host; ``status`` is in sync, changed, reboot pending, failed or unreachable.

    ``reboot`` says why a reboot is pending, ``next`` what to do about it.
    """

    host: str
    status: str
    roles: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    error: BigironError | None = None
    verdict: Verdict | None = None
    measured: Mapping[str, Any] | None = None
    reboot: list[str] = field(default_factory=list)
    next: str = ""
    findings: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "status": self.status,
            "roles": self.roles,
            "changed": self.changed,
            "error": self.error.to_json() if self.error else None,
            "verdict": self.verdict.to_json() if self.verdict else None,
            "measured": dict(self.measured) if self.measured else None,
            "reboot": self.reboot,
            "next": self.next,
            "findings": self.findings,
        }


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """3 when a host was unreachable, else 1 when one failed, else 5 when one has to be rebooted, else 0."""
    ends = {outcome.status for outcome in outcomes}
    return next((code for status, code in GRAVE.items() if status in ends), EXIT_OK)


def failure(name: str, error: BigironError) -> Outcome:
    """The outcome of a host that ``error`` ended."""
    return Outcome(name, "unreachable" if isinstance(error, Unreachable) else "failed", error=error)


def raise_refusals(surveys: Mapping[str, Survey], errors: Mapping[str, BigironError], say: Say) -> None:
    """Raise the first reason not to start at all, of any host, after the others were told."""
    refusals: list[BigironError] = [refusal for one in surveys.values() for refusal in one.refusals]
    refusals += [error for error in errors.values() if error.exit_code not in (EXIT_UNREACHABLE, EXIT_FAILED)]
    for refusal in refusals[1:]:
        say(f"error: {refusal}")
    if refusals:
        raise refusals[0]


class Run:
    """One run of plays over hosts: who is applied with what, and what became of each."""

    def __init__(self, inventory: str, say: Say, *, quiet: bool) -> None:
        self.inventory = inventory
        self.say = say
        self.quiet = quiet
        self.folder = play.new_run()
        self.outcomes: dict[str, Outcome] = {}
        self.roles: dict[str, list[str]] = {}
        self.changed: dict[str, list[str]] = {}
        self.findings: dict[str, list[str]] = {}

    def again(self, surveys: Mapping[str, Survey]) -> dict[str, Survey]:
        """Survey them once more; those that have an outcome, or get one now, are left out."""
        targets = [one.target for name, one in surveys.items() if name not in self.outcomes]
        seen, errors = survey.survey(targets)
        # a build that is there now may refuse what could not be asked before
        errors.update({name: one.refusals[0] for name, one in seen.items() if one.refusals})
        self.outcomes.update({name: failure(name, error) for name, error in errors.items()})
        return {name: one for name, one in seen.items() if name not in errors}

    def apply(
        self,
        surveys: Mapping[str, Survey],
        only: Sequence[str] = parts.NAMES,
        forced: Collection[str] = (),
        instead: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        """One play over ``surveys``; hosts that fail get their outcome here, the others are proved later.

        Of the parts ``only`` those that differ and those ``forced``; ``instead`` are a host's variables that stand for those of its plan.
        """
        wanted = {name: [part for part in only if part in one.parts or part in forced] for name, one in surveys.items()}
        surveys = {name: one for name, one in surveys.items() if name not in self.outcomes and wanted[name]}
        if not surveys:
            return
        variables = {
            name: {**one.plan.variables, **instead.get(name, {}), "bigiron_parts": wanted[name]}
            for name, one in surveys.items()
        }
        inventories: list[str | Path] = [*self.inventory.split(","), plandir.write(self.folder / "plan", variables)]
        sessions = Sessions([one.target for one in surveys.values()])
        progress = Progress(list(surveys), sessions.progress, quiet=self.quiet)
        try:
            with progress.running():
                result = play.run("provision", inventories, list(surveys), self.folder, progress.on_event)
        finally:
            sessions.close()
        for name in surveys:
            earlier = self.roles.setdefault(name, [])
            earlier += [role for role in wanted[name] if role not in earlier]
            self.changed.setdefault(name, []).extend(result.changed.get(name, []))
            self.findings.setdefault(name, []).extend(result.findings.get(name, []))
            if name in result.unreachable:
                hint = "run the same command again; it carries on"
                self.end(name, "unreachable", Unreachable(result.unreachable[name], where=name, hint=hint))
            elif name in result.failed:
                self.end(name, "failed", BigironError(result.failed[name], where=name, hint=f"the whole log: {result.log}"))
        for name, one in surveys.items():
            release = one.plan.release
            brought = variables[name].get("llama_cpp_fetch_to") and set(wanted[name]) & set(parts.in_stages(RELEASE))
            if brought and name not in self.outcomes and survey.release_archive(release.fingerprint).exists():
                survey.describe_release(release.fingerprint, release.identity.to_json())

    def end(self, name: str, status: str, error: BigironError | None = None) -> Outcome:
        """Note the outcome of a host, with all that was done there."""
        outcome = Outcome(name, status, self.roles.get(name, []), self.changed.get(name, []), error)
        outcome.findings = self.findings.get(name, [])
        self.outcomes[name] = outcome
        return outcome


class Sessions:
    """Connections that read the progress files of long steps; opened on first need, a host that cannot answer is left alone."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = {target.name: target for target in targets}
        self._open: dict[str, Session | None] = {}
        self._lock = threading.Lock()

    def progress(self, host: str, role: str) -> Mapping[str, Any] | None:
        with self._lock:
            try:
                if host not in self._open:
                    self._open[host] = Session(self._targets[host])
                session = self._open[host]
                text = session.read_file(f"/run/bigiron/{role}.json", timeout_s=5) if session else None
                document = json.loads(text) if text else None
            except (BigironError, ValueError):
                self._open[host] = None  # progress is a courtesy; the play itself reports what is wrong
                return None
        return document if isinstance(document, dict) else None

    def close(self) -> None:
        with self._lock:
            for session in self._open.values():
                if session:
                    session.close()
            self._open.clear()
