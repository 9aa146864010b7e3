"""What the files in tests/state are written with: ``check`` marks a test as a check, and the plan and the facts it compares.

A check is an ordinary test function with ordinary asserts. Its fixtures are ``plan`` (`Plan`), ``found`` (`Facts`), ``note``
(what a person should read about it, passed or failed) and testinfra's own ``host``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest

from bigiron.judge.judged import Plan

PROVISION = "./inv provision --host {host}"
REPORT = "this is a fault of bigiron: report it with the output of ./inv verify --json"


def cannot_tell(reason: str) -> NoReturn:
    """Leave this check open: neither passed nor failed. It keeps the verdict from being ok unless it is not required."""
    pytest.skip(f"cannot tell: {reason}")


class Facts(Mapping[str, Any]):
    """What the collector found on the host. Asking for something that could not be looked at leaves the check open.

    So ``found["user"]["shell"]`` is the shell, or the end of the check with the reason why nobody could tell. `absent` is for
    what was seen not to be there, `get` for what may be missing without a consequence.
    """

    def __init__(self, facts: Mapping[str, Any], path: str = "") -> None:
        self._facts, self._path = facts, path

    def __getitem__(self, name: str) -> Any:
        value = self._facts.get(name)
        path = f"{self._path}.{name}" if self._path else name
        if value is None:
            cannot_tell(f"no fact {path} was collected")
        if isinstance(value, Mapping):
            if "error" in value:
                cannot_tell(str(value["error"]))
            return Facts(value, path)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def __contains__(self, name: object) -> bool:
        return name in self._facts

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it was collected, an ``{"error": ...}`` included."""
        return self._facts.get(name, default)

    def absent(self, *names: str) -> bool:
        """True when it was seen that the thing at ``names`` does not exist (as opposed to: could not be looked at)."""
        value: Any = self._facts
        for name in names:
            value = value.get(name, {}) if isinstance(value, Mapping) else {}
            if isinstance(value, Mapping) and value.get("missing"):
                return True
        return False


Values = Mapping[str, Any] | tuple[str, ...] | Callable[[Plan], Mapping[str, Any]]


@dataclass(frozen=True)
class Spec:
    """What `check` was given."""

    id: str
    remedy: str | Callable[[Plan], str]
    required: bool
    when: Callable[[Plan], bool]
    argument: str | None
    values: Values


@dataclass(frozen=True)
class Case:
    """One check on one host: a pytest item. ``value`` is what the test's own argument gets; ``broken`` is why it cannot run."""

    host: str
    id: str
    remedy: str
    required: bool = True
    value: Any = None
    broken: str | None = None


def check(
    id: str,  # noqa: A002
    remedy: str | Callable[[Plan], str] = PROVISION,
    *,
    required: bool = True,
    when: Callable[[Plan], bool] = lambda _plan: True,
    **each: Values,
) -> pytest.MarkDecorator:
    """Mark a test as the check ``id`` of the verdict, with the command that mends what it finds.

    ``remedy`` may hold ``{host}``, or be a function of the plan. ``when`` says for which plans there is such a check at all.
    One more keyword makes one check for each of several things: with ``shard=shards``, where ``shards(plan)`` is ``{name:
    value}``, the test's argument ``shard`` gets each value and the ids are ``id:name`` (or ``id`` with ``{name}`` filled in).
    A tuple of names does the same.
    """
    if len(each) > 1:
        raise TypeError(f"{id}: a check is made for each of one kind of thing, not of {', '.join(each)}")
    argument, values = next(iter(each.items()), (None, {}))
    return pytest.mark.check(Spec(id, remedy, required, when, argument, values))


def cases(spec: Spec, plan: Plan) -> list[Case]:
    """The checks that ``spec`` makes for one host. A plan that it cannot read leaves one check open, it hides no other."""
    try:
        if not spec.when(plan):
            return []
        remedy = spec.remedy(plan) if callable(spec.remedy) else spec.remedy.format(host=plan.host)
        if spec.argument is None:
            return [Case(plan.host, spec.id, remedy, spec.required)]
        values = spec.values(plan) if callable(spec.values) else spec.values
        pairs = values.items() if isinstance(values, Mapping) else zip(values, values, strict=True)
        pattern = spec.id if "{name}" in spec.id else spec.id + ":{name}"
        return [Case(plan.host, pattern.replace("{name}", name), remedy, spec.required, value) for name, value in pairs]
    except Exception as problem:  # noqa: BLE001 - whatever went wrong belongs in the verdict
        return [
            Case(plan.host, spec.id, REPORT, broken=f"this check cannot read the plan ({type(problem).__name__}: {problem})")
        ]
