"""Verdicts for the terminal: failures and open checks with their remedy, the rest as a count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bigiron.errors import EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, BigironError
from bigiron.judge.verdict import Verdict
from bigiron.report import console
from bigiron.units import duration


def show(verdicts: Sequence[Verdict], errors: Mapping[str, BigironError], *, as_json: bool) -> int:
    """Print every verdict. Returns 0 when all are ok, 3 when a host was unreachable, else 1."""
    if as_json:
        console.print_json(
            [verdict.to_json() for verdict in verdicts]
            + [{"ok": False, "host": name, "checks": [], "error": error.to_json()} for name, error in errors.items()]
        )
    else:
        for verdict in verdicts:
            took = f", {duration(verdict.seconds)}" if verdict.seconds is not None else ""
            print(f"{verdict.host}: {verdict.summary()}{took}")
            for check in (*verdict.failed, *verdict.unknown):
                print(f"  {'FAILED' if check.ok is False else 'cannot tell':<12}{check.id}: {check.detail}")
                if check.remedy:
                    print(f"  {'':<12}{check.remedy}")
        for error in errors.values():
            console.error(error)
    codes = {error.exit_code for error in errors.values()}
    if EXIT_UNREACHABLE in codes or any(verdict.unreachable for verdict in verdicts):
        return EXIT_UNREACHABLE
    if codes:
        return codes.pop()
    return EXIT_OK if all(verdict.ok for verdict in verdicts) else EXIT_FAILED
