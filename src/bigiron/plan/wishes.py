"""What a person may set in the inventory, and what one host's inventory says: known names only, typed, checked, defaults filled in.

Types, choices and defaults are in the roles' ``meta/argument_specs.yml`` and, for what only the planner reads, in
``schemas/wishes.yml``, which also holds what argument specs cannot say. Ansible's own validator reads them. It costs 80 ms of CPU to
import, so what it found good is kept by content (`_kept`); secrets are never part of the result, nor of what is kept.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bigiron.errors import UsageError
from bigiron.onhost.apikey import check_api_key
from bigiron.paths import PROJECT, cache_dir, write_atomic
from bigiron.plan import places, sources

__all__ = ["CHECKS", "GIVEN", "SCHEMA", "Variable", "check_api_key", "read", "schema", "unknown"]

SCHEMA = Path(__file__).parent / "schemas" / "wishes.yml"
COMPUTED = "Given by the plan."
"""How a role's spec marks a variable that the plan hands over: its description ends so."""
GIVEN = "(secret)"
"""Stands for a secret that the inventory has; without one the variable holds its default."""
CHECKS: dict[str, Callable[[Any], str | None]] = {
    "root": places.check_root,
    "listen": places.check_listen,
    "files": places.check_files,
    "arguments": places.check_arguments,
    "api_key": check_api_key,
}
_KEPT = 512  # results; a lab has about one per group


class Problem(NamedTuple):
    """What is wrong with the variable ``name``, and what would be right."""

    name: str
    what: str
    hint: str


class Variable(NamedTuple):
    """``option`` is its argument spec with what wishes.yml adds; ``wish``: only the planner reads it; ``computed``: no person sets it."""

    name: str
    part: str
    wish: bool
    computed: bool
    option: dict[str, Any]

    @property
    def secret(self) -> bool:
        return bool(self.option.get("no_log"))

    def rule(self, *, example: bool = True) -> str:
        """What a value must be, with an example."""
        phrase, low, high, good = (self.option.get(key) for key in ("phrase", "minimum", "maximum", "example"))
        if "choices" in self.option:
            return f"it must be one of: {', '.join(map(str, self.option['choices']))}"
        wanted = phrase or (f"between {low} and {high}" if low is not None else f"a value of type {self.option['type']}")
        shown = f"; for example {good}" if example and phrase and isinstance(good, str) else ""
        return f"it must be {wanted}{shown}"


def read(host: str, variables: Mapping[str, Any], sealed: Collection[str] = ()) -> dict[str, Any]:
    """Every variable that a person may set, typed, with its default where the inventory is silent.

    Secrets named in ``sealed`` are not opened; whoever opens one asks `check_api_key`. A secret that is given is `GIVEN` in the answer.
    Raises UsageError naming host, variable, value and what would be right, for all that is wrong at once.
    """
    known = schema()
    mine = [name for name in variables if _part(name)]
    secrets = {name for name in mine if name in known and known[name].secret}
    # what had to be opened may be secret, whatever its name: it is checked each time, kept nowhere and not shown
    private = {name for name in mine if name in sealed and name in known} - secrets
    values = {name: GIVEN if name in sealed and name not in private else variables[name] for name in mine}
    problems = [problem for name in sorted(secrets - {*sealed}) for problem in _secret(known[name], values[name])]
    values.update({name: GIVEN for name in secrets if values[name]})
    try:
        result = (
            _validated(values) if private else _kept(_digest(json.dumps(values, sort_keys=True)), lambda: _validated(values))
        )
    except _Wrong as wrong:
        problems += [
            Problem(one.name, f"{one.name} is not right (its value is secret)", known[one.name].rule())
            if one.name in private
            else one
            for one in wrong.problems
        ]
    if problems:
        first, *rest = problems
        also = f"; besides: {'; '.join(problem.what for problem in rest)}" if rest else ""
        raise UsageError(first.what, where=host, hint=first.hint + also)
    return dict(result)


def check_secret(host: str, name: str, value: Any) -> None:
    """Raise UsageError, without showing ``value``, when the secret ``name`` of ``host`` cannot work."""
    for problem in _secret(schema()[name], value):
        raise UsageError(problem.what, where=host, hint=problem.hint)


