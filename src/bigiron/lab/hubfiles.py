"""Lays a folder of model files out as the hub's HTTP API, in static files that nginx serves.

Shapes are those of the public hub (``GET /api/models/<repo>/tree/<revision>``, ``HEAD /<repo>/resolve/<revision>/<path>``), as
huggingface_hub 2 reads them.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from bigiron import paths

LFS_SUFFIXES = (".gguf",)


@dataclass(frozen=True)
class RepoFile:
    """One file of a repository: ``size`` in bytes, ``oid`` what git calls it (a blob, or the pointer of an LFS file)."""

    path: str
    size: int
    sha256: str
    oid: str
    lfs: bool

    @property
    def etag(self) -> str:
        """What the hub sends as ETag: the content's SHA-256 for an LFS file, git's name for any other."""
        return self.sha256 if self.lfs else self.oid

    def entry(self) -> dict[str, Any]:
        """The file in a tree listing."""
        entry: dict[str, Any] = {"type": "file", "oid": self.oid, "size": self.size, "path": self.path}
        if self.lfs:
            entry["lfs"] = {"oid": self.sha256, "size": self.size, "pointerSize": len(pointer(self.sha256, self.size))}
        return entry


def pointer(sha256: str, size: int) -> bytes:
    """The text git stores in place of an LFS file."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def git_blob(data: bytes) -> str:
    """Git's name for a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def sha256_file(path: Path) -> str:
    """SHA-256 of a file, streamed."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def describe(folder: Path) -> list[RepoFile]:
    """Every file in ``folder``, hashed, by path."""
    files = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, size, digest = path.relative_to(folder).as_posix(), path.stat().st_size, sha256_file(path)
        lfs = path.suffix in LFS_SUFFIXES
        oid = git_blob(pointer(digest, size) if lfs else path.read_bytes())
        files.append(RepoFile(name, size, digest, oid, lfs))
    return files


def revision_of(files: list[RepoFile]) -> str:
    """A commit name that depends on names and contents alone, so that the same files are the same revision everywhere."""
    text = "".join(f"{file.sha256} {file.path}\n" for file in sorted(files, key=lambda file: file.path))
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def listing(files: list[RepoFile], folder: str, *, recursive: bool) -> list[dict[str, Any]]:
    """The tree listing of ``folder`` ("" is the top): files and directories, all levels or one."""
    top = PurePosixPath(folder)
    inside = [file for file in files if not folder or PurePosixPath(file.path).is_relative_to(top)]
    directories = {
        parent.as_posix()
        for file in inside
        for parent in PurePosixPath(file.path).parents
        if parent not in {PurePosixPath(), top, *top.parents}
    }
    entries = [
        {"type": "directory", "oid": hashlib.sha1(d.encode(), usedforsecurity=False).hexdigest(), "size": 0, "path": d}
        for d in directories
    ]
    entries += [file.entry() for file in inside]
    if not recursive:
        entries = [entry for entry in entries if PurePosixPath(str(entry["path"])).parent == top]
    return sorted(entries, key=lambda entry: str(entry["path"]))


def model_info(repo: str, revision: str, files: list[RepoFile]) -> dict[str, Any]:
    """The answer of ``/api/models/<repo>`` and ``.../revision/<revision>``, as far as it is about files."""
    return {
        "_id": revision[:24],
        "id": repo,
        "modelId": repo,
        "sha": revision,
        "private": False,
        "gated": False,
        "disabled": False,
        "tags": ["gguf"],
        "downloads": 0,
        "likes": 0,
        "siblings": [{"rfilename": file.path} for file in files],
    }


def publish(root: Path, repo: str, revision: str, files: list[RepoFile]) -> None:
    """Write the API's answers for ``repo`` at ``revision``, and for the branch ``main``, which then points to it.

    The files themselves are already in ``root/repos/<repo>/<revision>/``.
    """
    api = root / "api" / "models" / repo
    folders = {""} | {
        parent.as_posix() for file in files for parent in PurePosixPath(file.path).parents if parent != PurePosixPath()
    }
    for name in (revision, "main"):
        for folder in folders:
            for suffix, recursive in ((".json", True), (".flat.json", False)):
                target = api / "tree" / (f"{name}/{folder}" if folder else name)
                _write(target.with_name(target.name + suffix), listing(files, folder, recursive=recursive))
        _write(api / "revision" / f"{name}.json", model_info(repo, revision, files))
        _write(root / "index" / repo / f"{name}.json", {"commit": revision, "files": [asdict(file) for file in files]})
    _write(api.with_name(api.name + ".json"), model_info(repo, revision, files))
    link = root / "repos" / repo / "main"
    if not link.is_symlink() or link.readlink() != Path(revision):
        link.unlink(missing_ok=True)
        link.symlink_to(revision)


def published(root: Path) -> dict[str, dict[str, tuple[str, list[RepoFile]]]]:
    """What the folder serves: {repository: {revision or branch: (commit, files)}}."""
    repos: dict[str, dict[str, tuple[str, list[RepoFile]]]] = {}
    for path in sorted((root / "index").glob("*/*/*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        files = [RepoFile(**file) for file in data["files"]]
        repos.setdefault(path.parent.relative_to(root / "index").as_posix(), {})[path.stem] = (data["commit"], files)
    return repos


def maps(repos: dict[str, dict[str, tuple[str, list[RepoFile]]]], sources: dict[str, str]) -> str:
    """The nginx maps from a served file to the hub's headers. ``repos`` is :func:`published`, ``sources`` {name: SHA-256}."""
    tables: dict[str, list[tuple[str, str]]] = {
        "file_commit": [],
        "file_linked_etag": [],
        "file_linked_size": [],
        "file_etag": [],
    }
    codes: list[tuple[str, str]] = []
    for repo, revisions in sorted(repos.items()):
        for name, (commit, files) in sorted(revisions.items()):
            codes.append((f"~^/{re.escape(repo)}/resolve/{re.escape(name)}/", "EntryNotFound"))
            codes.append((f"~^/api/models/{re.escape(repo)}/tree/{re.escape(name)}/", "EntryNotFound"))
            for file in files:
                uri = f"/repos/{repo}/{name}/{file.path}"
                tables["file_commit"].append((uri, commit))
                tables["file_etag"].append((uri, f'"{file.etag}"'))
                if file.lfs:
                    tables["file_linked_etag"].append((uri, f'"{file.sha256}"'))
                    tables["file_linked_size"].append((uri, str(file.size)))
        codes.append((f"~^/(api/models/)?{re.escape(repo)}/", "RevisionNotFound"))
    tables["file_etag"] += [(f"/sources/{name}", f'"{digest}"') for name, digest in sorted(sources.items())]
    blocks = [_map(name, rows, "") for name, rows in tables.items()]
    return "".join([*blocks, _map("missing_code", codes, "RepoNotFound")])


def _map(variable: str, rows: list[tuple[str, str]], default: str) -> str:
    lines = "".join(f"    {_quoted(key)} {_quoted(value)};\n" for key, value in rows)
    return f"map $uri ${variable} {{\n    default {_quoted(default)};\n{lines}}}\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _write(path: Path, data: Any) -> None:
    paths.write_atomic(path, json.dumps(data, separators=(",", ":")))
