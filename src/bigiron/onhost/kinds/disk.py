"""The file system that a path is on, or would be on: space, type, mount point. Watched, never wanted."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Dict, Iterable, List, Tuple

from ..reader import Reader, why
from ..system import Tree

SECTION = "disks"


def _mounts(tree: Tree) -> List[Tuple[str, str, str, str, bool]]:
    """(mount point, device, file system, source, read-only) in the order of mounting (proc(5), mountinfo)."""
    mounts = []
    for line in tree.text("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        parts, after = left.split(), right.split()
        if len(parts) < 6 or len(after) < 2:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), parts[4])
        read_only = "ro" in parts[5].split(",") or (len(after) > 2 and "ro" in after[2].split(","))
        mounts.append((point, parts[2], after[0], after[1], read_only))
    return mounts


def _real(tree: Tree, path: str) -> str:
    """``path`` with all links followed, whether or not its end exists."""
    return str(Path(tree.path(path)).resolve())[len(str(Path(tree.root).resolve())) if tree.root else 0 :] or "/"


def observe(reader: Reader, names: Iterable[str]) -> Dict[str, Any]:
    """The file system that each path is on, or would be on: found at the nearest parent that exists; ``real`` is the path without links."""
    tree = reader.tree
    mounts = _mounts(tree)
    found: Dict[str, Any] = {}
    for path in names:
        there = Path(tree.path(path))
        try:
            while not there.exists():
                there = there.parent
            space = os.statvfs(there)
        except OSError as error:
            found[path] = {"error": why(error)}
            continue
        real = _real(tree, str(there)[len(tree.root) :] or "/")
        # the last mount of the longest mount point hides the others
        over = [mount for mount in mounts if real == mount[0] or real.startswith(mount[0].rstrip("/") + "/")]
        point, device, kind, source, read_only = max(over, key=lambda mount: len(mount[0]), default=("/", "", "", "", False))
        last = [mount for mount in over if mount[0] == point]
        if last:
            point, device, kind, source, read_only = last[-1]
        found[path] = {
            "real": _real(tree, path),
            "mount": point,
            "device": device,
            "fstype": kind,
            "source": source,
            "read_only": read_only,
            "free_bytes": space.f_bavail * space.f_frsize,
            "total_bytes": space.f_blocks * space.f_frsize,
        }
    return found
