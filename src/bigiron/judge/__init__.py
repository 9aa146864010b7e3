"""The verifier: runs tests/state (pytest and testinfra) on hosts and makes verdicts.

A verdict is ok when no check is false and no required check is open. Nothing here reads what ``observe`` found or what Ansible
reported; what it compares the plan with is collected by `bigiron.judge.collector`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bigiron.errors import BigironError, UsageError
from bigiron.judge.judged import SITE, SUITE, Collect, Hosts, HostToJudge, site_folder
from bigiron.paths import PROJECT

if TYPE_CHECKING:
    from bigiron.fleet.inventory import Target
    from bigiron.judge.verdict import Verdict

__all__ = ["HostToJudge", "hosts", "run"]


def hosts(
    targets: Sequence[Target], *, deep: bool = False, completion: bool = True, junit: str | None = None
) -> tuple[list[Verdict], dict[str, BigironError]]:
    """Plan ``targets`` from what they are, and judge them by it, a person's own tests included.

    Returns a verdict for every host that can be planned, and the errors of the others. ``deep`` reads every byte of release
    and model; ``completion`` asks each server for one; ``junit`` is where a JUnit report is written.
    """
    from bigiron.fleet import survey

    surveys, errors = survey.survey(targets)
    judged = [HostToJudge(name, one.target, one.plan.variables, site_folder(one.target)) for name, one in surveys.items()]
    report = Path(junit) if junit else None
    return run(judged, deep=deep, completion=completion, junit=report) if judged else [], errors


def run(
    hosts: Sequence[HostToJudge],
    *,
    deep: bool = False,
    completion: bool = True,
    junit: Path | None = None,
    collect: Collect | None = None,
) -> list[Verdict]:
    """Judge ``hosts``, all at once, and return one verdict each, in their order; see `hosts`.

    ``collect`` replaces the collector (tests). Raises UsageError for no hosts, BigironError when the checks cannot run.
    """
    if not hosts:
        raise UsageError("there is no host to verify", hint="./inv hosts lists what the inventory has")
    if not __debug__:
        raise UsageError("Python was told to leave out assertions, which are what the checks are", hint="unset PYTHONOPTIMIZE")
    with Hosts(hosts, deep=deep, completion=completion, collect=collect) as looked:
        looked.start()
        from bigiron.judge.suite import NEEDLESS, Suite, session

        suite = Suite(looked)
        arguments = [str(SUITE), f"--ignore={SITE}", "-s", "--assert=plain", "--import-mode=importlib", f"--rootdir={PROJECT}"]
        arguments += [word for name in NEEDLESS for word in ("-p", f"no:{name}")]
        code, said = session(arguments, suite, junit)
        if code not in (0, 1) or not suite.ended:
            raise BigironError(f"the checks could not run (pytest ended with {code}): {said}", where=str(SUITE))
        own = {}
        if any(host.site for host in hosts):
            from bigiron.judge import site

            own = site.run(looked, junit)
        return [replace(one, checks=[*one.checks, *own.get(one.host, [])]) for one in suite.verdicts()]
