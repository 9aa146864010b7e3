"""The files of one model revision on a disk: what is proved, what is missing, and fetching exactly that.

Standard library only: this file also runs on hosts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import urllib.parse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Optional

from ..errors import BigironError, Refused
from ..units import count, gib
from .fetch import Item, Patience, fetch, owner_of
from .progress import Progress, write_atomic
from .system import sha256_of

RECORD = ".bigiron.json"
RESERVE_BYTES = 1024**3


@dataclass(frozen=True)
class Wanted:
    """One file of the plan: ``path`` in the repository, ``size`` in bytes, ``sha256`` in hex."""

    path: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        if not all(parts) or ".." in parts or "." in parts or "\0" in self.path or self.path.endswith(".part"):
            raise BigironError(f"not a usable path in a repository: {self.path!r}", where="model_files")
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256) or self.size < 0:
            raise BigironError(f"{self.path} needs its size and SHA-256", where="model_files")


@dataclass(frozen=True)
class Revision:
    """A pinned revision and where its files stand: ``<root>/<org>/<repo>/<revision>/<path in the repository>``."""

    root: Path
    repo: str
    revision: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", self.repo):
            raise BigironError(f"not a repository: {self.repo!r}", where="model_repo", hint="write it as org/name")
        if not re.fullmatch(r"[0-9a-f]{40}", self.revision):
            raise BigironError(
                f"not a pinned revision: {self.revision!r}", where="model_revision", hint="give the 40 hex digits of the commit"
            )

    @property
    def folder(self) -> Path:
        return self.root / self.repo / self.revision

    def url(self, endpoint: str, path: str) -> str:
        return f"{endpoint.rstrip('/')}/{self.repo}/resolve/{self.revision}/{urllib.parse.quote(path)}"


class Proofs:
    """The proof record: what was hashed, and the stat of the file at that moment. ``adopted`` names files a person brought."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECORD
        self.files: dict[str, dict[str, Any]] = {}
        self.adopted: set[str] = set()
        with contextlib.suppress(FileNotFoundError):
            text = self.path.read_text(encoding="utf-8")
            with contextlib.suppress(
                ValueError, KeyError, TypeError, AttributeError
            ):  # a torn record proves nothing: hash again
                document = json.loads(text)
                self.files = dict(document["files"])
                self.adopted = set(document.get("adopted", []))

    def holds(self, want: Wanted, path: Path) -> bool:
        """True when ``path`` is the very file that was hashed to ``want.sha256`` and was not touched since."""
        entry = self.files.get(want.path)
        try:
            status = path.stat()
        except OSError:
            return False
        return entry is not None and (entry.get("size"), entry.get("sha256"), entry.get("mtime_ns"), entry.get("inode")) == (
            want.size,
            want.sha256,
            status.st_mtime_ns,
            status.st_ino,
        ) and status.st_size == want.size  # fmt: skip

    def add(self, want: Wanted, path: Path, *, adopted: bool) -> None:
        status = path.stat()
        self.files[want.path] = {
            "size": want.size, "sha256": want.sha256, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino,
        }  # fmt: skip
        (self.adopted.add if adopted else self.adopted.discard)(want.path)
        self.save()

    def save(self) -> None:
        document = {"files": self.files, **({"adopted": sorted(self.adopted)} if self.adopted else {})}
        write_atomic(self.path, json.dumps(document, indent=1, sort_keys=True) + "\n")


def main(request: dict[str, Any]) -> dict[str, Any]:
    """JSON in, JSON out, from ``{"root", "repo", "revision", "endpoint", "token", "files", "check"}``, see `ensure`."""
    revision = Revision(Path(request["root"]), request["repo"], request["revision"])
    wanted = [Wanted(item["path"], int(item["size"]), item["sha256"]) for item in request["files"]]
    return ensure(
        revision,
        wanted,
        endpoint=request["endpoint"],
        token=request.get("token") or "",
        check=bool(request.get("check")),
        reserve_bytes=int(request.get("reserve_bytes", RESERVE_BYTES)),
        patience=Patience(float(request.get("patience_s", 600.0))),
    )


