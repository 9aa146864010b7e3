import os
import subprocess

import pytest

from bigiron.paths import PROJECT

INV = str(PROJECT / "inv")


def launch(venv, *words, **environment):
    env = {**os.environ, "BIGIRON_VENV": str(venv), **environment}
    return subprocess.run(
        [INV, *words], capture_output=True, text=True, check=False, env=env, timeout=300, stdin=subprocess.DEVNULL
    )


@pytest.fixture
def offline_python(tmp_path):
    """A supported Python whose venv works and whose pip cannot install anything."""
    python = tmp_path / "stub" / "python"
    python.parent.mkdir()
    python.write_text(
        '#!/bin/sh\n[ "$1" = -c ] && exit\n'
        '[ "$1 $2" = "-m venv" ] && mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && exit\n'
        "echo no matching distribution >&2\nexit 1\n"
    )
    python.chmod(0o755)
    return str(python)


def test_a_failed_install_says_so_and_leaves_no_half_environment(tmp_path, offline_python):
    done = launch(tmp_path / "new" / "venv", "--version", BIGIRON_PYTHON=offline_python)
    assert done.returncode == 1
    assert "no matching distribution" in done.stderr
    assert f"could not make {tmp_path}/new/venv" in done.stderr
    assert list((tmp_path / "new").iterdir()) == []


def test_no_supported_python_is_named(tmp_path):
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.8.1 && exit\nexit 1\n')
    python.chmod(0o755)
    for name in ("python3.11", "python3.12", "python3.13"):
        (python.parent / name).symlink_to(python)
    done = launch(tmp_path / "venv", "--version", PATH=f"{python.parent}:/usr/bin:/bin", BIGIRON_PYTHON="")
    assert done.returncode == 1
    assert "found Python 3.8.1" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_it_works_through_a_link_and_from_another_folder(tmp_path):
    link = tmp_path / "inv"
    link.symlink_to(INV)
    done = subprocess.run([str(link), "--version"], capture_output=True, text=True, check=False, cwd="/", timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("bigiron ")


def test_a_lock_left_by_a_killed_start_does_not_block(tmp_path, offline_python):
    held = tmp_path / "venv.lock"
    held.mkdir()
    (held / "pid").write_text("999999\n")
    done = launch(tmp_path / "venv", "--version", BIGIRON_PYTHON=offline_python)
    assert done.returncode == 1
    assert "could not make" in done.stderr
    assert not held.exists()


def test_a_place_that_cannot_be_written_is_not_taken_for_a_held_lock(tmp_path, offline_python):
    (tmp_path / "file").touch()
    done = launch(tmp_path / "file" / "venv", "--version", BIGIRON_PYTHON=offline_python)
    assert done.returncode == 1
    assert f"cannot write to {tmp_path}/file" in done.stderr
