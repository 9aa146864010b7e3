"""The verifier: runs tests/state (pytest and testinfra) on hosts and makes verdicts.

A verdict is ok when no check is false and no required check is open. Nothing here reads what ``observe`` found or what Ansible
reported; what it compares the plan with is collected by `bigiron.judge.collector`.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bigiron.errors import BigironError, UsageError
from bigiron.paths import PROJECT

if TYPE_CHECKING:
    from bigiron.fleet.connection import Connection
    from bigiron.fleet.inventory import Target
    from bigiron.judge.judged import Collect
    from bigiron.judge.verdict import Verdict

SUITE = PROJECT / "tests" / "state"
SITE = SUITE / "site"
_NEEDLESS = (
    "hypothesispytest", "timeout", "anyio", "xdist", "cacheprovider", "faulthandler", "unraisableexception", "threadexception",
    "doctest", "logging", "warnings",
)  # fmt: skip
"""pytest's plugins that no check uses; each costs something for every item."""


class Reachable(Protocol):
    """What the verifier needs of an inventory host (`bigiron.fleet.inventory.Target` is one)."""

    @property
    def connection(self) -> Connection: ...


@dataclass(frozen=True)
class HostToJudge:
    """A host and what its plan expects: the role variables of docs/architecture.md, as plain data.

    ``expect`` also has ``llama_server_unit_text``, the planned text of the unit (`planned_unit_text` when it is not there).
    ``site`` is the folder of the person's own tests for it.
    """

    name: str
    target: Reachable
    expect: Mapping[str, Any] = field(repr=False)
    site: Path | None = None


def hosts(
    targets: Sequence[Target], *, deep: bool = False, completion: bool = True, junit: str | None = None
) -> tuple[list[Verdict], dict[str, BigironError]]:
    """Plan ``targets`` from what they are, and judge them by it, a person's own tests included.

    Returns a verdict for every host that can be planned, and the errors of the others. ``deep`` reads every byte of release
    and model; ``completion`` asks each server for one; ``junit`` is where a JUnit report is written.
    """
    from bigiron.fleet import survey
    from bigiron.judge.judged import site_folder

    surveys, errors = survey.survey(targets)
    judged = [HostToJudge(name, one.target, one.plan.variables, site_folder(one.target)) for name, one in surveys.items()]
    report = Path(junit) if junit else None
    return run(judged, deep=deep, completion=completion, junit=report) if judged else [], errors


def planned_unit_text(variables: Mapping[str, Any]) -> str:
    """The text of the unit that these role variables make."""
    from bigiron.parts.render import render

    return render("llama-server.service", variables)


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
    from bigiron.judge.judged import Hosts

    if not hosts:
        raise UsageError("there is no host to verify", hint="./inv hosts lists what the inventory has")
    if not __debug__:
        raise UsageError("Python was told to leave out assertions, which are what the checks are", hint="unset PYTHONOPTIMIZE")
    with Hosts(hosts, deep=deep, completion=completion, collect=collect) as looked:
        looked.start()
        from bigiron.judge.suite import Suite

        suite = Suite(looked)
        arguments = [str(SUITE), f"--ignore={SITE}", "-s", "--assert=plain", "--import-mode=importlib", f"--rootdir={PROJECT}"]
        arguments += [word for name in _NEEDLESS for word in ("-p", f"no:{name}")]
        code, said = session(arguments, suite, junit)
        if code not in (0, 1) or not suite.ended:
            raise BigironError(f"the checks could not run (pytest ended with {code}): {said}", where=str(SUITE))
        own = {}
        if any(host.site for host in hosts):
            from bigiron.judge import site

            own = site.run(looked, junit)
        return [replace(one, checks=[*one.checks, *own.get(one.host, [])]) for one in suite.verdicts()]


def session(arguments: Sequence[str], suite: Any, junit: Path | None) -> tuple[int, str]:
    """Run pytest here without a word on the terminal: its exit code, and the last thing it said."""
    import pytest

    settings = [
        "-q",
        "--color=no",
        "--no-header",
        "--tb=line",
        "-W",
        "ignore",
        "-o",
        "addopts=",
        "-c",
        str(PROJECT / "pyproject.toml"),
    ]
    report = [f"--junitxml={junit}"] if junit else []
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = int(pytest.main([*arguments, *settings, *report], plugins=[suite]))
    if code == pytest.ExitCode.INTERRUPTED and not suite.ended:
        raise KeyboardInterrupt
    return code, " ".join(suite.problems or said.getvalue().split())[-400:]
