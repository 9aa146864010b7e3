"""The variables that a person may set: as a table, one of them in full, as JSON, and as a role's README."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from bigiron.errors import UsageError
from bigiron.parts import NAMES
from bigiron.paths import PROJECT
from bigiron.plan import wishes
from bigiron.plan.wishes import Variable
from bigiron.report import console

_HEAD = """# {part}

{about}.

Set these in the inventory, in `group_vars/<group>/{part}.yml` or `host_vars`. Any other name that begins with `{part}_` is refused before a connection
is made, and so is a value that does not fit. Those with a † are for `./inv` only; the others are variables of this role too, for a plain
`ansible-playbook`. What the plan gives the role besides is in `meta/argument_specs.yml`.
"""

_NOTHING = """# {part}

{about}.

There is nothing to set: what the plan gives this role is in `meta/argument_specs.yml`.
"""


def show(name: str, *, as_json: bool, as_page: bool) -> int:
    """All settable variables, those of the part ``name``, or everything about the one ``name``.

    Raises UsageError, with the near names, for an unknown one.
    """
    variables = settable()
    if as_page or name in (*NAMES, *(each.part for each in variables.values())):
        if as_page and name not in NAMES:
            hint = f"the parts are {', '.join(NAMES)}; ./inv vars PART --markdown prints roles/PART/README.md"
            raise UsageError(f"{name!r} is no part", hint=hint)
        variables = {key: each for key, each in variables.items() if each.part == name}
    elif name and name not in variables:
        if name in wishes.schema():
            raise UsageError(f"{name} is given by the plan", hint="./inv plan --json shows its value")
        problem = wishes.unknown(name, variables)
        raise UsageError(problem.what, hint=problem.hint)
    elif name:
        variables = {name: variables[name]}
    if as_page:
        print(page(name), end="")
    elif as_json:
        console.print_json({each.name: document(each) for each in variables.values()})
    elif name in NAMES and not variables:
        print(f"part {name} has nothing to set: the plan decides")
    elif name in variables:
        _one(variables[name])
    else:
        for part, members in itertools.groupby(variables.values(), key=lambda each: each.part):
            rows = [(each.name, kind(each), default(each), each.option.get("unit", ""), what(each.option)) for each in members]
            console.table(("variable", "type", "default", "unit", "what"), rows, title=part)
    return 0


def settable() -> dict[str, Variable]:
    """What a person may set, by part and name."""
    found = sorted((each for each in wishes.schema().values() if not each.computed), key=lambda each: (each.part, each.name))
    return {each.name: each for each in found}


def document(variable: Variable) -> dict[str, Any]:
    """A variable as data: its argument spec, what wishes.yml adds, its part, and whether only the planner reads it."""
    return {"part": variable.part, "wish": variable.wish, **variable.option, "description": what(variable.option)}


def what(option: Mapping[str, Any], quote: str = "") -> str:
    """The description without Ansible's markup."""
    return re.sub(r"\b[A-Z]\(([^)]*)\)", rf"{quote}\1{quote}", str(option["description"]))


def kind(variable: Variable) -> str:
    """``int``, ``list of str``."""
    elements = variable.option.get("elements")
    return f"{variable.option['type']} of {elements}" if elements else str(variable.option["type"])


def default(variable: Variable) -> str:
    """The default as YAML, or that there is none."""
    if variable.option.get("required"):
        return "(required)"
    return json.dumps(variable.option["default"]).strip('"') if variable.option["default"] != "" else '""'


def rules(variable: Variable) -> Iterable[tuple[str, str]]:
    """What a value must be beyond its type, as (word, text)."""
    option = variable.option
    if {"choices", "phrase", "minimum"} & option.keys():
        yield "must be", variable.rule(example=False).removeprefix("it must be ")
    if "unit" in option:
        yield "unit", option["unit"]
    if variable.secret:
        yield "secret", "keep it in ansible-vault; it is shown nowhere"
    for name, inner in option.get("options", {}).items():
        more = ", required" if inner.get("required") else f", {inner['default']}" if "default" in inner else ""
        yield f".{name}", f"{inner['type']}{more}. {what(inner)}"
    if "example" in option:
        yield "example", f"{variable.name}: {json.dumps(option['example'])}"


def _one(variable: Variable) -> None:
    print(f"{variable.name} ({variable.part})\n  {what(variable.option)}")
    who = "./inv only" if variable.wish else f"./inv and role {variable.part}"
    for word, text in (("type", kind(variable)), ("default", default(variable)), *rules(variable), ("read by", who)):
        print(f"  {word:<9} {text}")


def page(part: str) -> str:
    """``roles/<part>/README.md``."""
    import yaml

    specs = yaml.safe_load((PROJECT / "roles" / part / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
    about = specs["argument_specs"]["main"]["short_description"]
    if not any(each.part == part for each in settable().values()):
        return _NOTHING.format(part=part, about=about)
    lines = [_HEAD.format(part=part, about=about)]
    lines += ["| variable | type | default | what |", "|---|---|---|---|"]
    for each in settable().values():
        if each.part == part:
            more = "; ".join(
                text if word == "must be" else f"{word}: {text}" for word, text in rules(each) if word != "example"
            )
            text = f"{what(each.option, '`')}{f' *{more}*' if more else ''}".replace("|", "\\|")
            lines.append(f"| `{each.name}`{' †' if each.wish else ''} | {kind(each)} | `{default(each)}` | {text} |")
    return "\n".join([*lines, ""])
