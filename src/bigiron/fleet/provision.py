"""The main job: survey, refuse early, apply only the roles that differ, prove, measure, lock."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from bigiron import parts
from bigiron.errors import BigironError, Unreachable
from bigiron.fleet import lock, plandir, play, reboot, survey
from bigiron.fleet.applying import PENDING, Outcome, Run, failure, raise_refusals
from bigiron.fleet.inventory import Target
from bigiron.fleet.measure import measure
from bigiron.fleet.play import Say
from bigiron.fleet.survey import Survey
from bigiron.parts.part import HOST, SERVICE
from bigiron.plan import wishes
from bigiron.plan.releases import ARCHIVE, INSTALLED
from bigiron.report.live import Progress

REBOOTED = "reboot"
"""Stands among the changes of a host that was rebooted."""


@play.one_per_host
def provision(
    targets: Sequence[Target], inventory: str, say: Say, *, quiet: bool = False, may_reboot: bool = False
) -> list[Outcome]:
    """Bring ``targets`` to their plan. One outcome per target, in their order. With ``may_reboot`` those that need it are rebooted.

    Raises Refused, before anything is touched on any host, when one of them cannot be provisioned as planned; UsageError for a wrong
    inventory. A host that fails or cannot be reached stops no other.
    """
    surveys, errors = survey.survey(targets)
    raise_refusals(surveys, errors, say)
    outcomes = {name: failure(name, error) for name, error in errors.items()}
    todo = {name: one for name, one in surveys.items() if not one.in_sync or one.plan.planned.reboot or one.plan.planned.waits}
    for name, one in surveys.items():
        if name not in todo:
            outcomes[name] = Outcome(name, "in sync")
            if not lock.path_for(inventory, name).exists():
                lock.write(lock.path_for(inventory, name), lock.document(one, None))
    if todo:
        outcomes.update(_Provision(inventory, say, quiet=quiet, may_reboot=may_reboot).bring(todo))
    return [outcomes[target.name] for target in targets]


class _Provision(Run):
    """One run over the hosts that differ: waves of plays, then the proof."""

    def __init__(self, inventory: str, say: Say, *, quiet: bool, may_reboot: bool) -> None:
        super().__init__(inventory, say, quiet=quiet)
        self.may_reboot = may_reboot
        self.by_hand: dict[str, str] = {}

    def bring(self, surveys: dict[str, Survey]) -> dict[str, Outcome]:
        pending = {name: one for name, one in surveys.items() if not one.plan.release.fingerprint}
        if pending:
            # the release is named after the compiler, so a host that cannot tell its compiler gets the toolchain first
            self.say(f"{', '.join(pending)}: installing the toolchain, then planning again")
            self.apply(pending, only=parts.in_stages(HOST))
            surveys = self.again(surveys)
        surveys = self._booted(surveys)
        builders = {name: one for name, one in surveys.items() if one.plan.release.built_here or self._shares(name, surveys)}
        waiting = {name: one for name, one in surveys.items() if name not in builders}
        if any(not one.plan.arguments_proved for one in builders.values()):
            # a new build is asked what it understands before a service is written for it
            self.apply(builders, only=parts.before(SERVICE))
            builders = {**builders, **self.again(builders)}
        self.apply(builders)
        waiting = {name: one for name, one in waiting.items() if self._builder_done(one)}
        if any(one.plan.release.build_from not in (ARCHIVE, INSTALLED) for one in waiting.values()):
            waiting = self.again(waiting)
        self.apply(waiting)
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
            self.apply(first, only=parts.in_stages(HOST))
            first.update(self.again({name: one for name, one in first.items() if self._host_parts(one)}))
        rebooted = self._reboot({name: one for name, one in first.items() if name not in self.outcomes})
        if rebooted:
            first.update(self.again({name: first[name] for name in rebooted}))
        for name, one in first.items():
            if one.plan.planned.waits and name not in self.outcomes:
                if name in rebooted and not one.plan.planned.reboot:
                    what = f"the reboot did not help: {one.plan.planned.waits}"
                    self.end(name, "failed", BigironError(what, where=name, hint=f"./inv plan --host {name} says more"))
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
                self.end(name, failure(name, answer).status, answer)
            elif answer:
                self.by_hand[name] = f"{reboot.BY_HAND}, because {answer}"
            else:
                self.changed.setdefault(name, []).append(REBOOTED)
        return [name for name, answer in answers.items() if answer == ""]

    def _pend(self, one: Survey, why: Sequence[str]) -> Outcome:
        """The outcome of a host that is as planned, or as far as it gets, but for a reboot."""
        outcome = self.end(one.name, PENDING)
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
        self.outcomes.update({name: failure(name, error) for name, error in errors.items()})
        for name, one in surveys.items():
            if one.differences:
                rest = "; ".join(f"{each.resource} {each.problem}" for each in one.differences[:4])
                error = BigironError(
                    f"still differs after a run without failure: {rest}", where=name, hint=f"see {self.folder}"
                )
                self.end(name, "failed", error)
        sound = {name: one for name, one in surveys.items() if name not in self.outcomes}
        if not sound:
            return
        self.say(f"verifying {', '.join(sound)}")
        verdicts = judge.run([judge.HostToJudge(name, one.target, one.plan.variables) for name, one in sound.items()])
        measurements = measure(list(sound.values()))
        for verdict in verdicts:
            name, one = verdict.host, sound[verdict.host]
            measured = measurements[name]
            outcome = self.end(name, "changed")
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


@play.one_per_host
def teardown(targets: Sequence[Target], inventory: str, say: Say, *, models: bool, quiet: bool = False) -> list[Outcome]:
    """Remove from ``targets`` what provision made; with ``models`` the model files too. Needs no plan: it removes what is there."""
    outcomes = [failure(target.name, target.down) for target in targets if target.down]
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
            error = BigironError(result.failed[name], where=name, hint=f"the whole log: {result.log}")
            outcomes.append(Outcome(name, "failed", changed=changed, error=error))
        else:
            lock.path_for(inventory, name).unlink(missing_ok=True)
            outcomes.append(Outcome(name, "removed" if changed else "nothing to remove", changed=changed))
            if not changed:
                say(f"{name}: nothing to remove")
    return outcomes