@cache
def schema() -> dict[str, Variable]:
    """All variables by name: those of the roles, and the wishes."""
    return {name: Variable(name, *rest) for name, *rest in _kept(_digest(""), _compile)}


def unknown(name: str, names: Collection[str]) -> Problem:
    """There is no variable of this name; the near ones."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return Problem(name, f"there is no variable {name}", f"{hint}./inv vars lists them all")


class _Wrong(Exception):
    def __init__(self, problems: list[Problem]) -> None:
        super().__init__()
        self.problems = problems


@cache
def _sources() -> tuple[Path, ...]:
    return (*sorted((PROJECT / "roles").glob("*/meta/argument_specs.yml")), SCHEMA)


@cache
def _parts() -> tuple[str, ...]:
    return tuple(path.parts[-3] for path in _sources()[:-1])


@cache
def _rules() -> hashlib._Hash:
    return hashlib.sha256(
        b"\0".join(file.read_bytes() for file in (*_sources(), Path(__file__), Path(places.__file__), Path(sources.__file__)))
    )


def _digest(text: str) -> str:
    """A name for what comes of ``text`` under today's specs, schema and code."""
    digest = _rules().copy()
    digest.update(text.encode())
    return digest.hexdigest()


def _part(name: str) -> str | None:
    """The role whose prefix ``name`` has; the longest, when one role's name begins another's."""
    return max((part for part in _parts() if name.startswith(f"{part}_")), key=len, default=None)


_memory: dict[str, Any] = {}


def _kept(key: str, make: Callable[[], Any]) -> Any:
    """``make()``, or what it returned before: in this process, or on disk. What it raises is not kept."""
    if key not in _memory:
        file = cache_dir("wishes") / f"{key}.json"
        try:
            _memory[key] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            _memory[key] = make()
            with contextlib.suppress(OSError):  # a full or read-only cache costs time, nothing else
                write_atomic(file, json.dumps(_memory[key]), 0o600)
                for old in sorted(file.parent.glob("*.json"), key=lambda each: each.stat().st_mtime, reverse=True)[_KEPT:]:
                    old.unlink(missing_ok=True)
    return _memory[key]


def _compile() -> list[tuple[Any, ...]]:
    import yaml

    # the C loader: 4 ms for four roles, the other takes 30
    load = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    *specs, wishes = (yaml.load(file.read_bytes(), load) for file in _sources())  # noqa: S506 - both are safe loaders
    options: dict[str, dict[str, Any]] = {}
    for spec in specs:
        options.update(spec["argument_specs"]["main"]["options"])
    compiled = [
        (name, _part(name), False, str(option["description"]).endswith(COMPUTED), {**option, **wishes.get(name, {})})
        for name, option in options.items()
    ]
    compiled += [(name, _part(name), True, False, wish) for name, wish in wishes.items() if name not in options]
    return compiled


def _validated(values: Mapping[str, Any]) -> dict[str, Any]:
    """The whole typed mapping for what the inventory sets. Raises _Wrong with everything that is not right."""
    settable = {name: variable for name, variable in schema().items() if not variable.computed}
    result = {name: variable.option.get("default") for name, variable in settable.items()}
    problems = []
    for name, value in values.items():
        if name not in schema():
            problems.append(unknown(name, settable))
        elif name not in settable:
            problems.append(Problem(name, f"{name} is given by the plan", "remove it; ./inv vars lists what can be set"))
        elif settable[name].secret:
            result[name] = value
        elif not _missing(settable[name], value):
            problems += _wrong(settable[name], value, result)
    problems += [
        Problem(
            name, f"{name} is not set", f"set it in the inventory (group_vars/<group>/{variable.part}.yml); {variable.rule()}"
        )
        for name, variable in settable.items()
        if _missing(variable, values.get(name, ""))
    ]
    if not {problem.name for problem in problems} & {name for name in settable if name.startswith("llama_cpp_")}:
        problems += [Problem(*each) for each in sources.problems(result)]
    if problems:
        raise _Wrong(problems)
    return result


def _missing(variable: Variable, value: Any) -> bool:
    """A role's own default (empty, or number 0) is no value of something that the plan needs."""
    return bool(variable.option.get("required")) and value in ("", 0)


