"""The pytest plugin: gives tests their hosts, plans and facts, and keeps what pytest made of each check for the verdicts."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bigiron.errors import BigironError
from bigiron.judge import fixtures
from bigiron.judge.checks import REPORT, Case, Facts, cases
from bigiron.judge.fixtures import HOST, NAME
from bigiron.judge.judged import Hosts, Plan
from bigiron.judge.verdict import Check, Verdict
from bigiron.paths import PROJECT

NEEDLESS = (
    "hypothesispytest", "timeout", "anyio", "xdist", "cacheprovider", "faulthandler", "unraisableexception", "threadexception",
    "doctest", "logging", "warnings",
)  # fmt: skip
"""pytest's plugins that no check uses; each costs something for every item."""


class NotJudged(pytest.Item):
    """Stands in a report for a host that could not be looked at."""

    def __init__(self, *, check: Check, **options: Any) -> None:
        super().__init__(**options)
        self.check = check

    def runtest(self) -> None:
        pytest.fail(self.check.detail, pytrace=False)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


class Suite:
    """One pytest session over ``hosts``. ``lost`` are hosts without a plan, and why."""

    __name__ = NAME  # under which pytest keeps it

    def __init__(self, hosts: Hosts, lost: Mapping[str, Check] | None = None) -> None:
        self.hosts = hosts
        self.facts: dict[str, Facts] = {}
        self.ended = False
        self.problems: list[str] = []
        self._lost = dict(lost or {})
        self._noted = ("", "")
        self._checks: dict[str, tuple[str, Check]] = {}

    def note(self, text: str, remedy: str = "") -> None:
        self._noted = (text, remedy)

    # What pytest calls

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "check(spec): a check of the verdict, see bigiron.judge.checks.check")
        config.addinivalue_line("markers", "case(case): the same on one host, made by bigiron.judge.suite")
        config.pluginmanager.register(fixtures, f"{NAME}-fixtures")  # after testinfra's own, whose ``host`` it replaces
        self.hosts.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        mark = metafunc.definition.get_closest_marker("check")
        if mark is None:
            if HOST in metafunc.fixturenames:
                names = self.names()
                metafunc.parametrize(HOST, names, indirect=True, scope="module", ids=names)
            return
        spec = mark.args[0]
        if HOST not in metafunc.fixturenames:
            raise BigironError(
                f"the check {spec.id} asks for none of plan, found and host", where=f"{metafunc.definition.path.name}"
            )
        made = [case for plan in self.hosts.plans.values() for case in cases(spec, plan)]
        arguments = [HOST] if spec.argument is None else [HOST, spec.argument]
        metafunc.parametrize(
            arguments,
            [
                pytest.param(
                    *((case.host, case.value)[: len(arguments)]), id=f"{case.host}-{case.id}", marks=pytest.mark.case(case)
                )
                for case in made
            ],
            indirect=[HOST],
            scope="module",
        )

    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Say what the collector is to look at, wait for it, and put one item for all checks of a host that was not seen."""
        items[:] = [item for item in items if item.get_closest_marker("check") is None or case_of(item)]
        self.hosts.ask({name: self._request(plan, items) for name, plan in self.hosts.plans.items()})
        for name in self.hosts.plans:
            seen = self.hosts.found(name)
            if isinstance(seen, Check):
                self._lost[name] = seen
            else:
                self.facts[name] = Facts(seen)
        items[:] = [item for item in items if host_of(item) not in self._lost]
        for name, check in self._lost.items():
            stand_in = NotJudged.from_parent(session, name=f"{name}-{check.id}", check=check)
            stand_in.user_properties += [("check", check.id), ("remedy", check.remedy)]
            items.append(stand_in)
            self._checks[stand_in.nodeid] = (name, check)
        for item in items:
            if case := case_of(item):
                self._checks[item.nodeid] = (case.host, Check(case.id, None, "never run", case.remedy, case.required))
                item.user_properties.append(("check", case.id))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._noted = ("", "")
        case = case_of(item)
        if case and case.broken:
            pytest.skip(f"cannot tell: {case.broken}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if (call.when == "call" or call.excinfo) and not isinstance(item, NotJudged):
            self.keep(item, call, report)
        return report

    def pytest_internalerror(self, excrepr: object) -> None:
        self.problems.append(str(excrepr).strip().rpartition("\n")[2])

    def pytest_sessionfinish(self) -> None:
        self.ended = True

    # What they do

    def names(self) -> list[str]:
        """The hosts that tests which are no checks of ours are about."""
        return list(self.hosts.plans)

    def _request(self, plan: Plan, items: list[pytest.Item]) -> dict[str, Any]:
        """What the ``look(plan)`` of each file of checks asks for, together."""
        request: dict[str, Any] = {"deep": plan.deep}
        modules = {item.path: module for item in items if (module := getattr(item, "module", None))}
        for path, module in modules.items():
            look = getattr(module, "look", None)
            try:
                wishes = look(plan) if look else {}
            except Exception as problem:  # noqa: BLE001 - whatever went wrong belongs in the verdict
                said = f"cannot tell: it is not known what to look at ({type(problem).__name__}: {problem})"
                name = f"{path.stem.removeprefix('test_')}.look"
                self._checks[f"{plan.host}-{name}"] = (plan.host, Check(name, None, said, REPORT))
                continue
            for name, value in wishes.items():
                if isinstance(value, list):
                    request[name] = sorted({*request.get(name, []), *value})
                else:
                    request[name] = {**request.get(name, {}), **value} if isinstance(value, dict) else value
        return request

    def keep(self, item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
        """Turn what became of an item into its check."""
        if item.nodeid not in self._checks:
            return
        host, check = self._checks[item.nodeid]
        detail, remedy = self._noted
        ok, said = outcome(call)
        if ok is None and not report.skipped:
            said, remedy = f"cannot tell: this check failed itself ({said})", REPORT
        words = getattr(item, "originalname", item.name).removeprefix("test_").replace("_", " ")
        remedy = remedy or check.remedy
        self._checks[item.nodeid] = (host, Check(check.id, ok, said or detail or words, remedy, check.required))
        if ok is not True:
            item.user_properties.append(("remedy", remedy))
            report.sections.append(("remedy", remedy))

    def checks(self) -> dict[str, list[Check]]:
        """By host, in the order in which they were collected."""
        made: dict[str, list[Check]] = {name: [] for name in (*self.hosts.plans, *self._lost)}
        for host, check in self._checks.values():
            made[host].append(check)
        return made

    def verdicts(self) -> list[Verdict]:
        return [
            Verdict(name, checks, any(check.id == "connection" for check in checks), self.hosts.seconds.get(name))
            for name, checks in self.checks().items()
        ]


def outcome(call: pytest.CallInfo[None]) -> tuple[bool | None, str]:
    """``(ok, why)`` of a call: true without an exception, false for an assertion, None for a skip or any other exception."""
    if call.excinfo is None:
        return True, ""
    problem = call.excinfo.value
    said = str(problem).partition("\nassert ")[0].strip()  # the rest is pytest's own explanation
    if isinstance(problem, AssertionError | pytest.fail.Exception):
        return False, "" if said.startswith("assert ") else said
    if isinstance(problem, pytest.skip.Exception):
        return None, said
    return None, f"{type(problem).__name__}: {said}"


def case_of(item: pytest.Item) -> Case | None:
    mark = item.get_closest_marker("case")
    return mark.args[0] if mark else None


def host_of(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get(HOST) if callspec else None


def session(arguments: Sequence[str], suite: Any, junit: Path | None) -> tuple[int, str]:
    """Run pytest here without a word on the terminal: its exit code, and the last thing it said."""
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
