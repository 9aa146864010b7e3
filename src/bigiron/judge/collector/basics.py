# ruff: noqa: PTH115, PTH123
"""Reading one thing on the host: a file, a status, a program's output; what cannot be read says why."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import stat
import subprocess
from typing import Any, Callable, Optional

CHUNK = 1 << 20


def error_of(problem: BaseException) -> dict[str, Any]:
    if isinstance(problem, PermissionError) and os.geteuid() != 0:
        return {"error": f"needs root to read {problem.filename or 'it'}"}
    if isinstance(problem, FileNotFoundError):
        return {"error": f"{problem.filename or 'it'} is missing", "missing": True}
    return {"error": f"{type(problem).__name__}: {problem}"}


def guarded(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as problem:  # noqa: BLE001 - one thing that cannot be read must not hide the others
        return error_of(problem)


def read_bytes(path: str, limit: int = -1) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(limit)


def read_text(path: str) -> str:
    return read_bytes(path).decode("utf-8", "replace")


def program_of(pid: str) -> str:
    return read_text(f"/proc/{pid}/comm").strip()


def digest(path: str) -> str:
    sha = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(CHUNK), b""):
            sha.update(block)
    return sha.hexdigest()


def name_of(kind: Any, number: int) -> str:
    try:
        return str(kind(number)[0])
    except KeyError:
        return str(number)


def status_of(path: str) -> dict[str, Any]:
    """What lstat says in words: type, owner, group, mode ("0644"), size, mtime_ns, inode, and a link's target."""
    info = os.lstat(path)
    kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
    found = {
        "type": kinds.get(stat.S_IFMT(info.st_mode), "other"),
        "owner": name_of(pwd.getpwuid, info.st_uid),
        "group": name_of(grp.getgrgid, info.st_gid),
        "mode": f"{stat.S_IMODE(info.st_mode):04o}",
        "size": info.st_size,
        "mtime_ns": info.st_mtime_ns,
        "inode": info.st_ino,
    }
    if found["type"] == "link":
        found["target"] = os.readlink(path)
    return found


def walk(root: str) -> Any:
    """os.walk that raises what it cannot read, instead of leaving it out."""

    def fail(problem: OSError) -> None:
        raise problem

    return os.walk(root, onerror=fail)


def run(argv: list[str], timeout: float = 60, **options: Any) -> dict[str, Any]:
    """``{"rc", "out"}`` (both streams; rc -N: killed by signal N), or ``{"error"}`` when the tool is missing or hangs."""
    options.setdefault("env", {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"})
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
            **options,
        )
    except FileNotFoundError:
        return {"error": f"{argv[0]} is not installed", "missing": True}
    except subprocess.TimeoutExpired:
        return {"error": f"{argv[0]} did not end within {timeout:.0f} s"}
    return {"rc": done.returncode, "out": done.stdout.decode("utf-8", "replace")}


def as_user(user: str, environment: Optional[dict[str, str]] = None) -> dict[str, Any]:
    """Options of subprocess that drop to ``user`` and its groups, with ``environment`` and no more, as far as this process may."""
    options: dict[str, Any] = {"env": environment or {}, "cwd": "/"}
    if os.geteuid() == 0:
        entry = pwd.getpwnam(user)
        options.update(user=entry.pw_uid, group=entry.pw_gid, extra_groups=os.getgrouplist(user, entry.pw_gid))
    return options