def ensure(
    revision: Revision,
    wanted: list[Wanted],
    *,
    endpoint: str,
    token: str = "",
    check: bool = False,
    reserve_bytes: int = RESERVE_BYTES,
    patience: Optional[Patience] = None,
    progress: Optional[Callable[..., None]] = None,
) -> dict[str, Any]:
    """Make every wanted file stand and proved.

    Returns ``{"changed", "folder", "proved": [path], "adopted": [path], "linked": [path], "fetched": [path], "received_bytes"}``;
    "linked" are files that bigiron had brought for another revision and that did not change since. Raises Refused before the first
    byte when a file system is too small or a person has the very file elsewhere under the root, and BigironError for a file of a
    person that has the name of a wanted one and other content: it is never overwritten.
    """
    report = Progress("model") if progress is None else progress
    patience = patience or Patience()
    try:
        proofs = Proofs(revision.folder)
        missing, known, adopted = _sort(revision, wanted, proofs, report, check=check)
        ours = _elsewhere(revision, missing, report)
        linked = [want for want in missing if want.path in ours]
        missing = [want for want in missing if want.path not in ours]
        _refuse_small_disk(revision.folder, missing, reserve_bytes)
        answer: dict[str, Any] = {
            "changed": bool(missing or adopted or linked), "folder": str(revision.folder), "proved": known, "adopted": adopted,
            "linked": list(ours), "fetched": [want.path for want in missing], "received_bytes": 0,
        }  # fmt: skip
        if not check:
            for want in linked:
                path = revision.folder / want.path
                _make_folders(path.parent)
                try:
                    os.link(ours[want.path], path)
                except OSError:  # a file system without hard links
                    missing.append(want)
                    answer["linked"].remove(want.path)
                    answer["fetched"].append(want.path)
                else:
                    proofs.add(want, path, adopted=False)
            kept = sum(want.size for want in wanted) - sum(want.size for want in missing)
            for want in missing:
                path = revision.folder / want.path
                _make_folders(path.parent)
                proofs.save()  # so that teardown finds the parts of a run that is killed in its first file
                item = Item(revision.url(endpoint, want.path), path, want.sha256, want.size, token)
                answer["received_bytes"] += fetch(item, patience=patience, report=_Counter(report, kept, wanted))
                proofs.add(want, path, adopted=False)
                kept += want.size
        return answer
    finally:
        if isinstance(report, Progress):
            report.close()


def _sort(
    revision: Revision, wanted: list[Wanted], proofs: Proofs, report: Callable[..., None], *, check: bool
) -> tuple[list[Wanted], list[str], list[str]]:
    """Which files are missing, which are proved by the record, and which stood there unrecorded and turned out right."""
    missing, known, adopted = [], [], []
    for want in wanted:
        path = revision.folder / want.path
        if proofs.holds(want, path):
            known.append(want.path)
            continue
        if path.is_symlink() and not path.exists():
            raise BigironError(
                f"broken link to {path.readlink()}", where=str(path), hint="remove the link, or bring back its target"
            )
        if not path.exists():
            missing.append(want)
            continue
        got = "another size" if path.stat().st_size != want.size else _hash(path, want, report)
        if got == want.sha256:
            adopted.append(want.path)
            if not check:
                proofs.add(want, path, adopted=want.path not in proofs.files or want.path in proofs.adopted)
        elif want.path in proofs.files and want.path not in proofs.adopted:
            missing.append(want)  # we brought it and it rotted since: fetched again and replaced by rename
        else:
            size = path.stat().st_size
            detail = (
                f"it has {size} bytes, expected {want.size}"
                if size != want.size
                else f"SHA-256 is {got}, expected {want.sha256}"
            )
            raise BigironError(
                f"a file of that name is there and has other content ({detail}); it was not made by bigiron and stays",
                where=str(path),
                hint="move it away and run it again",
            )
    return missing, known, adopted


