"""Verify hosts: plan from what they are, then let the judge look with its own eyes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bigiron.errors import BigironError
from bigiron.fleet import survey, verify
from bigiron.fleet.inventory import Target
from bigiron.report.verdict import Verdict


def hosts(
    targets: Sequence[Target], *, deep: bool, completion: bool, junit: str | None
) -> tuple[list[Verdict], dict[str, BigironError]]:
    """A verdict for every host that can be planned, and the errors of the others."""
    surveys, errors = survey.survey(targets)
    judged = [verify.HostToJudge(name, one.target, one.plan.variables) for name, one in surveys.items()]
    verdicts = verify.run(judged, deep=deep, completion=completion, junit=Path(junit) if junit else None) if judged else []
    return verdicts, errors
