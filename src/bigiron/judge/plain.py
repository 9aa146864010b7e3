"""``pytest tests/state`` without ``./inv verify``: hosts and inventory from testinfra's own options, the plan made here."""

from __future__ import annotations

import pytest

from bigiron.errors import BigironError, Unreachable
from bigiron.judge.fixtures import NAME
from bigiron.judge.judged import Hosts, HostToJudge
from bigiron.judge.suite import Suite
from bigiron.judge.verdict import Check

INVENTORY = "inventory/lab"
HOWTO = (
    "these checks compare hosts with their plan, which is made from an inventory; name the hosts: "
    "pytest tests/state --hosts=ansible://NAME --ansible-inventory=inventory/lab (a group or a pattern will do), "
    "or: ./inv verify --host NAME"
)


def start(config: pytest.Config) -> None:
    """Plan the hosts that the command line names, and register the plugin. Raises pytest's UsageError for none or unknown ones."""
    from bigiron.fleet import inventory, survey

    pattern = ",".join(_patterns(config.option.hosts, config.option.connection))
    try:
        targets = inventory.load(config.option.ansible_inventory or INVENTORY).select(pattern)
        surveys, errors = survey.survey(targets)
    except BigironError as problem:
        raise pytest.UsageError(f"{problem}" + (f" ({problem.hint})" if problem.hint else "")) from None
    judged = [HostToJudge(name, one.target, one.plan.variables) for name, one in surveys.items()]
    lost = {
        name: Check("connection" if isinstance(error, Unreachable) else "plan", False, error.what, error.hint or "")
        for name, error in errors.items()
    }
    hosts = Hosts(judged, deep=config.getoption("deep", False), completion=not config.getoption("no_completion", False))
    config.add_cleanup(hosts.close)
    config.option.continue_on_collection_errors = True  # a broken file of a person's own hides no check of ours
    config.pluginmanager.register(PlainSuite(hosts, lost), NAME)


def _patterns(specs: str | None, connection: str | None) -> list[str]:
    """Ansible's host patterns from testinfra's ``--hosts`` (``ansible://NAME``, or NAME with ``--connection=ansible``)."""
    patterns = []
    for spec in (specs or "").split(","):
        scheme, found, rest = spec.rpartition("://")
        if (scheme if found else connection or "ansible") != "ansible":
            raise pytest.UsageError(f"{spec} is no host of an inventory; {HOWTO}")
        if rest:
            patterns.append(rest.partition("?")[0])
    if not patterns:
        raise pytest.UsageError(HOWTO)
    return patterns


class PlainSuite(Suite):
    """Prints the verdicts, and fails a run in which a required check stayed open: pytest alone takes a skip for success."""

    def pytest_sessionfinish(self, session: pytest.Session) -> None:  # type: ignore[override]
        super().pytest_sessionfinish()
        if session.exitstatus == pytest.ExitCode.OK and not session.config.option.collectonly:
            session.exitstatus = pytest.ExitCode(int(not all(verdict.ok for verdict in self.verdicts())))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for verdict in self.verdicts():
            terminalreporter.write_line(f"{verdict.host}: {verdict.summary()}")
