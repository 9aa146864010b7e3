"""The account the server runs under, and the owners and modes of everything provision made."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from bigiron.report.verdict import Check

from .subject import Subject

PRIVILEGED = {"root", "sudo", "wheel", "admin", "adm", "docker", "lxd", "disk", "shadow", "kmem", "libvirt"}


def exists(s: Subject) -> tuple[bool, str]:
    user = s.expect["llama_server_user"]
    if s.missing("user"):
        return False, f"the user {user} does not exist (a unit with it dies with 217/USER)"
    return True, f"{user} is uid {s.fact('user', 'uid')}"


def system(s: Subject) -> tuple[bool, str]:
    uid, limit = s.fact("user", "uid"), s.fact("user", "system_uid_max")
    return 0 < uid <= limit, f"uid {uid}; system accounts are 1 to {limit}"


def shell(s: Subject) -> tuple[bool, str]:
    found = s.fact("user", "shell")
    return found.rpartition("/")[2] in ("nologin", "false"), f"its shell is {found}"


def group(s: Subject) -> tuple[bool, str]:
    found = s.fact("user", "group")
    return found == s.expect["llama_server_user"], f"its primary group is {found}"


def unprivileged(s: Subject) -> tuple[bool, str]:
    extra = set(s.fact("user", "groups")) & PRIVILEGED
    return not extra, f"it is in {', '.join(sorted(extra))}" if extra else "it is in no privileged group"


def locked(s: Subject) -> tuple[bool, str]:
    found = s.fact("user", "locked")
    return found is True, "its password is locked" if found else "it has a usable password"


def kind(s: Subject, path: str, wanted: str) -> tuple[bool, str]:
    if s.missing("paths", path):
        return False, f"{path} does not exist"
    found = s.fact("paths", path, "type")
    return found == wanted, f"{path} is a {found}"


def owner(s: Subject, path: str, user: str, group: str) -> tuple[bool, str]:
    found = f"{s.fact('paths', path, 'owner')}:{s.fact('paths', path, 'group')}"
    return found == f"{user}:{group}", f"{path} belongs to {found}, planned {user}:{group}"


def mode(s: Subject, path: str, wanted: str) -> tuple[bool, str]:
    found = s.fact("paths", path, "mode")
    return int(found, 8) == int(wanted, 8), f"{path} has mode {found}, planned {wanted}"


def content(s: Subject, path: str, text: str) -> tuple[bool, str]:
    if s.missing("digests", path):
        return False, f"{path} does not exist"
    same = s.fact("digests", path) == hashlib.sha256(text.encode()).hexdigest()
    return same, f"{path} has the planned content" if same else f"{path} differs from the planned content"


def placed(s: Subject, what: str, wanted: Mapping[str, Any]) -> Iterator[Check]:
    """Type, owner and mode of one planned path."""
    path = wanted["path"]
    yield s.check(f"{what}.type:{path}", s.provision, kind, path, wanted.get("type", "file"))
    yield s.check(f"{what}.owner:{path}", s.provision, owner, path, wanted.get("owner", "root"), wanted.get("group", "root"))
    yield s.check(f"{what}.mode:{path}", s.provision, mode, path, wanted.get("mode", "0644"))


def checks(s: Subject) -> Iterator[Check]:
    lock = f"on {s.name}: usermod --lock --shell /usr/sbin/nologin {s.expect['llama_server_user']}"
    yield s.check("user.exists", s.provision, exists)
    yield s.check("user.system", f"./inv teardown --host {s.name}, then {s.provision}", system)
    yield s.check("user.shell", lock, shell)
    yield s.check("user.group", s.provision, group)
    yield s.check("user.unprivileged", f"on {s.name}: gpasswd -d {s.expect['llama_server_user']} GROUP", unprivileged)
    yield s.check("user.locked", lock, locked)
    for entry in s.expect["base_directories"]:
        if entry.get("keep"):  # a person's own: its owner and mode are theirs
            yield s.check(f"directory.type:{entry['path']}", s.provision, kind, entry["path"], "directory")
        else:
            yield from placed(s, "directory", {**entry, "type": "directory"})
    for entry in s.expect.get("base_files", []):
        yield from placed(s, "file", entry)
        yield s.check(f"file.content:{entry['path']}", s.provision, content, entry["path"], entry["content"])
    yield from placed(s, "unit-file", {"path": s.unit_path})
    if s.keyed:
        yield from placed(s, "key", {"path": s.key_file, "mode": "0600"})


def test_account(check: Check, judge: Any) -> None:
    judge(check)
