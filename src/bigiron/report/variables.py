"""The variables that a person may set: as a table, one of them in full, as JSON, and as the page docs/variables.md."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from bigiron.errors import UsageError
from bigiron.plan import wishes
from bigiron.plan.wishes import Variable
from bigiron.report import console

_HEAD = """# Variables

Set them in the inventory, in `group_vars/<group>/<part>.yml` or `host_vars`. Anything else that begins with a part's name is refused before a connection is
made, and so is a value that does not fit. `./inv vars NAME` explains one of them, `./inv vars --markdown` prints this page.
Those with a † are for `./inv` only; the others are variables of the role too, for a plain `ansible-playbook`.
"""


def show(name: str, *, as_json: bool, as_page: bool) -> int:
    """All settable variables, or everything about ``name``. Raises UsageError, with the near names, for an unknown one."""
    variables = settable()
    if name:
        if name not in wishes.schema():
            problem = wishes.unknown(name, variables)
            raise UsageError(problem.what, hint=problem.hint)
        if name not in variables:
            raise UsageError(f"{name} is given by the plan", hint="./inv plan --json shows its value")
    if as_json:
        console.print_json({each.name: document(each) for each in variables.values() if name in ("", each.name)})
    elif as_page:
        print(page(), end="")
    elif name:
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


def page() -> str:
    """docs/variables.md."""
    lines = [_HEAD]
    for part, members in itertools.groupby(settable().values(), key=lambda each: each.part):
        lines += [f"## {part}\n", "| variable | type | default | what |", "|---|---|---|---|"]
        for each in members:
            more = "; ".join(
                text if word == "must be" else f"{word}: {text}" for word, text in rules(each) if word != "example"
            )
            text = f"{what(each.option, '`')}{f' *{more}*' if more else ''}".replace("|", "\\|")
            lines.append(f"| `{each.name}`{' †' if each.wish else ''} | {kind(each)} | `{default(each)}` | {text} |")
        lines.append("")
    return "\n".join(lines)
