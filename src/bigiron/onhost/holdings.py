"""What a host holds: releases against their manifests, model files against their proof records, disks.

Runs on hosts: standard library only.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .footprint import file_sha256, why
from .system import Tree

PROOF = ".bigiron.json"
PART = ".part"


def release(tree: Tree, directory: str, *, deep: bool) -> Dict[str, Any]:
    """A release folder against its manifest: every file there with its size, and with its SHA-256 when ``deep``."""
    folder = tree.path(directory)
    try:
        manifest = json.loads(Path(folder, "manifest.json").read_bytes())
        files = {name: (int(facts["size"]), str(facts["sha256"])) for name, facts in manifest["files"].items()}
    except FileNotFoundError:
        return {"manifest": {}, "ok": False, "problems": ["manifest.json is missing"]}
    except PermissionError as error:
        problem = f"manifest.json: {why(error)}"
        return {"manifest": {}, "ok": False, "problems": [problem], "error": problem}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {"manifest": {}, "ok": False, "problems": [f"manifest.json cannot be read: {error}"]}
    problems = []
    name = directory.rsplit("/", 1)[-1]
    if manifest.get("fingerprint", name) != name:
        problems.append(f"manifest.json is of release {manifest['fingerprint']}")
    for file, (size, digest) in sorted(files.items()):
        if file.startswith("/") or ".." in file.split("/"):
            problems.append(f"{file}: outside the release")
            continue
        try:
            actual = Path(folder, file).stat().st_size
            if actual != size:
                problems.append(f"{file}: {actual} bytes, not {size}")
            elif deep and file_sha256(f"{folder}/{file}") != digest:
                problems.append(f"{file}: the SHA-256 differs")
        except (FileNotFoundError, NotADirectoryError):
            problems.append(f"{file}: missing")
        except OSError as error:
            problems.append(f"{file}: {why(error)}")
    return {"manifest": manifest, "ok": not problems, "problems": problems}


def releases(tree: Tree, prefix: str, *, deep: bool) -> Dict[str, Any]:
    """Every release below ``<prefix>/releases`` (`release`); folders with a leading dot are still being made."""
    folder = f"{prefix}/releases"
    names = [name for name in tree.names(folder) if not name.startswith(".")]
    return {
        name: release(tree, f"{folder}/{name}", deep=deep) for name in names if Path(tree.path(f"{folder}/{name}")).is_dir()
    }


def _files(folder: str, below: str = "") -> Iterator[Tuple[str, Optional[os.stat_result], str]]:
    """(path, stat of what it leads to, problem) of all files below a folder. Links to folders are not entered."""
    with os.scandir(f"{folder}/{below}") as entries:
        inside = sorted(entries, key=lambda entry: entry.name)
    for entry in inside:
        path = f"{below}{entry.name}"
        if entry.name.startswith("."):
            continue  # our own record, a hub client's metadata
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(folder, f"{path}/")
            elif not entry.is_dir():
                yield path, entry.stat(), ""
        except FileNotFoundError:
            yield path, None, f"broken link to {Path(entry.path).readlink()}" if entry.is_symlink() else "vanished"
        except OSError as error:
            yield path, None, why(error)


def _proofs(folder: str) -> Tuple[Dict[str, Any], List[str]]:
    """The proof record's files, and what is wrong with the record."""
    try:
        record = json.loads(Path(folder, PROOF).read_bytes())["files"]
        return {name: dict(facts) for name, facts in record.items()}, []
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        return {}, [f"{PROOF}: {why(error)}"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}, [f"{PROOF} is damaged, so nothing is proved"]


def model(tree: Tree, directory: str, *, deep: bool) -> Optional[Dict[str, Any]]:
    """The files of one revision: size (of a link's target), SHA-256 and whether the proof record still holds; None when absent.

    ``deep`` hashes every file that is in the record; then ``sha256`` is what the bytes are now.
    """
    folder = tree.path(directory)
    found: Dict[str, Any] = {}
    partial: Dict[str, int] = {}
    proofs, problems = _proofs(folder)
    try:
        for path, status, problem in _files(folder):
            if status is None:
                found[path] = {"error": problem}
                problems.append(f"{path}: {problem}")
            elif path.endswith(PART):
                partial[path[: -len(PART)]] = status.st_size
            else:
                found[path] = _shard(f"{folder}/{path}", status, proofs.get(path), deep=deep)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return {"error": why(error)}
    problems += [f"{path}: in the record, but missing" for path in sorted(proofs) if path not in found]
    return {"files": found, "partial": partial, "problems": problems}


def _shard(path: str, status: os.stat_result, proof: Optional[Dict[str, Any]], *, deep: bool) -> Dict[str, Any]:
    if proof is None:
        return {"size": status.st_size, "sha256": None, "proved": False}
    now = (status.st_size, status.st_mtime_ns, status.st_ino)
    proved = (proof.get("size"), proof.get("mtime_ns"), proof.get("inode")) == now
    if not deep:
        return {"size": status.st_size, "sha256": proof.get("sha256"), "proved": proved}
    try:
        return {"size": status.st_size, "sha256": file_sha256(path), "proved": proved}
    except OSError as error:
        return {"error": why(error)}


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


def disks(tree: Tree, paths: List[str]) -> Dict[str, Any]:
    """The file system that each path is on, or would be on: found at the nearest parent that exists."""
    mounts = _mounts(tree)
    found: Dict[str, Any] = {}
    for path in paths:
        there = Path(tree.path(path))
        try:
            while not there.exists():
                there = there.parent
            space = os.statvfs(there)
        except OSError as error:
            found[path] = {"error": why(error)}
            continue
        real = str(there.resolve())[len(str(Path(tree.root).resolve())) if tree.root else 0 :] or "/"
        # the last mount of the longest mount point hides the others
        over = [mount for mount in mounts if real == mount[0] or real.startswith(mount[0].rstrip("/") + "/")]
        point, device, kind, source, read_only = max(over, key=lambda mount: len(mount[0]), default=("/", "", "", "", False))
        last = [mount for mount in over if mount[0] == point]
        if last:
            point, device, kind, source, read_only = last[-1]
        found[path] = {
            "mount": point,
            "device": device,
            "fstype": kind,
            "source": source,
            "read_only": read_only,
            "free_bytes": space.f_bavail * space.f_frsize,
            "total_bytes": space.f_blocks * space.f_frsize,
        }
    return found
