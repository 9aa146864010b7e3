"""Pins what a wish leaves open of llama.cpp's source: packs a folder of the controller, asks a repository what a floating name is today."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bigiron.errors import BigironError, Refused
from bigiron.fleet.inventory import clean_env
from bigiron.paths import cache_dir, write_atomic
from bigiron.plan import sources

GIT_TIMEOUT_S = 60.0


def pinned(wish: Mapping[str, Any]) -> Mapping[str, Any]:
    """``wish`` with a source that is pinned: nothing is done where it is already.

    Raises Refused for a folder that is not llama.cpp's, BigironError when a repository does not answer.
    """
    source = sources.read(wish)
    if source.kind == sources.TREE:
        archive, digest = pack(Path(source.url))
        return {**wish, "llama_cpp_source_sha256": digest, "llama_cpp_source_packed": str(archive)}
    if source.kind == sources.GIT and not sources.COMMIT.fullmatch(source.commit):
        return {**wish, "llama_cpp_commit": resolve((source.url, *source.mirrors), source.commit)}
    return wish


def resolve(urls: tuple[str, ...], name: str) -> str:
    """The commit that a branch or a tag of the first repository that answers names now."""
    told = []
    for url in urls:
        argv = ["git", "ls-remote", url.removeprefix("git+"), name, f"{name}^{{}}"]
        environment = {**clean_env(), "GIT_TERMINAL_PROMPT": "0"}
        try:
            answer = subprocess.run(
                argv,
                capture_output=True,
                text=True,
                check=False,
                env=environment,
                timeout=GIT_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
            )
        except FileNotFoundError:
            raise BigironError("git is not installed on the controller", hint="install it, or give the full commit") from None
        except subprocess.TimeoutExpired:
            told.append(f"{url}: no answer within {GIT_TIMEOUT_S:.0f} s")
            continue
        found = {ref: commit for commit, _, ref in (line.partition("\t") for line in answer.stdout.splitlines())}
        for ref in (f"refs/tags/{name}^{{}}", f"refs/tags/{name}", f"refs/heads/{name}"):
            if ref in found:
                return found[ref]
        said = answer.stderr.strip().splitlines()
        told.append(f"{url}: {said[-1] if answer.returncode and said else f'no branch or tag {name}'}")
    raise Refused("; ".join(told), where="llama_cpp_commit", hint="git ls-remote URL lists its branches and tags")


def pack(folder: Path) -> tuple[Path, str]:
    """``folder`` as a tar.gz in the cache, whose bytes depend on names, contents and execute bits only: ``(archive, SHA-256)``.

    Of a git work tree the files that git knows or would add, changed ones as they are now; else all but ``.git``. An unchanged folder is
    recognised by the sizes and times of its files. Raises Refused for a folder that is not llama.cpp's.
    """
    if not (folder / "CMakeLists.txt").is_file():
        what = "is no folder" if not folder.is_dir() else "has no CMakeLists.txt"
        hint = "name the folder of llama.cpp's source on this machine, the controller"
        raise Refused(f"llama_cpp_source_url {what}", where=str(folder), hint=hint)
    names = _names(folder)
    seen = hashlib.sha256(str(folder.resolve()).encode())
    for name in names:
        status = (folder / name).lstat()
        seen.update(f"\0{name}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_mode}\0{status.st_ino}".encode())
    note = cache_dir("sources") / f"tree-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]}.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        known = json.loads(note.read_text(encoding="utf-8"))
        archive = cache_dir("sources") / f"tree-{known['sha256'][:16]}.tar.gz"
        if known["seen"] == seen.hexdigest() and archive.stat().st_size == known["size"]:
            return archive, str(known["sha256"])
    archive, digest = _pack(folder, names)
    write_atomic(note, json.dumps({"seen": seen.hexdigest(), "sha256": digest, "size": archive.stat().st_size}))
    return archive, digest


def _names(folder: Path) -> list[str]:
    """Relative paths of the files (and links) that belong to the source, sorted."""
    if (folder / ".git").exists():
        argv = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        with contextlib.suppress(OSError):
            answer = subprocess.run(argv, capture_output=True, check=False, env=clean_env(), timeout=GIT_TIMEOUT_S)
            if answer.returncode == 0:
                listed = {os.fsdecode(name) for name in answer.stdout.split(b"\0") if name}
                return sorted(name for name in listed if (folder / name).is_file() or (folder / name).is_symlink())
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if (path.is_symlink() or path.is_file()) and ".git" not in path.relative_to(folder).parts
    )


def _pack(folder: Path, names: list[str]) -> tuple[Path, str]:
    import gzip  # a run without a folder for a source does not pay for these
    import tarfile
    import tempfile

    handle, temporary = tempfile.mkstemp(dir=cache_dir("sources"), prefix=".tree-")
    try:
        with os.fdopen(handle, "w+b") as raw:
            with (
                gzip.GzipFile("", "wb", 1, raw, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
            ):
                for name in names:
                    path = folder / name
                    member = tar.gettarinfo(str(path), arcname=f"llama.cpp/{name}")
                    member.uid = member.gid = member.mtime = 0
                    member.uname = member.gname = ""
                    member.mode = 0o755 if member.mode & 0o100 else 0o644
                    if member.isfile():
                        with path.open("rb") as content:
                            tar.addfile(member, content)
                    elif member.issym():
                        tar.addfile(member)
            raw.seek(0)
            digest = hashlib.file_digest(raw, "sha256").hexdigest()
        archive = cache_dir("sources") / f"tree-{digest[:16]}.tar.gz"
        Path(temporary).chmod(0o644)
        Path(temporary).replace(archive)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return archive, digest
