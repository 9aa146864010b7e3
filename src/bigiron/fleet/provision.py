"""The main job: survey, refuse early, apply only the roles that differ, prove, measure, lock."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bigiron import parts
from bigiron.errors import EXIT_FAILED, EXIT_OK, EXIT_REBOOT, EXIT_UNREACHABLE, BigironError, Unreachable, UsageError
from bigiron.fleet import lock, plandir, play, reboot, survey
from bigiron.fleet.inventory import Target
from bigiron.fleet.ssh import Session, run_many
from bigiron.fleet.survey import Survey
from bigiron.judge.verdict import Verdict
from bigiron.parts import llama_server
from bigiron.parts.part import HOST, RELEASE, SERVICE
from bigiron.plan import wishes
from bigiron.plan.releases import ARCHIVE, INSTALLED
from bigiron.report.live import Progress

SERVE = "bigiron.onhost.serving:main"
MEASURE_PROMPT = "The machine in the corner hums. " * 24
MEASURE_TOKENS = 32
COMPLETION_TIMEOUT_S = 600.0
SCAN = "bigiron.onhost.bandwidth:main"
SCAN_S = 0.9
PENDING = "reboot pending"
REBOOTED = "reboot"
"""Stands among the changes of a host that was rebooted."""
GRAVE = {"unreachable": EXIT_UNREACHABLE, "failed": EXIT_FAILED, PENDING: EXIT_REBOOT}

Say = Callable[[str], None]


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


@play.one_per_host
def provision(
    targets: Sequence[Target], inventory: str, say: Say, *, quiet: bool = False, may_reboot: bool = False
) -> list[Outcome]:
    """Bring ``targets`` to their plan. One outcome per target, in their order. With ``may_reboot`` those that need it are rebooted.

    Raises Refused, before anything is touched on any host, when one of them cannot be provisioned as planned; UsageError for a wrong
    inventory. A host that fails or cannot be reached stops no other.
    """
    surveys, errors = survey.survey(targets)
    refusals: list[BigironError] = [refusal for one in surveys.values() for refusal in one.refusals]
    refusals += [error for error in errors.values() if error.exit_code not in (EXIT_UNREACHABLE, EXIT_FAILED)]
    if refusals:
        for refusal in refusals[1:]:
            say(f"error: {refusal}")
        raise refusals[0]
    outcomes = {name: _failure(name, error) for name, error in errors.items()}
    todo = {name: one for name, one in surveys.items() if not one.in_sync or one.plan.planned.reboot or one.plan.planned.waits}
    for name, one in surveys.items():
        if name not in todo:
            outcomes[name] = Outcome(name, "in sync")
            if not lock.path_for(inventory, name).exists():
                lock.write(lock.path_for(inventory, name), lock.document(one, None))
    if todo:
        outcomes.update(_Provision(inventory, say, quiet=quiet, may_reboot=may_reboot).bring(todo))
    return [outcomes[target.name] for target in targets]


def _failure(name: str, error: BigironError) -> Outcome:
    return Outcome(name, "unreachable" if isinstance(error, Unreachable) else "failed", error=error)


class _Provision:
    """One run over the hosts that differ: waves of plays, then the proof."""

    def __init__(self, inventory: str, say: Say, *, quiet: bool, may_reboot: bool) -> None:
        self.inventory = inventory
        self.say = say
        self.quiet = quiet
        self.may_reboot = may_reboot
        self.by_hand: dict[str, str] = {}
        self.folder = play.new_run()
        self.outcomes: dict[str, Outcome] = {}
        self.roles: dict[str, list[str]] = {}
        self.changed: dict[str, list[str]] = {}
        self.findings: dict[str, list[str]] = {}

    def bring(self, surveys: dict[str, Survey]) -> dict[str, Outcome]:
        pending = {name: one for name, one in surveys.items() if not one.plan.release.fingerprint}
        if pending:
            # the release is named after the compiler, so a host that cannot tell its compiler gets the toolchain first
            self.say(f"{', '.join(pending)}: installing the toolchain, then planning again")
            self._apply(pending, only=parts.in_stages(HOST))
            surveys = self._again(surveys)
        surveys = self._booted(surveys)
        builders = {name: one for name, one in surveys.items() if one.plan.release.built_here or self._shares(name, surveys)}
        waiting = {name: one for name, one in surveys.items() if name not in builders}
        if any(not one.plan.arguments_proved for one in builders.values()):
            # a new build is asked what it understands before a service is written for it
            self._apply(builders, only=parts.before(SERVICE))
            builders = {**builders, **self._again(builders)}
        self._apply(builders)
        waiting = {name: one for name, one in waiting.items() if self._builder_done(one)}
        if any(one.plan.release.build_from not in (ARCHIVE, INSTALLED) for one in waiting.values()):
            waiting = self._again(waiting)
        self._apply(waiting)
        self._prove([one for one in {**builders, **waiting}.values() if one.name not in self.outcomes])
        return self.outcomes

    def _booted(self, surveys: dict[str, Survey]) -> dict[str, Survey]:
        """Those of ``surveys`` whose later stages can be attempted: the host stage is applied and the reboot made where these are needed first."""
        first = {
            name: one
            for name, one in surveys.items()
            if one.plan.planned.waits or (self.may_reboot and (one.plan.planned.reboot or self._host_parts(one)))
        }
        if any(self._host_parts(one) for one in first.values()):
            self._apply(first, only=parts.in_stages(HOST))
            first.update(self._again({name: one for name, one in first.items() if self._host_parts(one)}))
        rebooted = self._reboot({name: one for name, one in first.items() if name not in self.outcomes})
        if rebooted:
            first.update(self._again({name: first[name] for name in rebooted}))
        for name, one in first.items():
            if one.plan.planned.waits and name not in self.outcomes:
                if name in rebooted and not one.plan.planned.reboot:
                    what = f"the reboot did not help: {one.plan.planned.waits}"
                    self._end(name, "failed", BigironError(what, where=name, hint=f"./inv plan --host {name} says more"))
                else:
                    self._pend(one, [*one.plan.planned.reboot, one.plan.planned.waits])
        return {name: one for name, one in {**surveys, **first}.items() if name not in self.outcomes}

    @staticmethod
    def _host_parts(one: Survey) -> list[str]:
        return [name for name in one.parts if name in parts.in_stages(HOST)]

    def _reboot(self, surveys: Mapping[str, Survey]) -> list[str]:
        """Reboot those that need it, if that was asked for; the names of those that are back."""
        need = {name: one for name, one in surveys.items() if one.plan.planned.reboot}
        if not need or not self.may_reboot:
            return []
        self.say(f"rebooting {', '.join(need)}")
        waits_s = {name: float(one.wish["base_reboot_timeout_s"]) for name, one in need.items()}
        answers = reboot.reboot_all([one.target for one in need.values()], waits_s)
        for name, answer in answers.items():
            if isinstance(answer, BigironError):
                self._end(name, _failure(name, answer).status, answer)
            elif answer:
                self.by_hand[name] = f"{reboot.BY_HAND}, because {answer}"
            else:
                self.changed.setdefault(name, []).append(REBOOTED)
        return [name for name, answer in answers.items() if answer == ""]

    def _pend(self, one: Survey, why: Sequence[str]) -> Outcome:
        """The outcome of a host that is as planned, or as far as it gets, but for a reboot."""
        outcome = self._end(one.name, PENDING)
        outcome.reboot = list(why)
        alone = reboot.cannot(one.target)
        outcome.next = self.by_hand.get(one.name) or (
            f"{reboot.BY_HAND}, because {alone}" if alone else f"./inv provision --host {one.name} --reboot"
        )
        if REBOOTED in outcome.changed:
            outcome.next = "it was rebooted, and this is left: see which kernel its boot loader is set to"
        return outcome

    @staticmethod
    def _shares(name: str, surveys: Mapping[str, Survey]) -> bool:
        """Another host waits for the release that is installed on ``name``."""
        return any(one.plan.release.build_from == name for one in surveys.values())

    def _builder_done(self, one: Survey) -> bool:
        builder = self.outcomes.get(one.plan.release.build_from)
        if builder is None:
            return True
        if builder.status == PENDING:
            why = f"{builder.host}, which builds its release, has to be rebooted first"
            self._pend(one, [why]).next = f"./inv provision --host {builder.host},{one.name} --reboot"
            return False
        what = f"not attempted: {one.plan.release.build_from}, which builds its release, {builder.status}"
        self.outcomes[one.name] = Outcome(one.name, "failed", error=BigironError(what, where=one.name))
        return False

    def _again(self, surveys: Mapping[str, Survey]) -> dict[str, Survey]:
        targets = [one.target for name, one in surveys.items() if name not in self.outcomes]
        seen, errors = survey.survey(targets)
        # a build that is there now may refuse what could not be asked before
        errors.update({name: one.refusals[0] for name, one in seen.items() if one.refusals})
        self.outcomes.update({name: _failure(name, error) for name, error in errors.items()})
        return {name: one for name, one in seen.items() if name not in errors}

    def _apply(self, surveys: Mapping[str, Survey], only: Sequence[str] = parts.NAMES) -> None:
        """One play over ``surveys``; hosts that fail get their outcome here, the others are proved later."""
        wanted = {name: [part for part in one.parts if part in only] for name, one in surveys.items()}
        surveys = {name: one for name, one in surveys.items() if name not in self.outcomes and wanted[name]}
        if not surveys:
            return
        variables = {name: {**one.plan.variables, "bigiron_parts": wanted[name]} for name, one in surveys.items()}
        inventories: list[str | Path] = [*self.inventory.split(","), plandir.write(self.folder / "plan", variables)]
        sessions = _Sessions([one.target for one in surveys.values()])
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
                self._end(name, "unreachable", Unreachable(result.unreachable[name], where=name, hint=hint))
            elif name in result.failed:
                self._end(name, "failed", BigironError(result.failed[name], where=name, hint=f"the whole log: {result.log}"))
        for name, one in surveys.items():
            release = one.plan.release
            fresh = release.built_here and name not in self.outcomes and set(wanted[name]) & set(parts.in_stages(RELEASE))
            if fresh and survey.release_archive(release.fingerprint).exists():
                survey.describe_release(release.fingerprint, release.identity.to_json())

    def _end(self, name: str, status: str, error: BigironError | None = None) -> Outcome:
        outcome = Outcome(name, status, self.roles.get(name, []), self.changed.get(name, []), error)
        outcome.findings = self.findings.get(name, [])
        self.outcomes[name] = outcome
        return outcome

    def _prove(self, applied: Sequence[Survey]) -> None:
        """Observe again (nothing may differ now), verify, measure, lock. A host that was in sync and only lacks a reboot was proved before."""
        from bigiron import judge

        for one in applied:
            if one.plan.planned.reboot and one.in_sync and not self.changed.get(one.name):
                self._pend(one, one.plan.planned.reboot)
        applied = [one for one in applied if one.name not in self.outcomes]
        if not applied:
            return
        surveys, errors = survey.survey([one.target for one in applied])
        self.outcomes.update({name: _failure(name, error) for name, error in errors.items()})
        for name, one in surveys.items():
            if one.differences:
                rest = "; ".join(f"{each.resource} {each.problem}" for each in one.differences[:4])
                error = BigironError(
                    f"still differs after a run without failure: {rest}", where=name, hint=f"see {self.folder}"
                )
                self._end(name, "failed", error)
        sound = {name: one for name, one in surveys.items() if name not in self.outcomes}
        if not sound:
            return
        self.say(f"verifying {', '.join(sound)}")
        verdicts = judge.run([judge.HostToJudge(name, one.target, one.plan.variables) for name, one in sound.items()])
        measurements = measure(list(sound.values()))
        for verdict in verdicts:
            name, one = verdict.host, sound[verdict.host]
            measured = measurements[name]
            outcome = self._end(name, "changed")
            outcome.verdict = verdict
            if not verdict.ok:
                outcome.status = "failed"
                outcome.error = BigironError(
                    f"the verdict is not ok: {verdict.summary()}", where=name, hint=f"./inv verify --host {name}"
                )
            elif isinstance(measured, BigironError):
                outcome.status, outcome.error = "failed", measured
            else:
                outcome.measured = measured
                lock.write(lock.path_for(self.inventory, name), lock.document(one, measured))
                if one.plan.planned.reboot:
                    pending = self._pend(one, one.plan.planned.reboot)
                    pending.verdict, pending.measured = verdict, measured
            (self.folder / f"verdict-{name}.json").write_text(json.dumps(verdict.to_json(), indent=1), encoding="utf-8")


def complete(
    target: Target, wish: Mapping[str, Any], prompt: str, tokens: int, timeout_s: float = COMPLETION_TIMEOUT_S, **where: Any
) -> dict[str, Any]:
    """One completion by the host's own server, asked on the host itself, with the key that only the host knows.

    ``where`` (host, port) is for a server that does not listen where the inventory says.

    Returns the answer of `bigiron.onhost.serving.main` (speeds in tok/s). Raises BigironError when the server does not answer.
    """
    request = {**llama_server.completion(wish, prompt, tokens, timeout_s), **where}
    with Session(target) as session:
        answer = session.run_program(SERVE, request, timeout_s=timeout_s + 30)
    if not answer.get("ok"):
        what = f"the completion failed: {answer.get('error') or 'no token came back'}"
        raise BigironError(what, where=target.name, hint=answer.get("hint") or f"./inv verify --host {target.name}")
    return answer


def measure(surveys: Sequence[Survey]) -> dict[str, dict[str, Any] | BigironError]:
    """Prefill and generation speed of each host, tok/s, from one completion of `MEASURE_TOKENS` tokens.

    The memory bandwidth is measured too, in the quiet after it, and noted for the plan's next prediction.
    """
    by_name = {one.name: one for one in surveys}

    def one_host(target: Target) -> dict[str, Any]:
        answer = complete(target, by_name[target.name].wish, MEASURE_PROMPT, MEASURE_TOKENS)
        one = by_name[target.name]
        with Session(target) as session:
            scan = session.run_program(SCAN, {"threads": one.machine.cpu.cores, "seconds": SCAN_S}, become=False)
        survey.record_bandwidth(target.name, one.machine, float(scan["bytes_per_s"]))
        keys = ("prefill_tps", "generation_tps", "prompt_tokens", "generated_tokens")
        return {**{key: answer[key] for key in keys}, "memory_bytes_per_s": round(float(scan["bytes_per_s"]))}

    return run_many([one.target for one in surveys], one_host)


def ask(targets: Sequence[Target], prompt: str, tokens: int) -> dict[str, Any]:
    """One completion from the one host in ``targets``. Raises UsageError when several hosts or an empty prompt are given."""
    if len(targets) != 1:
        raise UsageError(f"{len(targets)} hosts were named, but one is asked", hint="name one: --host lab01")
    if not prompt.strip() or tokens < 1:
        raise UsageError("a prompt and at least one token are needed", hint='./inv ask "The capital of France is" --host lab01')
    target = targets[0]
    if target.down:
        raise target.down
    return complete(target, wishes.read(target.name, target.vars, target.vars.pending()), prompt, tokens)


@play.one_per_host
def teardown(targets: Sequence[Target], inventory: str, say: Say, *, models: bool, quiet: bool = False) -> list[Outcome]:
    """Remove from ``targets`` what provision made; with ``models`` the model files too. Needs no plan: it removes what is there."""
    outcomes = [_failure(target.name, target.down) for target in targets if target.down]
    variables = {}
    for target in targets:
        if target.down:
            continue
        needed = parts.collect("remove", wishes.read(target.name, target.vars, target.vars.pending()), models)
        variables[target.name] = {**needed, "bigiron_parts": list(parts.NAMES)}
    if not variables:
        return outcomes
    folder = play.new_run()
    names = list(variables)
    progress = Progress(names, lambda _host, _role: None, quiet=quiet)
    with progress.running():
        result = play.run(
            "teardown", [*inventory.split(","), plandir.write(folder / "plan", variables)], names, folder, progress.on_event
        )
    for name in names:
        changed = result.changed.get(name, [])
        if name in result.unreachable:
            outcomes.append(
                Outcome(name, "unreachable", changed=changed, error=Unreachable(result.unreachable[name], where=name))
            )
        elif name in result.failed:
            failure = BigironError(result.failed[name], where=name, hint=f"the whole log: {result.log}")
            outcomes.append(Outcome(name, "failed", changed=changed, error=failure))
        else:
            lock.path_for(inventory, name).unlink(missing_ok=True)
            outcomes.append(Outcome(name, "removed" if changed else "nothing to remove", changed=changed))
            if not changed:
                say(f"{name}: nothing to remove")
    return outcomes


class _Sessions:
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