def _elsewhere(revision: Revision, missing: list[Wanted], report: Callable[..., None]) -> dict[str, Path]:
    """Missing files that bigiron brought for another revision, by path: hundreds of gigabytes are not fetched twice.

    What a person has elsewhere under the root is theirs: Refused, with the move.
    """
    names: dict[str, list[Path]] = {want.path.rsplit("/", 1)[-1]: [] for want in missing}
    for folder, _, files in os.walk(revision.root) if missing else ():
        for name in names.keys() & set(files):
            names[name].append(Path(folder, name))
    ours: dict[str, Path] = {}
    moves = []
    for want in missing:
        target = revision.folder / want.path
        device = _existing(target.parent).stat().st_dev
        for path in names[target.name]:
            if path.is_symlink() or path.stat().st_size != want.size:
                continue
            owner = _owner(revision.root, path)
            if owner is None and _hash(path, want, report) == want.sha256:
                moves.append((path, target))
                break
            if owner is not None and owner[0].holds(replace(want, path=owner[1]), path) and path.stat().st_dev == device:
                ours[want.path] = path
                break
    if moves:
        path, target = moves[0]
        folder = shlex.quote(str(target.parent))
        raise Refused(
            f"{count(len(moves), 'file')} of the model found elsewhere, not fetched again: {path} is {target.name}",
            where=str(revision.root),
            hint=f"mkdir -p {folder} && mv {shlex.join(str(path) for path, _ in moves)} {folder}/",
        )
    return ours


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def _owner(root: Path, path: Path) -> Optional[tuple[Proofs, str]]:
    """The record of the revision that brought ``path``, and its path there; None when it is a person's."""
    parts = path.relative_to(root).parts
    if len(parts) < 4:
        return None
    folder = root.joinpath(*parts[:3])
    proofs, name = Proofs(folder), "/".join(parts[3:])
    return (proofs, name) if name in proofs.files and name not in proofs.adopted else None


def _hash(path: Path, want: Wanted, report: Callable[..., None]) -> str:
    return sha256_of(path, lambda done: report(f"checking {want.path}", done, want.size, "bytes"))


def _refuse_small_disk(folder: Path, missing: list[Wanted], reserve_bytes: int) -> None:
    """Compare what is still to come, per file system, with what is free; bytes in a kept part need no room any more."""
    need: dict[int, int] = {}
    place: dict[int, Path] = {}
    for want in missing:
        path = folder / want.path
        parent = _existing(path.parent)
        device = parent.stat().st_dev
        place[device] = parent
        part = path.with_name(path.name + ".part")
        kept = part.stat().st_size if part.is_file() else 0
        need[device] = need.get(device, 0) + (want.size - kept)
    for device, size in need.items():
        status = os.statvfs(place[device])
        free = status.f_bavail * status.f_frsize
        if size + reserve_bytes > free:
            raise Refused(
                f"{count(len(missing), 'file')} missing: {gib(size)} needed, {gib(free)} free, {gib(reserve_bytes)} in reserve",
                where=str(place[device]),
                hint="make room, choose a smaller quant, or set model_root to a larger file system",
            )


@dataclass(frozen=True)
class _Counter:
    """Turns the bytes of one file into the bytes of the whole set."""

    report: Callable[..., None]
    before: int
    wanted: list[Wanted]

    def __call__(self, done: int) -> None:
        self.report("fetching", self.before + done, sum(want.size for want in self.wanted), "bytes")


def _make_folders(folder: Path) -> None:
    """Make what is missing, open for reading to all whatever the umask is; folders that exist keep their mode."""
    if folder.is_dir():
        if not os.access(folder, os.W_OK | os.X_OK):
            raise BigironError("cannot write into this folder", where=str(folder), hint=f"it belongs to {owner_of(folder)}")
        return
    _make_folders(folder.parent)
    try:
        folder.mkdir()
        folder.chmod(0o755)
    except OSError as error:
        raise BigironError(
            f"cannot make this folder: {error.strerror}", where=str(folder), hint=f"above it: {owner_of(folder)}"
        ) from error


def remove_recorded(root: Path, *, check: bool = False) -> list[str]:
    """Remove the files that bigiron brought under ``root`` (records say which) and the folders that this empties.

    Files a person brought, adopted or unknown, stay. Returns the removed paths.
    """
    removed: list[str] = []
    for record in sorted(root.glob(f"*/*/*/{RECORD}")):
        folder = record.parent
        proofs = Proofs(folder)
        ours = [folder / name for name in proofs.files if name not in proofs.adopted]
        removable = [path for path in [*ours, *folder.rglob("*.part"), record] if path.is_file() or path.is_symlink()]
        removed += [str(path) for path in removable]
        if check:
            continue
        for path in removable:
            path.unlink()
        for inside in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
            _rmdir(inside)
        for empty in (folder, folder.parent, folder.parent.parent):
            _rmdir(empty)
    if root.is_dir() and removed and not check:
        _rmdir(root)
    return removed


def _rmdir(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not empty: something of a person's is in it
        folder.rmdir()
