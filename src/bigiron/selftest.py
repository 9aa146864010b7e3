"""``./inv lint`` and ``./inv test``: every check of the project, each by its own tool, pytest last."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bigiron.errors import UsageError
from bigiron.fleet.environment import clean_env
from bigiron.paths import PROJECT
from bigiron.units import duration

BIN = Path(sys.executable).parent
PYTHON_TREES = ("src", "tasks.py", "tests", "benchmarks", "plugins")
FAST = (
    ("ruff check", ("ruff", "check", "--quiet", *PYTHON_TREES)),
    ("ruff format", ("ruff", "format", "--check", "--quiet", *PYTHON_TREES)),
)
TYPES = (("mypy --strict", ("mypy", "--no-error-summary")),)
YAML = (("yamllint", ("yamllint", "--strict", ".")),)
ANSIBLE = (("ansible-lint", ("ansible-lint", "--offline", "--strict", "--profile", "production", "-q")),)


def lint(*, fast: bool = False) -> int:
    """Run the linters; returns 0 when all are clean, else 1. ``fast`` leaves out ansible-lint, the slow one."""
    return _all(FAST + TYPES + YAML + (() if fast else ANSIBLE))


def test(*, fast: bool, slow: bool, only: str, junit: str) -> int:
    """Lint, then pytest: the unit tests with ``fast``, else also roles, state and lab, with ``slow`` also what takes long there.

    Returns pytest's code, or 1 when lint failed. Raises UsageError for both at once.
    pytest runs even when a linter complains, so that one run shows everything; its summary is the last thing printed.
    """
    if fast and slow:
        raise UsageError("--fast and --slow exclude each other", where="test", hint="one of them, or neither")
    lint_code = lint(fast=fast)
    # unit tests share nothing and may run side by side; the lab's share a host and stay in order
    trees = ["tests/unit", "-n", "auto"] if fast else ["tests/unit", "tests/roles", "tests/lab", "--durations=8"]
    argv = [sys.executable, "-m", "pytest", *trees, "-ra"]
    argv += ["--slow"] if slow else []
    argv += ["-k", only] if only else []
    argv += ["--junitxml", junit] if junit else []
    code = subprocess.run(argv, cwd=PROJECT, env=_environment(), check=False).returncode
    if lint_code:
        print("the linters above found something", file=sys.stderr)
    return code or lint_code


def _all(checks: Sequence[tuple[str, Sequence[str]]]) -> int:
    worst = 0
    for name, argv in checks:
        started = time.monotonic()
        done = subprocess.run([str(BIN / argv[0]), *argv[1:]], cwd=PROJECT, env=_environment(), check=False)
        print(f"{name}: {'clean' if done.returncode == 0 else 'FAILED'} ({duration(time.monotonic() - started)})", flush=True)
        worst = worst or int(done.returncode != 0)
    return worst


def _environment() -> dict[str, str]:
    """ansible-lint calls ansible by name, so the environment's own programs come first."""
    environment = clean_env()
    environment["PATH"] = f"{BIN}{os.pathsep}{environment.get('PATH', os.defpath)}"
    return environment
