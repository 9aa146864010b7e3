"""What every kind reads with: the files below a root, accounts, programs in the background, and one look at each path.

What cannot be read says ``{"error": why}``, and is never taken for absent; a secret's bytes never leave the host.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from .accounts import Accounts
from .system import Start, Tree, sha256_of, start

TEXT_LIMIT_BYTES = 64 * 1024
PATHS = "paths"
"""The section that files, directories, links and secrets share: one path, one entry."""
TYPES = (
    (stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"), (stat.S_ISBLK, "block"),
    (stat.S_ISCHR, "character"), (stat.S_ISFIFO, "fifo"), (stat.S_ISSOCK, "socket"),
)  # fmt: skip


def secret_hmac(nonce: str, content: bytes) -> str:
    """How a secret is compared unseen: HMAC-SHA256 in hex, keyed with the text ``nonce``.

    Line ends around the secret do not count: an editor adds one, and the server ignores it.
    """
    return hmac.new(nonce.encode(), content.strip(b"\r\n"), hashlib.sha256).hexdigest()


def why(error: OSError) -> str:
    """What the system said, without errno and path."""
    return error.strerror or str(error)


def unreadable(have: Any) -> str:
    """The sentence for an observed entry that could not be read; empty for one that could, or is not there."""
    return f"cannot be read: {have['error']}" if isinstance(have, Mapping) and "error" in have else ""


def status_differs(want: Mapping[str, Any], have: Any, kind: str) -> Iterator[Tuple[str, str]]:
    """What is wrong with type, owner, group and mode of a path that must be there."""
    if have is None:
        yield "does not exist", ""
    elif unreadable(have):
        yield unreadable(have), ""
    elif have["type"] != kind:
        yield f"is a {have['type']}, not a {kind}", ""
    else:
        for key in ("owner", "group", "mode"):
            if key in want and have.get(key) != want[key]:
                yield f"{key} is {have.get(key)}, not {want[key]}", ""


class Reader:
    """One pass over a host.

    ``sent`` is when the controller asked, in seconds since the epoch by its own clock. ``service_pids`` are the main processes of the services
    looked at, once they were.
    """

    def __init__(self, root: str = "/", begin: Start = start, nonce: str = "", sent: float = 0.0) -> None:
        self.tree = Tree(root)
        self.begin = begin
        self.nonce = nonce
        self.sent = sent
        self.accounts = Accounts(self.tree)
        self.service_pids: List[int] = []

    def status(self, path: str) -> Tuple[Dict[str, Any], Optional[os.stat_result]]:
        """Type, owner, group, mode and, of a link, its target; ({}, None) when absent, ``error`` when unreadable."""
        real = self.tree.path(path)
        try:
            status = os.lstat(real)
        except (FileNotFoundError, NotADirectoryError):
            return {}, None
        except OSError as error:
            return {"error": why(error)}, None
        entry: Dict[str, Any] = {
            "type": next((name for test, name in TYPES if test(status.st_mode)), "other"),
            "owner": self.accounts.owner(status.st_uid),
            "group": self.accounts.group(status.st_gid),
            "mode": f"{stat.S_IMODE(status.st_mode):04o}",
            "mtime": status.st_mtime,
        }
        if entry["type"] == "file":
            entry["size"] = status.st_size
        elif entry["type"] == "link":
            entry["target"] = str(Path(real).readlink())
        return entry, status

    def statuses(self, paths: Any) -> Dict[str, Any]:
        """`status` of those of ``paths`` that are there."""
        return {path: entry for path in paths if (entry := self.status(path)[0])}

    def content(self, path: str, entry: Dict[str, Any]) -> Dict[str, Any]:
        """``entry`` of a file with its SHA-256, and its text where everybody may read it and it is small text."""
        real = self.tree.path(path)
        try:
            if entry["size"] >= TEXT_LIMIT_BYTES:
                return {**entry, "sha256": sha256_of(Path(real))}
            data = Path(real).read_bytes()
        except OSError as error:
            return {**entry, "error": why(error)}
        entry = {**entry, "sha256": hashlib.sha256(data).hexdigest()}
        if b"\0" not in data and int(entry["mode"], 8) & stat.S_IROTH:
            try:
                entry["text"] = data.decode("utf-8")
            except UnicodeDecodeError:
                return entry
        return entry
