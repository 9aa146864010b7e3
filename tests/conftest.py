"""The lab that role and lab tests share: one host that is provisioned once, and a second one for what needs a fresh machine."""

import json
import os
import platform
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bigiron.paths import PROJECT, STATE

MAIN, SECOND = "lab07", "lab08"  # not lab01: a person may be working there
TIMEOUT_S = 40 * 60
UNTIL_8080_LISTENS = (
    "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8080))' 2>/dev/null; do sleep 0.1; done"
)


@dataclass
class Done:
    """One finished ``./inv``."""

    argv: list
    code: int
    out: str
    err: str
    document: object = field(default=None)

    def __str__(self) -> str:
        return f"{' '.join(self.argv)}\nexit {self.code}\n--- stdout\n{self.out[-4000:]}\n--- stderr\n{self.err[-4000:]}"


def inv(*words: str, env: dict | None = None, timeout: float = TIMEOUT_S, **options) -> Done:
    """Run ``./inv`` as a person would; with ``--json`` the document is parsed."""
    argv = [str(PROJECT / "inv"), *words]
    options.setdefault("stdin", subprocess.DEVNULL)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=timeout, cwd=PROJECT, env=env, **options)
    document = json.loads(done.stdout) if "--json" in words and done.stdout.startswith(("{", "[")) else None
    return Done(list(words), done.returncode, done.stdout, done.stderr, document)


def on(host: str, script: str, *, check: bool = True, stdin: str | None = None) -> str:
    """Run a shell script on a lab host over ssh, as root, independent of bigiron's own connection code."""
    from bigiron.lab import lab

    argv = [*lab.ssh_argv(host), script]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600, input=stdin)
    if check and done.returncode:
        raise AssertionError(f"{host}: {script}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def root_of(host: str) -> Path:
    return STATE / "lab" / "hosts" / host / "root"


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also the tests that take long (./inv test --slow)")


def pytest_collection_modifyitems(config, items):
    for item in items:
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="takes long: ./inv test --slow"))
    missing = None
    if platform.system() != "Linux":
        missing = "the lab needs Linux"
    elif os.geteuid() != 0:
        missing = "the lab needs root"
    if missing:
        for item in items:
            if "lab" in item.keywords:
                item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="session")
def lab_session():
    """Everything that brings lab hosts up depends on this: the lab is taken down at the very end, when it was not up at the start."""
    from bigiron.lab import lab

    was_up = bool(lab.status().hosts)
    yield
    if not was_up:
        left = lab.down(lambda _line: None)
        assert (left.hosts, left.bridge) == ([], None)


@pytest.fixture(scope="session")
def lab_up(lab_session):
    """The lab with both hosts of the main job."""
    from bigiron.lab import lab

    lab.up(0, lambda _line: None, names=[MAIN, SECOND])


@pytest.fixture(scope="session")
def virgin(lab_up):
    """What the main test host holds before bigiron touched it: teardown must bring this back."""
    if inv("status", "--host", MAIN, "--json").document[0]["service"] != "absent":
        torn = inv("teardown", "--host", MAIN, "--models")
        assert torn.code == 0, torn
    return footprint(MAIN)


@pytest.fixture(scope="session")
def checked(virgin):
    """``provision --check`` of the virgin host, and what the host held afterwards."""
    return inv("provision", "--host", MAIN, "--check"), footprint(MAIN)


@pytest.fixture(scope="session")
def provisioned(checked):
    """The main test host after its first provision."""
    done = inv("provision", "--host", MAIN, "--json")
    assert done.code == 0, done
    return done


@pytest.fixture(scope="session")
def main_host(provisioned):
    return MAIN


FOOTPRINT = r"""
dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\n' | sort
echo ---
getent passwd | sort; getent group | sort
echo ---
find /etc /opt /srv /usr/local /var/lib/bigiron /var/cache/bigiron -xdev \
  \( -type d -printf '%p d %m %u %g\n' -o -printf '%p %y %m %u %g %s %l\n' \) 2>/dev/null \
  | grep -v -e '^/etc/ld.so.cache' -e '^/etc/mtab' -e '^/etc/group' -e '^/etc/passwd' -e '^/etc/shadow' -e '^/etc/gshadow' \
    -e '^/etc/subuid' -e '^/etc/subgid' -e '^/etc/alternatives' -e '^/etc/systemd/system d' -e '^/etc/ d' | sort
systemctl list-unit-files --no-legend --no-pager --type=service | awk '{print $1, $2}' | sort
"""


def footprint(host: str) -> str:
    """Everything on a host that bigiron could have touched, as text: packages, users, files with owners and sizes, units.

    Folders without their size, which does not shrink on ext4.
    """
    return on(host, FOOTPRINT)
