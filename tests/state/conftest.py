"""Turns hosts and plans into one pytest item per check.

``bigiron.fleet.verify`` registers the plugin that names the hosts; without it there is no plan to judge by, and all tests fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from bigiron.report.verdict import Check

from .subject import Subject

PLUGIN = "bigiron-judge"


def pytest_configure(config: pytest.Config) -> None:
    plugin = config.pluginmanager.get_plugin(PLUGIN)
    if plugin is not None:
        plugin.start()


def made(module: Any, subject: Subject) -> Iterable[Check]:
    """The checks of one module on one host. A fault of the judge itself leaves the rest of them open, it never hides a host."""
    try:
        yield from module.checks(subject)
    except Exception as problem:  # noqa: BLE001 - whatever went wrong belongs in the verdict
        area = module.__name__.rpartition("_")[2]
        detail = f"cannot tell: the judge stumbled ({type(problem).__name__}: {problem})"
        yield Check(
            f"{area}.judge", None, detail, "this is a fault of bigiron: report it with the output of ./inv verify --json"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "check" not in metafunc.fixturenames:
        return
    plugin = metafunc.config.pluginmanager.get_plugin(PLUGIN)
    if plugin is None:
        none = Check("judge", False, "this suite judges hosts by their plan, and there is none", "./inv verify --host NAME")
        metafunc.parametrize("check", [none], ids=["no-plan"])
        return
    found: list[tuple[str, Check]] = []
    for name, subject in plugin.subjects().items():
        if isinstance(subject, Subject):
            found += [(name, check) for check in made(metafunc.module, subject)]
        elif metafunc.module.__name__.endswith("test_host"):
            found.append((name, subject))
    for name, check in found:
        plugin.note(name, check)
    metafunc.parametrize(
        "check", [pytest.param(check, id=f"{name}-{check.id}") for name, check in found] or [pytest.param(None, id="nothing")]
    )


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Callable[[Check | None], None]:
    """Let the item end as its check says, and write the remedy into the report (and so into JUnit)."""

    def decide(check: Check | None) -> None:
        if check is None:
            pytest.skip("no host could be looked at")
        request.node.user_properties.append(("check", check.id))
        if check.ok is not True:
            request.node.user_properties.append(("remedy", check.remedy))
        if check.ok is None:
            pytest.skip(check.detail)
        if not check.ok:
            pytest.fail(f"{check.detail}\nremedy: {check.remedy}", pytrace=False)

    return decide
