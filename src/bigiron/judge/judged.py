"""The hosts of one verification: what is planned for each, what the collector found there, and the connection to it.

It does not import pytest, so that the connections are under way while pytest is loaded.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from bigiron.errors import BigironError, Unreachable
from bigiron.judge.verdict import Check
from bigiron.paths import PROJECT

if TYPE_CHECKING:
    from bigiron.fleet.connection import Connection
    from bigiron.fleet.inventory import Target

SUITE = PROJECT / "tests" / "state"
SITE = SUITE / "site"
AT_ONCE = 16


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


@dataclass(frozen=True)
class Plan(Mapping[str, Any]):
    """The plan's role variables of one host (docs/architecture.md), its name, and what the verifier was asked to do there."""

    host: str
    variables: Mapping[str, Any] = field(repr=False)
    deep: bool = False
    completion: bool = True

    def __getitem__(self, name: str) -> Any:
        return self.variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)


Collect = Callable[[HostToJudge, Callable[[], Mapping[str, Any]]], Mapping[str, Any]]
"""``(host, request) -> facts``. ``request()`` waits until it is known what to look at. Raises BigironError."""


SITE_TESTS = "bigiron_site_tests"


def site_folder(target: Target) -> Path | None:
    """Where the person's tests for a host are: the folder its inventory names, else tests/state/site; None when it has no test."""
    named = target.vars.get(SITE_TESTS)
    if named is None:
        return SITE if own_files(SITE) else None
    bases = [source if source.is_dir() else source.parent for source in map(Path, target.inventory.split(","))]
    places = [(base / Path(str(named)).expanduser()).resolve() for base in bases]
    return next((place for place in places if place.is_dir()), places[0])


def own_files(place: Path) -> list[Path]:
    return sorted([*place.rglob("test_*.py"), *place.rglob("*_test.py")])


def planned_unit_text(variables: Mapping[str, Any]) -> str:
    """The text of the unit that these role variables make."""
    from bigiron.render import render

    return render("llama-server.service", variables)


def _whole(expect: Mapping[str, Any]) -> Mapping[str, Any]:
    name = "llama_server_unit_text"
    return expect if name in expect else {**expect, name: planned_unit_text(expect)}


class Hosts:
    """Looks at all hosts at once, in the background; a context manager that ends the connections."""

    def __init__(
        self, hosts: Sequence[HostToJudge], *, deep: bool = False, completion: bool = True, collect: Collect | None = None
    ) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.plans = {host.name: Plan(host.name, _whole(host.expect), deep, completion) for host in hosts}
        self.seconds: dict[str, float] = {}
        self._collect = collect or self._over_ssh
        self._requests: dict[str, Mapping[str, Any]] = {}
        self._asked = threading.Event()
        self._found: dict[str, Future[Mapping[str, Any]]] = {}
        self._reached: dict[str, Any] = {}
        self._pool = ThreadPoolExecutor(min(AT_ONCE, len(hosts) or 1))
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._asked.set()
        self._pool.shutdown(cancel_futures=True)
        self._open.close()

    def start(self) -> None:
        """Connect to all hosts, once. What to look at there may be said later, with `ask`."""
        if self._found:
            return
        if self._collect == self._over_ssh:
            import bigiron.judge.collect  # noqa: F401 - here, once, for all threads
        self._found = {name: self._pool.submit(self._look, host) for name, host in self.hosts.items()}

    def ask(self, requests: Mapping[str, Mapping[str, Any]]) -> None:
        """Say what the collector is to look at, by host."""
        self._requests.update(requests)
        self._asked.set()

    def found(self, name: str) -> Mapping[str, Any] | Check:
        """The facts of a host, or the one check that says why there are none. Waits for them."""
        try:
            return self._found[name].result()
        except BigironError as problem:
            id_ = "connection" if isinstance(problem, Unreachable) else "collector"
            return Check(id_, False, problem.what, problem.hint or f"./inv probe --host {name}")

    def for_tests(self, name: str) -> Any:
        """Testinfra's ``host``, over the connection that the collector used; opened here when it was not."""
        return (self._reached.get(name) or self._reach(self.hosts[name])).for_tests()

    def _look(self, host: HostToJudge) -> Mapping[str, Any]:
        begin = time.monotonic()
        facts = self._collect(host, lambda: self._request(host.name))
        completion = facts.get("completion") or {}
        self.seconds[host.name] = time.monotonic() - begin - float(completion.get("seconds") or 0)
        return facts

    def _request(self, name: str) -> Mapping[str, Any]:
        self._asked.wait()
        return self._requests.get(name, {})

    def _over_ssh(self, host: HostToJudge, request: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self._reach(host).collect(request)
        return facts

    def _reach(self, host: HostToJudge) -> Any:
        from bigiron.judge import collect

        self._reached[host.name] = self._open.enter_context(collect.opened(host.target.connection))
        return self._reached[host.name]
