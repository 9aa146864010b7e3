"""Runs the judge (``tests/state``: pytest and testinfra) on hosts and returns its verdicts.

A verdict is ok when no check is false and no required check is open. The judge looks with its own eyes: nothing here or there
reads what ``observe`` found or what Ansible reported.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from bigiron.errors import BigironError, Unreachable, UsageError
from bigiron.fleet.connection import Connection
from bigiron.paths import PROJECT
from bigiron.render import render
from bigiron.report.verdict import Check, Verdict

if TYPE_CHECKING:
    import pytest

SUITE = PROJECT / "tests" / "state"
AT_ONCE = 16
_NEEDLESS = (
    "no:hypothesispytest",
    "no:timeout",
    "no:anyio",
    "no:cacheprovider",
    "no:faulthandler",
    "no:unraisableexception",
    "no:doctest",
)

Look = Callable[["HostToJudge", Any], Mapping[str, Any]]
"""``(host, subject without facts) -> facts``: what ``onhost`` reports, with ``completion`` if wanted. Raises BigironError."""


class Reached(Protocol):
    """What the judge needs of an inventory host (`bigiron.fleet.inventory.Target` is one)."""

    @property
    def connection(self) -> Connection: ...


@dataclass(frozen=True)
class HostToJudge:
    """A host and what its plan expects: the role variables of docs/architecture.md, as plain data."""

    name: str
    target: Reached
    expect: Mapping[str, Any] = field(repr=False)


def run(
    hosts: Sequence[HostToJudge],
    *,
    deep: bool = False,
    junit: Path | None = None,
    completion: bool = True,
    look: Look | None = None,
) -> list[Verdict]:
    """Judge ``hosts``, all at once, and return one verdict each, in their order.

    ``deep`` reads every byte of release and model; ``junit`` is where pytest writes its JUnit report; ``completion`` asks each
    server for one completion; ``look`` replaces the eyes (tests). Raises UsageError for no hosts, BigironError when the suite
    cannot run.
    """
    import pytest

    if not hosts:
        raise UsageError("there is no host to judge", hint="./inv hosts lists what the inventory has")
    plugin = _Judge([_completed(host) for host in hosts], deep=deep, completion=completion, look=look)
    arguments = [
        str(SUITE),
        "-q",
        "-s",
        "--assert=plain",
        "--color=no",
        "--no-header",
        "-o",
        "addopts=",
        "--import-mode=importlib",
    ]
    arguments += [f"--rootdir={PROJECT}", "-c", str(PROJECT / "pyproject.toml"), "-W", "ignore", "--tb=line"]
    arguments += [word for name in _NEEDLESS for word in ("-p", name)]
    if junit is not None:
        arguments.append(f"--junitxml={junit}")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = pytest.main(arguments, plugins=[plugin])
    plugin.close()
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not plugin.ended:
        tail = " ".join(said.getvalue().split())[-400:]
        raise BigironError(f"the judge could not do its work (pytest ended with {int(code)}): {tail}", where=str(SUITE))
    return plugin.verdicts()


def _completed(host: HostToJudge) -> HostToJudge:
    if "llama_server_unit_text" in host.expect:
        return host
    return replace(host, expect={**host.expect, "llama_server_unit_text": render("llama-server.service", host.expect)})


def suite_module(name: str) -> ModuleType:
    """A module of tests/state under the name pytest gives it, so that both use the same classes."""
    full = f"{SUITE.name}.{name}" if name else SUITE.name
    if full in sys.modules:
        return sys.modules[full]
    if name:
        suite_module("")
    path = SUITE / f"{name or '__init__'}.py"
    spec = importlib.util.spec_from_file_location(full, path, submodule_search_locations=None if name else [str(SUITE)])
    if spec is None or spec.loader is None:
        raise BigironError("the judge's suite is missing", where=str(path), hint="run from a whole checkout of bigiron")
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    spec.loader.exec_module(module)
    return module


def _look(host: HostToJudge, subject: Any) -> Mapping[str, Any]:
    """The real eyes: one connection, one command, and one more for the completion."""
    eyes = suite_module("eyes")
    with eyes.opened(host.target.connection) as opened:
        begin = time.monotonic()
        facts = opened.collect(subject.request())
        facts["looked_s"] = time.monotonic() - begin
        if subject.completion:
            facts.update(opened.collect(subject.completion_request()))
    return dict(facts)


class _Judge:
    """The pytest plugin: looks while pytest collects, hands subjects to the suite, keeps what pytest made of each check."""

    __name__ = "bigiron-judge"

    def __init__(self, hosts: Sequence[HostToJudge], *, deep: bool, completion: bool, look: Look | None) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._deep, self._completion, self._look = deep, completion, look or _look
        self._pool = ThreadPoolExecutor(min(AT_ONCE, len(self._hosts)))
        self._futures: dict[str, Future[Any]] = {}
        self._subjects: dict[str, Any] | None = None
        self._noted: dict[int, str] = {}
        self._checks: dict[str, tuple[str, Check]] = {}
        self._outcomes: dict[str, str] = {}
        self.ended = False

    def start(self) -> None:
        """Look at all hosts at once, while pytest collects. The modules are loaded here, for all threads."""
        suite_module("subject")
        if self._look is _look:
            suite_module("eyes")
        self._futures = {name: self._pool.submit(self._look_at, host) for name, host in self._hosts.items()}

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _look_at(self, host: HostToJudge) -> Any:
        subject = suite_module("subject").Subject(host.name, host.expect, {}, self._deep, self._completion)
        try:
            return replace(subject, facts=self._look(host, subject))
        except BigironError as problem:
            hint = problem.hint or f"./inv probe --host {host.name}"
            state = "connection" if isinstance(problem, Unreachable) else "eyes"
            return Check(state, False, problem.what, hint)

    def subjects(self) -> dict[str, Any]:
        """By host: a ``Subject``, or the one check that says why there is none."""
        if self._subjects is None:
            self._subjects = {name: future.result() for name, future in self._futures.items()}
        return self._subjects

    def note(self, host: str, check: Check) -> None:
        """The suite says whose check this is, before pytest makes an item of it."""
        self._noted[id(check)] = host

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            callspec = getattr(item, "callspec", None)
            check = callspec.params.get("check") if callspec else None
            if isinstance(check, Check):
                self._checks[item.nodeid] = (self._noted[id(check)], check)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        self.ended = True

    def verdicts(self) -> list[Verdict]:
        """What pytest made of the checks: passed is true, failed is false, skipped or never run is open."""
        meaning = {"passed": True, "failed": False}
        found: dict[str, list[Check]] = {name: [] for name in self._hosts}
        for nodeid, (host, check) in self._checks.items():
            found[host].append(replace(check, ok=meaning.get(self._outcomes.get(nodeid, ""))))
        verdicts = []
        for name, checks in found.items():
            subject = self.subjects().get(name)
            if subject is None or isinstance(subject, Check):
                verdicts.append(Verdict(name, checks, unreachable=subject is not None and subject.id == "connection"))
            else:
                verdicts.append(Verdict(name, checks, seconds=subject.facts.get("looked_s")))
        return verdicts
