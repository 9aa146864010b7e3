"""A busy machine is not a bug: no test asserts how many seconds something took.

Finds what is written plainly, a difference of clock readings inside an assert; what hides it in a variable's name is a reviewer's to see.
"""

from __future__ import annotations

import ast

import pytest

from bigiron.paths import PROJECT

CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}


def timed_asserts(text: str) -> list[int]:
    """Lines of the asserts in ``text`` that subtract from a clock reading: ``assert time.monotonic() - began < 3``."""
    found = []
    for statement in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert)):
        for part in ast.walk(statement.test):
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) and _reads_a_clock(part.left):
                found.append(statement.lineno)
    return found


def _reads_a_clock(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in CLOCKS


def test_no_test_asserts_on_elapsed_time() -> None:
    files = sorted((PROJECT / "tests").rglob("*.py"))
    found = [
        f"{file.relative_to(PROJECT)}:{line}" for file in files for line in timed_asserts(file.read_text(encoding="utf-8"))
    ]
    assert found == [], "bound bytes, calls or CPU time instead; a speed belongs in benchmarks/"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x = 1\nassert time.monotonic() - began < 3", [2]),
        ("assert 0 < perf_counter() - began", [1]),
        ("assert a - time.time() < 3 and b", []),  # how long is left of a deadline
        ("while time.monotonic() - began < 60: pass", []),  # waiting for a condition is not judging by a clock
    ],
)
def test_what_counts(text: str, lines: list[int]) -> None:
    assert timed_asserts(text) == lines
