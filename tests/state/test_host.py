"""Whether the judge can look at the host at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bigiron.report.verdict import Check

from .subject import CannotTell, Subject


def root(s: Subject) -> tuple[bool, str]:
    euid = s.fact("host", "euid")
    if euid != 0:
        raise CannotTell(f"needs root, looked at as uid {euid}: what only root may read stays open")
    return True, "looked at as root"


def booted(s: Subject) -> tuple[bool, str]:
    found = s.fact("show", "LoadState")
    return bool(found), f"PID 1 is {s.fact('host', 'init')}, and it answers"


def checks(s: Subject) -> Iterator[Check]:
    yield s.check(
        "host.root", f"let {s.name} be reached as root, or as a user with sudo (ansible_become, ansible_become_password)", root
    )
    yield s.check("host.systemd", f"{s.name} must have been booted with systemd; a chroot or a plain container was not", booted)


def test_host(check: Check, judge: Any) -> None:
    judge(check)
