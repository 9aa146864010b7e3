"""A program sent as text: the protocol, and that it works on the oldest Python and leaves nothing behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bigiron.errors import BigironError, Refused
from bigiron.fleet import hostprogram

MARKER = "BIGIRON-test"
PACKAGE = {
    "__init__.py": "",
    "leaf.py": "from __future__ import annotations\nVALUE = 'ä'\n",
    "entry.py": """
from __future__ import annotations
import os, sys
from . import leaf
from .deep.inner import (
    DOUBLE,  # a comment
)
from ..errors import BigironError, Refused

def main(request):
    print("noise that is not an answer")
    os.system("echo more noise")
    if request.get("refuse"):
        raise Refused("disk too small", where="/srv", hint="buy one")
    if request.get("crash"):
        raise ValueError("odd\\nvalue")
    answer = {"value": leaf.VALUE, "double": DOUBLE * request["n"]}
    return {**answer, "stdin": sys.stdin.read(), "bytecode": sys.dont_write_bytecode}
""",
    "deep/__init__.py": "raise RuntimeError('a parent that is only a parent is sent empty')\n",
    "deep/inner.py": "DOUBLE = 2\n",
}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    root = tmp_path / "bigiron"
    (root / "sample" / "deep").mkdir(parents=True)
    shutil.copy(hostprogram._PACKAGE / "errors.py", root / "errors.py")
    for name, text in PACKAGE.items():
        (root / "sample" / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(hostprogram, "_PACKAGE", root)
    hostprogram.build.cache_clear()
    yield hostprogram.build("bigiron.sample.entry:main")
    hostprogram.build.cache_clear()


def pythons() -> list[str]:
    found = [sys.executable]
    for version in ("3.9", "3.13"):
        built = next(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")), None)
        path = built or shutil.which(f"python{version}")
        found += [path] if path else []
    return found


def run(
    program: bytes, request: dict[str, Any], python: str | None = None, before: bytes = b"", cwd: Path | None = None
) -> Any:
    script = hostprogram.shell_script(MARKER, python)
    data = before + hostprogram.payload(program, request, MARKER)
    return subprocess.run(["sh", "-c", script], input=data, capture_output=True, check=False, cwd=cwd)


@pytest.mark.parametrize("python", [None, *pythons()])
def test_the_answer_comes_through_the_noise(program: bytes, python: str | None, tmp_path: Path) -> None:
    empty = tmp_path / "cwd"
    empty.mkdir()
    done = run(program, {"n": 3}, python, before=b"stray password\nimport os; os.abort()\n", cwd=empty)
    assert hostprogram.parse(b"motd without newline" + done.stdout + b"bye", MARKER, "h") == {
        "value": "ä",
        "double": 6,
        "stdin": "",
        "bytecode": True,
    }
    assert b"noise" in done.stderr
    assert b"noise" not in done.stdout
    assert list(empty.iterdir()) == []


def test_errors_come_back_typed(program: bytes) -> None:
    with pytest.raises(Refused, match="disk too small") as caught:
        hostprogram.parse(run(program, {"refuse": True}).stdout, MARKER, "h")
    assert (caught.value.where, caught.value.hint) == ("h: /srv", "buy one")
    with pytest.raises(BigironError, match="ValueError: odd") as crash:
        hostprogram.parse(run(program, {"crash": True}).stdout, MARKER, "h")
    assert "bigiron.sample.entry:" in str(crash.value.hint)


def test_half_a_program_is_not_run(program: bytes) -> None:
    data = hostprogram.payload(program, {"n": 1}, MARKER)[: len(program) // 2]
    done = subprocess.run(["sh", "-c", hostprogram.shell_script(MARKER, None)], input=data, capture_output=True, check=False)
    assert done.stdout == f"{MARKER} READY\n".encode()
    assert hostprogram.parse(done.stdout, MARKER, "h") is None


def test_an_answer_cut_short_is_no_answer() -> None:
    assert hostprogram.parse(f'{MARKER} {{"ok": {{}}'.encode(), MARKER, "h") is None
    assert hostprogram.parse(f'{MARKER} {{"ok": {{}}}}\n'.encode(), MARKER, "h") == {}


def test_old_pythons_are_passed_over(tmp_path: Path) -> None:
    bins = tmp_path / "bin"
    bins.mkdir()
    old = next((str(p) for v in ("3.8", "3.7", "3.6") for p in Path.home().glob(f".pyenv/versions/{v}.*/bin/python")), None)
    if old is None:
        pytest.skip("needs a Python older than 3.9")
    (bins / "python3").symlink_to(old)
    env = {"PATH": f"{bins}:/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", "-c", hostprogram.shell_script(MARKER, old)], env=env, input=b"", capture_output=True, check=False
    )
    assert done.returncode == hostprogram.OLD_PYTHON
    assert done.stderr.startswith(f"{MARKER} OLD 3.".encode())
    if Path("/usr/bin/python3").exists():
        done = subprocess.run(
            ["sh", "-c", hostprogram.shell_script(MARKER, None)], env=env, input=b"", capture_output=True, check=False
        )
        assert done.stdout == f"{MARKER} READY\n".encode()


def test_no_python(tmp_path: Path) -> None:
    script = hostprogram.shell_script(MARKER, str(tmp_path / "python"))
    assert subprocess.run(["sh", "-c", script], capture_output=True, check=False).returncode == hostprogram.NO_PYTHON


def test_the_script_survives_any_login_shell() -> None:
    script = hostprogram.shell_script(MARKER, None)
    assert not set(script) & set("\\!\n")


def test_a_module_that_is_not_there_fails_before_any_connection() -> None:
    with pytest.raises(BigironError, match=r"bigiron\.nowhere"):
        hostprogram.build("bigiron.nowhere:main")


def test_the_observer_is_sent_whole() -> None:
    text = hostprogram.build("bigiron.onhost.observe:main").decode()
    sent = json.loads(json.dumps(sorted(name for name in ("bigiron.errors", "bigiron.onhost.probe") if f"'{name}'" in text)))
    assert sent == ["bigiron.errors", "bigiron.onhost.probe"]
