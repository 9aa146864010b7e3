"""bigiron under the newest Python and ansible-core it is said to work with: those of Debian 13, in a root of their own."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import inv

from bigiron.lab import base, lab, network, state, tools
from bigiron.paths import PROJECT, cache_dir

WHY_NOT = tools.unmet()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
    pytest.mark.timeout(45 * 60),
]
HOST = "lab04"
HERE = Path("/srv/bigiron")
LEFT_OUT = shutil.ignore_patterns(".venv", ".bigiron", ".git", "__pycache__", "90-state.yml", "locks")
# mounts that go with the namespace: nothing of this outlives the command, whatever ends it
ENTER = """set -eu
root=$1; shift
mount --make-rprivate /
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$root${1%/*}"; [ -e "$root$1" ] || : >"$root$1"; fi
    mount --rbind "$1" "$root$1"; shift
done
shift
exec chroot "$root" "$@"
"""


def pip_settings() -> dict[str, str]:
    """How pip gets its packages on this machine, as environment variables; files and folders in it are bound into the root."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^(global|install|:env:)\.([\w-]+)=(.*)$", listed, re.MULTILINE)
    order = {"global": 0, "install": 1, ":env:": 2}
    return {
        f"PIP_{name.upper().replace('-', '_')}": " ".join(str(ast.literal_eval(value)).split())
        for _, name, value in sorted(found, key=lambda one: order[one[0]])
    }


@dataclass(frozen=True)
class Debian13:
    """A copy of the lab's Debian 13 that shares this machine's network, with Debian's own Python and a copy of the project."""

    root: Path

    def run(self, *argv: str, seconds: int = 1800) -> str:
        pip = pip_settings()
        words = [word for value in pip.values() for word in value.split()]
        # an index in a folder links to files beside it
        paths = {str(Path(word.removeprefix("file://")).parent) if word.startswith("file://") else word for word in words}
        bound = sorted(path for path in paths if path.startswith("/") and Path(path).exists())
        bound += [str(path) for path in (state.LAB, cache_dir("releases"), cache_dir("hub")) if path.exists()]
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(Path.home()),
            "LANG": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
            **pip,
            **{
                name: os.environ[name]
                for name in ("http_proxy", "https_proxy", "no_proxy", "XDG_CACHE_HOME")
                if name in os.environ
            },
        }
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", str(self.root), *bound, "--"]
        done = subprocess.run(
            [*enter, "env", f"--chdir={HERE}", *argv],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def debian13() -> Iterator[Debian13]:
    kept = base.ensure("trixie", lambda _line: None)
    folder = Path(tempfile.mkdtemp(prefix="bigiron-test-", dir="/var/tmp"))
    try:
        folder.chmod(0o755)
        tools.run(["cp", "-a", "--reflink=auto", str(kept), str(folder / "root")], timeout_s=600)
        root = folder / "root"
        base.write(root / "etc/resolv.conf", network.resolv_conf_for_hosts())
        shutil.copytree(PROJECT, root / HERE.relative_to("/"), symlinks=True, ignore=LEFT_OUT)
        made = Debian13(root)
        made.run("apt-get", "-q", "update")
        made.run("apt-get", "-q", "-y", "--no-install-recommends", "install", "python3-venv", "git")
        yield made
    finally:
        tools.remove_tree(folder)


def test_the_launcher_makes_its_environment_with_the_newest_ansible_core(debian13: Debian13) -> None:
    assert debian13.run("./inv", "--version").startswith("bigiron ")
    said = debian13.run(".venv/bin/ansible", "--version")
    core, python = re.search(r"core (\d+)\.(\d+)", said), re.search(r"python version = 3\.(\d+)", said)
    assert core
    assert python
    assert (int(core[1]), int(core[2])) > (2, 19)
    assert int(python[1]) == 13


def test_the_fast_tests_pass(debian13: Debian13) -> None:
    summary = debian13.run("./inv", "test", "--fast").splitlines()[-1]
    assert re.search(r"\d+ passed", summary) or "100%" in summary


def test_it_provisions_a_host_and_takes_it_all_back(debian13: Debian13, lab_session: None) -> None:
    """Of an inventory of its own: the lab's processes are not to be seen from in there."""
    lab.up(0, lambda _line: None, names=[HOST])
    built = inv("provision", "--host", HOST)  # by this controller, so that there is a release to install
    assert built.code == 0, built
    here = debian13.root / HERE.relative_to("/") / "inventory/here"
    shutil.copytree(PROJECT / "inventory/lab", here, ignore=shutil.ignore_patterns("locks"))
    arguments = ["--host", HOST, "--inventory", "inventory/here"]
    assert f"{HOST}: in sync" in debian13.run("./inv", "plan", *arguments)
    assert "removed" in debian13.run("./inv", "teardown", *arguments, "--models")
    said = debian13.run("./inv", "provision", *arguments)
    assert f"{HOST}: changed" in said
    assert "verdict ok" in said
    assert f"{HOST}: in sync" in debian13.run("./inv", "provision", *arguments)
    assert f"{HOST}: in sync" in inv("provision", "--host", HOST).out
