"""Users and groups of a host: /etc/passwd and /etc/group first, the name service for the rest (LDAP labs)."""

from __future__ import annotations

import grp
import pwd
from typing import Any, Dict, Optional

from .system import Tree


class Accounts:
    """Names for numbers and the other way round."""

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
