"""A person's own testinfra files: run in a pytest session of their own, so that a broken one hides nothing but itself."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bigiron.judge.checks import Facts
from bigiron.judge.judged import SITE_TESTS, Hosts, own_files
from bigiron.judge.suite import Suite, host_of, outcome, session
from bigiron.judge.verdict import Check


def run(hosts: Hosts, junit: Path | None) -> dict[str, list[Check]]:
    """The checks of the person's tests, by host. Hosts that could not be looked at have none."""
    by_folder: dict[Path, list[str]] = {}
    for name, host in hosts.hosts.items():
        if host.site and not isinstance(hosts.found(name), Check):
            by_folder.setdefault(host.site, []).append(name)
    made: dict[str, list[Check]] = {}
    for place, names in by_folder.items():
        for name, checks in _run(hosts, place, names, junit).items():
            made.setdefault(name, []).extend(checks)
    return made


def _run(hosts: Hosts, place: Path, names: list[str], junit: Path | None) -> dict[str, list[Check]]:
    def failed(why: str) -> dict[str, list[Check]]:
        return {name: [Check("site", False, why, f"mend {place}")] for name in names}

    if not own_files(place):
        return failed(
            f"{place} holds no file of tests" if place.is_dir() else f"{SITE_TESTS} names {place}, which is no folder"
        )
    suite = SiteSuite(hosts, place, names)
    arguments = [
        str(place),
        f"--rootdir={place}",
        f"--confcutdir={place}",
        "--continue-on-collection-errors",
        "-p",
        "no:cacheprovider",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "site.xml" if junit else None
        try:
            with _forgotten(place):
                code, said = session(arguments, suite, report)
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - a file of theirs may raise anything while it is imported
            code, said = -1, f"{type(problem).__name__}: {problem}"
        if junit and report and report.exists():
            _merge(junit, report)
    checks = suite.checks()
    if code not in (0, 1) or not any(checks.values()):
        why = (
            f"{place} holds no test"
            if code == pytest.ExitCode.NO_TESTS_COLLECTED
            else f"the run of the tests ended early: {said}"
        )
        checks = {name: [*checks[name], *more] for name, more in failed(why).items()}
    return checks


@contextlib.contextmanager
def _forgotten(place: Path) -> Iterator[None]:
    """Forget afterwards what was imported from ``place``: another folder may have files of the same names."""
    path = sys.path[:]
    try:
        yield
    finally:
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(f"{place}{os.sep}"):
                del sys.modules[name]


def _merge(junit: Path, other: Path) -> None:
    """Add the test suites of one JUnit report to another."""
    with contextlib.suppress(ET.ParseError):
        document = ET.parse(junit)  # noqa: S314 - both are written by pytest, here and now
        document.getroot().extend(ET.parse(other).getroot())  # noqa: S314
        document.write(junit, encoding="utf-8", xml_declaration=True)


def _named(nodeid: str) -> str:
    file, *rest = nodeid.split("::")
    return "::".join([f"site.{file.removesuffix('.py')}".rstrip("."), *rest])


class SiteSuite(Suite):
    """The session over one folder of a person's tests."""

    def __init__(self, hosts: Hosts, place: Path, names: list[str]) -> None:
        super().__init__(hosts)
        self._place, self._names = place, names
        self._made: dict[tuple[str, str], Check] = {}

    def names(self) -> list[str]:
        return self._names

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            lines = [line.removeprefix("E ").strip() for line in str(report.longrepr).splitlines() if line.strip()]
            told = [line for line in lines if "Error" in line or "Exception" in line] or lines or ["it cannot be read"]
            file = self._place / report.nodeid
            self._put(_named(report.nodeid), self._names, False, told[-1], f"mend {file}")

    @pytest.hookimpl(trylast=True)  # their own conftest.py may leave items out
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:  # noqa: ARG002
        for name in self._names:
            found = self.hosts.found(name)
            self.facts[name] = Facts({} if isinstance(found, Check) else found)
        for item in items:
            for host in self._hosts_of(item):
                self._made[host, self._id(item)] = Check(self._id(item), None, "never run", f"mend {self._place}")

    def keep(self, item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
        """A skip, or a failure that is expected, is open and may stay so; any other exception is a failure."""
        said = outcome(call)[1] or self._noted[0]
        if not said and call.excinfo:
            explained = str(call.excinfo.value).partition("\n")[0]
            said = str(call.excinfo.traceback[-1].statement).strip() + (f" ({explained})" if explained else "")
        where = {"setup": "before the test: ", "teardown": "after the test: "}.get(call.when, "") if report.failed else ""
        remedy = f"mend the host, or {self._place / item.location[0]}:{(item.location[1] or 0) + 1}"
        detail = where + (said or str(report.longrepr or "passed"))
        for host in self._hosts_of(item):
            before = self._made.get((host, self._id(item)))
            if report.when == "call" or not (before and before.ok is False):
                ok = None if report.skipped else report.passed
                self._put(self._id(item), [host], ok, detail, remedy, required=not report.skipped)

    def _hosts_of(self, item: pytest.Item) -> list[str]:
        """A test that asks for nothing of a host is about all of them."""
        host = host_of(item)
        return [host] if host else self._names

    def _id(self, item: pytest.Item) -> str:
        """``site.test_file::test_name``, with the test's own parameters but without the host's name."""
        host, callspec, name = host_of(item), getattr(item, "callspec", None), item.nodeid
        if host and callspec:
            rest = callspec.id.removeprefix(host).removeprefix("-")
            name = name.removesuffix(f"[{callspec.id}]") + (f"[{rest}]" if rest else "")
        return _named(name)

    def _put(self, id_: str, hosts: list[str], ok: bool | None, detail: str, remedy: str, *, required: bool = True) -> None:
        for host in hosts:
            self._made[host, id_] = Check(id_, ok, detail, "" if ok else remedy, required)

    def checks(self) -> dict[str, list[Check]]:
        made: dict[str, list[Check]] = {name: [] for name in self._names}
        for (host, _), check in self._made.items():
            made[host].append(check)
        return made