def _wrong(variable: Variable, value: Any, result: dict[str, Any]) -> Iterator[Problem]:
    """What is wrong with one value; puts its typed form into ``result``."""
    name, option = variable.name, variable.option
    typed, refused = _typed(name, option, value)
    found = list(_converted(name, name, option, value, typed)) or refused
    yield from found
    if found:
        return
    result[name] = typed
    low, high = option.get("minimum"), option.get("maximum")
    if (low is not None and typed < low) or (high is not None and typed > high):
        yield Problem(name, f"{name} is {typed}", variable.rule())
    if pattern := option.get("pattern"):
        words = typed if isinstance(typed, list) else typed.values() if isinstance(typed, dict) else [typed]
        for word in words:
            if not isinstance(word, str) or not re.fullmatch(pattern, word, re.ASCII):
                yield Problem(name, f"{name} {'is' if typed is word else 'holds'} {_shown(word)}", variable.rule())
                return
    if reason := CHECKS[option["check"]](typed) if "check" in option else None:
        yield Problem(name, f"{name} {reason}", variable.rule())


def _secret(variable: Variable, value: Any) -> Iterator[Problem]:
    """What is wrong with a secret that stands in clear; says nothing of the value."""
    if not isinstance(value, str):
        yield Problem(variable.name, f"{variable.name} is no text", "quote it")
    elif reason := CHECKS[variable.option["check"]](value) if "check" in variable.option else None:
        yield Problem(variable.name, f"{variable.name} {reason}", variable.rule())


def _typed(name: str, option: dict[str, Any], value: Any) -> tuple[Any, list[Problem]]:
    """``value`` as Ansible's validator makes it, and what that says against it."""
    from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

    spec = {key: option[key] for key in ("type", "elements", "choices", "options") if key in option}
    answer = ArgumentSpecValidator({name: spec}).validate({name: value})
    problems = [Problem(name, f"{name}: {text}", f"see ./inv vars {name}") for text in answer.error_messages]
    if problems and "choices" in option:
        problems = [Problem(name, f"{name} is {_shown(value)}", f"it must be one of: {', '.join(map(str, option['choices']))}")]
    return answer.validated_parameters[name], problems


def _converted(name: str, place: str, option: Mapping[str, Any], raw: Any, typed: Any) -> Iterator[Problem]:
    """Where Ansible had to make another type of what stands there.

    It does so by rules that surprise (1 is "1", 0644 is "420", ~ is the controller's home): only a number written as text may be one.
    """
    kind = option.get("type", "str")
    if raw is None:
        yield Problem(name, f"{place} is set to nothing", "give it a value, or remove the line")
    elif kind == "list" and isinstance(raw, list) and isinstance(typed, list):
        of = {**option, "type": option.get("elements", "raw")}
        for index, (before, after) in enumerate(zip(raw, typed, strict=False)):
            yield from _converted(name, f"{place}[{index}]", of, before, after)
    elif kind == "dict" and isinstance(raw, dict) and isinstance(typed, dict):
        for key, inner in (option.get("options") or {}).items():
            if key in raw:
                yield from _converted(name, f"{place}.{key}", inner, raw[key], typed.get(key))
    elif kind == "bool" and isinstance(raw, str):
        yield Problem(name, f'{place} is the text "{raw}", not true or false', "write true or false without quotes")
    elif kind == "path" and isinstance(raw, str) and raw != typed:
        yield Problem(
            name, f'{place} is "{raw}"', f"write the path out: ~ and $ mean something else here ({typed}) than on the host"
        )
    elif kind in {"str", "path"} and isinstance(raw, bool | int | float):
        yield Problem(name, f"{place} is {_shown(raw)}, not text", "write it in quotes (YAML reads an unquoted 0644 as 420)")
    elif kind == "int" and (
        isinstance(raw, bool | float) or not (isinstance(raw, int) or re.fullmatch(r"-?\d+", str(raw), re.ASCII))
    ):
        yield Problem(name, f"{place} is {_shown(raw)}, not a whole number", "write a whole number")
    elif not isinstance(raw, {"list": list, "dict": dict, "bool": bool, "str": str, "path": str}.get(kind, object)):
        yield Problem(name, f"{place} is {_shown(raw)}, which is no {kind}", f"make it a {kind}")


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
