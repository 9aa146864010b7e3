"""The fixtures of checks, and of a person's own tests: ``plan``, ``found``, ``note``, and testinfra's ``host``."""

from __future__ import annotations

from typing import Any

import pytest

from bigiron.judge.checks import Facts
from bigiron.judge.judged import Plan

NAME = "bigiron-judge"
"""Under which pytest keeps the `Suite`."""
HOST = "_judged"
"""The fixture that says which host a test is about; the others come from it."""


def _suite(request: pytest.FixtureRequest) -> Any:
    return request.config.pluginmanager.get_plugin(NAME)  # bigiron.judge.suite.Suite


@pytest.fixture(scope="module")
def _judged(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def plan(request: pytest.FixtureRequest, _judged: str) -> Plan:
    """The plan's role variables of the host: ``plan["llama_server_port"]``."""
    found: Plan = _suite(request).hosts.plans[_judged]
    return found


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, _judged: str) -> Facts:
    """What the collector found on the host; see `Facts`."""
    facts: Facts = _suite(request).facts[_judged]
    return facts


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest, _judged: str) -> Any:
    """Testinfra's host, by the connection settings of the inventory; each question to it is a round trip."""
    return _suite(request).hosts.for_tests(_judged)


@pytest.fixture(scope="session")
def note(request: pytest.FixtureRequest) -> Any:
    """``note(text, remedy="")``: what a person reads about this check, whether it passes or fails."""
    return _suite(request).note
