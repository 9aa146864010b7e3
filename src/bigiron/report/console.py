"""Plain text and tables for the terminal. Results go to stdout; rich is imported only when a table is drawn."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bigiron.errors import BigironError
from bigiron.units import count

if TYPE_CHECKING:
    from rich.console import Console

    from bigiron.parts.difference import Difference


def print_json(document: object) -> None:
    print(json.dumps(document, indent=1, default=str))


def say(text: str) -> None:
    """One line for a person while work goes on: stderr, so that stdout stays the result."""
    print(text, file=sys.stderr, flush=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table on stdout."""
    from rich import box
    from rich.table import Table

    drawn = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*(str(cell) for cell in row))
    terminal().print(drawn)


def terminal() -> Console:
    """Stdout, as wide as $COLUMNS or else the terminal says; wide in a pipe."""
    from rich.console import Console

    width = max(20, shutil.get_terminal_size((160, 24)).columns)
    return Console(width=width, highlight=False, markup=False)


def differences(host: str, found: Sequence[Difference], *, diffs: bool = True) -> None:
    """What differs on ``host``: one line each, file diffs below theirs; missing packages share a line."""
    if not found:
        print(f"{host}: in sync")
        return
    print(f"{host}: {count(len(found), 'difference')}")
    absent = [each for each in found if each.resource.startswith("package:") and each.problem == "not installed"]
    missing = [each.resource.split(":", 1)[1] for each in absent]
    if missing:
        print(f"  base          packages not installed: {', '.join(missing)}")
    for each in found:
        if each in absent:
            continue
        kind, _, name = each.resource.partition(":")
        print(f"  {each.part:<13} {kind} {name}: {each.problem}" if name else f"  {each.part:<13} {kind}: {each.problem}")
        if diffs and each.text:
            for line in each.text.splitlines():
                print(f"      {line}")


def speeds(measured: Mapping[str, Any]) -> str:
    """``"prefill 210 tok/s, generation 31.2 tok/s"``."""
    return f"prefill {measured['prefill_tps']:.1f} tok/s, generation {measured['generation_tps']:.1f} tok/s"


def error(problem: BigironError) -> None:
    """One problem of one host: what and where, then what to do next; on stderr."""
    print(f"error: {problem}", file=sys.stderr)
    if problem.hint:
        print(f"  {problem.hint}", file=sys.stderr)
