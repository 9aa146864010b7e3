"""Paths and accounts of a host: owner, mode, hash and, where it may be shown, the text of bigiron's files.

Runs on hosts: standard library only. What cannot be read says ``error``; a secret's bytes never leave the host.
"""

from __future__ import annotations

import grp
import hashlib
import hmac
import os
import pwd
import stat
from pathlib import Path
from typing import Any, Dict, Optional

from .system import Tree

TEXT_LIMIT_BYTES = 64 * 1024


def secret_hmac(nonce: str, content: bytes) -> str:
    """How a secret is compared unseen: HMAC-SHA256 in hex, keyed with the text ``nonce``.

    Line ends around the secret do not count: an editor adds one, and the server ignores it.
    """
    return hmac.new(nonce.encode(), content.strip(b"\r\n"), hashlib.sha256).hexdigest()


def why(error: OSError) -> str:
    """What the system said, without errno and path."""
    return error.strerror or str(error)


def inside(path: str, folder: str) -> bool:
    """Whether ``path`` is ``folder`` or below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def file_sha256(path: str) -> str:
    """SHA-256 of a file's bytes, in hex. Raises OSError."""
    digest = hashlib.sha256()
    with Path(path).open("rb", buffering=0) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class Accounts:
    """Users and groups: /etc/passwd and /etc/group first, the name service for the rest (LDAP labs)."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        users = (line.split(":") for line in tree.text("/etc/passwd").splitlines())
        groups = (line.split(":") for line in tree.text("/etc/group").splitlines())
        self.users = {row[0]: row for row in users if len(row) == 7 and row[2].isdigit() and row[3].isdigit()}
        self.groups = {row[0]: row for row in groups if len(row) == 4 and row[2].isdigit()}
        self.user_names = {int(row[2]): name for name, row in reversed(self.users.items())}
        self.group_names = {int(row[2]): name for name, row in reversed(self.groups.items())}

    def owner(self, uid: int) -> str:
        if uid not in self.user_names:
            try:
                self.user_names[uid] = pwd.getpwuid(uid).pw_name if self.tree.is_here else str(uid)
            except KeyError:
                self.user_names[uid] = str(uid)
        return self.user_names[uid]

    def group(self, gid: int) -> str:
        if gid not in self.group_names:
            try:
                self.group_names[gid] = grp.getgrgid(gid).gr_name if self.tree.is_here else str(gid)
            except KeyError:
                self.group_names[gid] = str(gid)
        return self.group_names[gid]

    def user(self, name: str) -> Optional[Dict[str, Any]]:
        """uid, gid, primary group, supplementary groups, home and shell of a user; None when there is none."""
        row = self.users.get(name)
        if row is None and self.tree.is_here:
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                return None
            row = [name, "", str(entry.pw_uid), str(entry.pw_gid), "", entry.pw_dir, entry.pw_shell]
        if row is None:
            return None
        extra = sorted(group for group, fields in self.groups.items() if name in fields[3].split(","))
        uid, gid = int(row[2]), int(row[3])
        return {"uid": uid, "gid": gid, "group": self.group(gid), "groups": extra, "home": row[5], "shell": row[6]}

    def gid(self, name: str) -> Optional[int]:
        if name in self.groups:
            return int(self.groups[name][2])
        try:
            return grp.getgrnam(name).gr_gid if self.tree.is_here else None
        except KeyError:
            return None


class Paths:
    """Collects path entries: what ``lstat`` says, and of files the hash and, where it may be shown, the text."""

    KINDS = (
        (stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"), (stat.S_ISBLK, "block"),
        (stat.S_ISCHR, "character"), (stat.S_ISFIFO, "fifo"), (stat.S_ISSOCK, "socket"),
    )  # fmt: skip

    def __init__(self, tree: Tree, accounts: Accounts, secrets: str, nonce: str) -> None:
        self.tree = tree
        self.accounts = accounts
        self.secrets = secrets
        self.nonce = nonce
        self.found: Dict[str, Dict[str, Any]] = {}

    def add(self, path: str, *, private: bool = False) -> Optional[str]:
        """Look at ``path``; its kind, or None when absent or unreadable. ``private``: text only where all may read."""
        real = self.tree.path(path)
        try:
            status = os.lstat(real)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.found[path] = {"error": why(error)}
            return None
        kind = next((name for test, name in self.KINDS if test(status.st_mode)), "other")
        entry: Dict[str, Any] = {
            "type": kind,
            "owner": self.accounts.owner(status.st_uid),
            "group": self.accounts.group(status.st_gid),
            "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        }
        self.found[path] = entry
        try:
            if kind == "link":
                entry["target"] = str(Path(real).readlink())
            elif kind == "file":
                entry.update(size=status.st_size, mtime=status.st_mtime)
                entry.update(self._content(path, status, private=private))
        except OSError as error:
            entry["error"] = why(error)
        return kind

    def _content(self, path: str, status: os.stat_result, *, private: bool) -> Dict[str, Any]:
        real = self.tree.path(path)
        if inside(path, self.secrets):
            return {"hmac": secret_hmac(self.nonce, Path(real).read_bytes())} if self.nonce else {}
        if status.st_size >= TEXT_LIMIT_BYTES:
            return {"sha256": file_sha256(real)}
        data = Path(real).read_bytes()
        facts = {"sha256": hashlib.sha256(data).hexdigest()}
        if b"\0" not in data and not (private and not status.st_mode & stat.S_IROTH):
            try:
                facts["text"] = data.decode("utf-8")
            except UnicodeDecodeError:
                return facts
        return facts

    def walk(self, path: str) -> None:
        """``path`` and everything below it; a link is recorded, never followed."""
        if self.add(path) != "directory":
            return
        try:
            with os.scandir(self.tree.path(path)) as entries:
                names = sorted(entry.name for entry in entries)
        except OSError as error:
            self.found[path]["error"] = why(error)
            return
        for name in names:
            self.walk(f"{path.rstrip('/')}/{name}")
