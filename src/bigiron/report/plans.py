"""Plans, differences and outcomes for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bigiron import parts
from bigiron.errors import EXIT_DIFFERENCES, EXIT_FAILED, EXIT_OK, EXIT_REFUSED, EXIT_UNREACHABLE, BigironError
from bigiron.report import console, machines, plan_table
from bigiron.units import duration

if TYPE_CHECKING:
    from bigiron.fleet.applying import Outcome
    from bigiron.fleet.survey import Survey
    from bigiron.plan.choose import ModelPlan


def show(
    surveys: Mapping[str, Survey],
    errors: Mapping[str, BigironError],
    *,
    as_json: bool,
    reasons: bool,
    diffs: bool,
    differences_exit: bool,
    explain: bool = False,
) -> int:
    """Print plan (with ``reasons``) and differences per host.

    Returns the exit code: unreachable, failed, refused, differences, in that order.
    """
    if as_json:
        document = {name: one.to_json() for name, one in surveys.items()}
        console.print_json({**document, **{name: {"host": name, **error.to_json()} for name, error in errors.items()}})
    else:
        for one in surveys.values():
            if reasons:
                rows = [(reason.topic, reason.decision, reason.why) for reason in one.plan.planned.reasons]
                console.table(("decision", "value", "because"), rows, title=f"{one.name}: {machines.summary(one.machine)}")
                plan_table.show(one.plan.model, explain=explain)
                for finding in one.plan.planned.findings:
                    print(f"  note: {finding}")
            console.differences(one.name, one.differences, diffs=diffs)
            for line in _pending(one):
                print(line)
            for refusal in one.refusals:
                console.error(refusal)
        for error in errors.values():
            console.error(error)
    return _exit(surveys, errors, differences_exit=differences_exit)


def _pending(one: Survey) -> list[str]:
    planned = one.plan.planned
    lines = [f"{one.name}: reboot pending: {why}" for why in planned.reboot]
    return [*lines, *([f"{one.name}: later stages wait: {planned.waits}"] if planned.waits else [])]


def show_ahead(plan: ModelPlan, *, as_json: bool, explain: bool) -> int:
    """A plan without a host. Returns 0 when it fits (or streams), else 4: nothing should be bought or downloaded for it."""
    if as_json:
        console.print_json(plan.to_json())
    else:
        plan_table.show(plan, explain=explain)
    return EXIT_OK if plan.fits else EXIT_REFUSED


def _exit(surveys: Mapping[str, Survey], errors: Mapping[str, BigironError], *, differences_exit: bool) -> int:
    codes = {error.exit_code for error in errors.values()}
    for code in (EXIT_UNREACHABLE, EXIT_FAILED):
        if code in codes:
            return code
    if codes:
        return codes.pop()
    if any(one.refusals for one in surveys.values()):
        return EXIT_REFUSED
    if differences_exit and any(not one.in_sync for one in surveys.values()):
        return EXIT_DIFFERENCES
    return EXIT_OK


def show_status(surveys: Mapping[str, Survey], errors: Mapping[str, BigironError], *, as_json: bool) -> int:
    """One row per host: service, release, model, sync. Returns the exit code."""
    rows: list[dict[str, Any]] = []
    for one in surveys.values():
        sync = "in sync" if one.in_sync else f"{len(one.differences)} differ"
        why = list(one.plan.planned.reboot)
        sync += ", reboot pending" if why else ""
        rows.append({"host": one.name, **parts.collect("status", one.wish, one.observed), "plan": sync, "reboot": why})
    rows += [
        {"host": name, "service": "?", "release": "?", "model": "?", "listens": "?", "plan": _told(e), "error": e.to_json()}
        for name, e in errors.items()
    ]
    if as_json:
        console.print_json(rows)
    else:
        for row in rows:
            row["listens"] += f" (held by {row['held_by']})" if row.get("held_by") else ""
        columns = ("host", "service", "release", "model", "listens", "plan")
        console.table(columns, [[row[column] for column in columns] for row in rows])
    return _exit(surveys, errors, differences_exit=False)


def _told(error: BigironError) -> str:
    return f"{error.what}; {error.hint}" if error.hint else error.what


def show_outcomes(outcomes: Sequence[Outcome], seconds: float, *, as_json: bool) -> None:
    """What became of each host, the failures last, so that they are not scrolled away."""
    if as_json:
        console.print_json({"seconds": round(seconds, 2), "hosts": [outcome.to_json() for outcome in outcomes]})
        return
    for outcome in sorted(outcomes, key=lambda one: (one.error is not None, bool(one.reboot))):
        words = [f"{outcome.host}: {outcome.status}"]
        if outcome.changed and not outcome.error:
            words.append(
                f"{len(outcome.changed)} changes in {', '.join(outcome.roles)}"
                if outcome.roles
                else f"{len(outcome.changed)} changes"
            )
        if outcome.verdict:
            words.append(f"verdict {outcome.verdict.summary()}")
        if outcome.measured:
            words.append(console.speeds(outcome.measured))
        if outcome.reboot:
            words = [f"{words[0]}: {'; '.join(outcome.reboot)}", *words[1:], f"next: {outcome.next}"]
        print("; ".join(words))
        for finding in outcome.findings:
            print(f"  note: {finding}")
        if outcome.error:
            console.error(outcome.error)
    print(f"{duration(seconds)}")
