"""What runs on a host runs everywhere: standard library, relative imports, the grammar of Python 3.9; and every kind is complete."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from bigiron.paths import PROJECT

PACKAGE = PROJECT / "src" / "bigiron"
ONHOST = [PACKAGE / "errors.py", PACKAGE / "units.py", *sorted((PACKAGE / "onhost").rglob("*.py"))]
KINDS = sorted(path.stem for path in (PACKAGE / "onhost" / "kinds").glob("[a-z]*.py"))


def module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_all_of_it_imports_without_site_packages() -> None:
    names = [module(path) for path in ONHOST]
    program = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\nimport {', '.join(names)}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", ONHOST, ids=module)
def test_it_is_python_3_9_and_imports_the_standard_library_or_its_own(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    package = module(path).split(".") if path.name == "__init__.py" else module(path).split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert all(alias.name.partition(".")[0] in sys.stdlib_module_names for alias in node.names), ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            wanted = ".".join([*base, *filter(None, [node.module])])
            own = wanted.startswith("bigiron.onhost") or wanted in ("bigiron.errors", "bigiron.units")
            assert own or (wanted == "bigiron" and {alias.name for alias in node.names} <= {"errors", "units"}), ast.unparse(
                node
            )
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] in sys.stdlib_module_names, ast.unparse(node)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_looks_and_compares_in_one_file(kind: str) -> None:
    found = importlib.import_module(f"bigiron.onhost.kinds.{kind}")
    assert isinstance(found.SECTION, str)
    assert callable(found.observe)
    if kind not in {"boot", "compiler", "device", "disk", "group", "port"}:  # watched, never wanted
        assert callable(found.differs)
