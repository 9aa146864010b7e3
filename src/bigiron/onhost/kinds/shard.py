"""A model file: there, in its size, and proved by the record of its SHA-256 to be the one that the hub lists."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from ...units import gib
from ..reader import Reader, unreadable, why

SECTION = "models"
PROOF = ".bigiron.json"
"""The proof record of a revision, in its folder; rewritten whenever a file was fetched or proved anew."""
PART = ".part"


def observe(reader: Reader, names: Mapping[str, str]) -> Dict[str, Any]:
    """``names``: revision (``org/repo/commit``) -> the root it is below. What is there of each (`_revision`)."""
    found = {name: _revision(reader.tree.path(f"{root}/{name}")) for name, root in names.items()}
    return {name: facts for name, facts in found.items() if facts is not None}


def find(section: Mapping[str, Any], name: str, want: Mapping[str, Any]) -> Any:
    """The entry of the file ``name`` of the wanted revision; ``{"partial": bytes}`` for one that is being fetched."""
    revision = section.get(want["revision"], {})
    have = revision.get("files", {}).get(name)
    part = revision.get("partial", {}).get(name)
    return {"partial": part} if have is None and part else have


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


def _revision(folder: str) -> Optional[Dict[str, Any]]:
    """The files of one revision: size (of a link's target), SHA-256 and whether the proof record still holds; None when absent."""
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
                proof = proofs.get(path, {})
                now = (status.st_size, status.st_mtime_ns, status.st_ino)
                proved = (proof.get("size"), proof.get("mtime_ns"), proof.get("inode")) == now
                found[path] = {"size": status.st_size, "sha256": proof.get("sha256"), "proved": proved}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return {"error": why(error)}
    problems += [f"{path}: in the record, but missing" for path in sorted(proofs) if path not in found]
    return {"files": found, "partial": partial, "problems": problems}


def differs(_name: str, want: Mapping[str, Any], have: Any) -> Iterator[Tuple[str, str]]:
    """``want``: ``{"revision", "size", "sha256"}``."""
    if have is None:
        yield f"not fetched ({gib(want['size'])})", ""
    elif "partial" in have:
        yield f"{gib(have['partial'])} of {gib(want['size'])} fetched", ""
    elif unreadable(have):
        yield unreadable(have), ""
    elif have.get("size") != want["size"]:
        yield f"has {have.get('size')} bytes, the hub says {want['size']}", ""
    elif not have.get("proved"):
        yield "not proved: no record that these bytes were hashed", ""
    elif have.get("sha256") != want["sha256"]:
        yield f"SHA-256 is {have.get('sha256')}, the hub says {want['sha256']}", ""
