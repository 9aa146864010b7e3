"""No module imports, at whatever depth, one that leads back to it, nor one of a layer above its own (docs/architecture.md)."""

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bigiron.paths import PROJECT

ROOT = "bigiron"


def module_name(path: Path, source: Path) -> str:
    return ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")


def imports(tree: ast.AST, package: str, modules: set[str]) -> Iterator[str]:
    """What ``tree`` imports, in functions and for type checkers too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base


def graph(source: Path) -> dict[str, set[str]]:
    """Module -> the modules it imports; the root package, which is there for its version, left out."""
    files = {module_name(path, source): path for path in (source / ROOT).rglob("*.py")}
    found = {}
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[name] = set(imports(tree, package, set(files))) & set(files) - {name, ROOT}
    del found[ROOT]
    return found


def with_packages(modules: dict[str, set[str]]) -> dict[str, set[str]]:
    """The same, and the packages whose ``__init__`` Python runs on the way to what is imported from outside of them."""

    def above(other: str) -> list[str]:
        return [other.rsplit(".", depth)[0] for depth in range(1, other.count("."))]

    return {
        name: others | {each for other in others for each in above(other) if not f"{name}.".startswith(f"{each}.")}
        for name, others in modules.items()
    }


def layers(text: str) -> list[list[str]]:
    """The lines of the list in the docs, lowest first."""
    block = re.search(r"## Who may import whom\n.*?```\n(.*?)```", text, re.DOTALL)
    assert block
    return [line.split("#")[0].split() for line in block[1].splitlines()]


def layer(name: str, lines: list[list[str]]) -> int:
    """The line that names ``name`` or, else, the nearest package it is in."""
    while name != ROOT:
        for number, line in enumerate(lines):
            if name.removeprefix(f"{ROOT}.") in line:
                return number
        name = name.rpartition(".")[0]
    raise LookupError("not in the list of docs/architecture.md")


def upward(modules: dict[str, set[str]], lines: list[list[str]]) -> list[str]:
    return [
        f"{name} imports {other}"
        for name, others in sorted(modules.items())
        for other in sorted(others)
        if layer(other, lines) > layer(name, lines)
    ]


def test_no_module_leads_back_to_itself() -> None:
    modules = graph(PROJECT / "src")
    assert len(modules) > 50
    list(graphlib.TopologicalSorter(with_packages(modules)).static_order())


def test_nothing_imports_what_is_above_it() -> None:
    lines = layers((PROJECT / "docs/architecture.md").read_text(encoding="utf-8"))
    assert upward(graph(PROJECT / "src"), lines) == []


def test_only_the_front_door_and_its_tables_know_the_lab() -> None:
    users = {
        name
        for name, others in graph(PROJECT / "src").items()
        if any(f"{other}.".startswith("bigiron.lab.") for other in others) and not name.startswith("bigiron.lab.")
    }
    assert users == {"bigiron.targets", "bigiron.report.labs"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from bigiron.b.two import x", {"bigiron.b.two"}),
        ("import bigiron.b.two", {"bigiron.b.two"}),
        ("def f():\n    from bigiron.b import two", {"bigiron.b.two"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bigiron.c import X", {"bigiron.c"}),
        ("from .sibling import x", {"bigiron.a.sibling"}),
        ("from . import sibling", {"bigiron.a.sibling"}),
        ("from .. import c", {"bigiron.c"}),
        ("import json", set()),
    ],
)
def test_every_way_to_import_is_seen(tmp_path: Path, text: str, found: set[str]) -> None:
    for name in ("__init__", "a/__init__", "a/sibling", "b/__init__", "b/two", "c"):
        (tmp_path / ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ROOT / f"{name}.py").write_text("")
    (tmp_path / ROOT / "a/one.py").write_text(text)
    assert graph(tmp_path)["bigiron.a.one"] == found


def test_a_cycle_through_a_package_and_an_upward_import_are_found() -> None:
    modules = {"bigiron.a": {"bigiron.b.leaf"}, "bigiron.b": {"bigiron.a"}, "bigiron.b.leaf": set()}
    with pytest.raises(graphlib.CycleError):
        list(graphlib.TopologicalSorter(with_packages(modules)).static_order())
    lines = [["low", "high.leaf"], ["high"]]
    assert upward({"bigiron.low": {"bigiron.high", "bigiron.high.leaf"}, "bigiron.high": {"bigiron.low"}}, lines) == [
        "bigiron.low imports bigiron.high"
    ]
