"""The source of a build: brought from the first address that has it, proved to be what was asked for, unpacked.

Standard library only: this file also runs on hosts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple
from urllib.parse import unquote, urlsplit

from ..errors import BigironError, Refused
from . import release
from .fetch import Item, Patience, fetch
from .system import sha256_of

GIT = "git+"
PATIENCE_S = 300.0
"""How long the last address may keep a run waiting; one that has another behind it gets a tenth."""
GIT_TIMEOUT_S = 900.0
FULL_BYTES, FULL_FILES = 4 * 1024 * 1024, 16
"""A file system with less left is full for a build that has just failed on it."""
OURS = re.compile(r"^\s*project\s*\(\s*\"?(llama\.cpp|llama)\b", re.MULTILINE | re.IGNORECASE)
"""llama.cpp's own CMakeLists.txt, and that of its forks."""


@dataclass(frozen=True)
class Source:
    """An archive (``sha256``) or a repository (``git+...``, ``commit``) at ``url`` or one of its ``mirrors``; ``subdir`` has its CMakeLists.txt."""

    url: str
    mirrors: Tuple[str, ...]
    sha256: str
    subdir: str
    commit: str

    @property
    def is_git(self) -> bool:
        return self.url.startswith(GIT)

    @property
    def identity(self) -> Dict[str, str]:
        """As `bigiron.plan.sources.Source.identity`."""
        return {"source_commit": self.commit} if self.is_git else {"source_sha256": self.sha256}

    def check(self) -> None:
        """Raise Refused for a source that is not pinned."""
        if self.is_git and not re.fullmatch(r"[0-9a-f]{40}", self.commit):
            what = f"{self.commit or 'nothing'} is no full commit, and what a branch or tag names may change"
            raise Refused(what, where="llama_cpp_commit", hint="give the commit, 40 hex digits: git ls-remote URL TAG")
        if not self.is_git and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise Refused(
                "a build needs llama_cpp_source_url with llama_cpp_source_sha256 (64 hex digits), or a git repository with llama_cpp_commit",
                where="llama_cpp",
            )


def unpacked(source: Source, work: Path, archives: Path, report: Callable[..., None]) -> Path:
    """The folder with llama.cpp's CMakeLists.txt, in ``work``; an archive is kept in ``archives`` under its SHA-256 for the next build."""
    folder = work / "src"
    if not folder.is_dir():
        archives.mkdir(mode=0o755, parents=True, exist_ok=True)
        archive = archives / (source.commit + ".git.tar" if source.is_git else source.sha256)
        if source.is_git or not archive.is_file() or sha256_of(archive) != source.sha256:
            with contextlib.suppress(FileNotFoundError):
                archive.unlink()
            _bring(source, archive, work, report)
        report("unpacking the source", 0, 1)
        fresh = work / "src.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o755)
        try:
            release.unpack(archive, fresh, source.subdir)
        except OSError as error:
            raise no_room(error, fresh) from error
        if source.is_git:
            archive.unlink()  # unlike an archive it has no sum by which the next build could trust it
        fresh.rename(folder)
    return _is_llama_cpp(folder / source.subdir if source.subdir else _only_folder(folder), source)


def is_full(folder: Path) -> bool:
    """Whether the file system has no room, or no more files; cmake and compilers do not always say why they could not write."""
    now = os.statvfs(folder)
    return now.f_bavail * now.f_frsize < FULL_BYTES or (now.f_files > 0 and now.f_favail < FULL_FILES)


def no_room(error: OSError, where: Path) -> BigironError:
    """``error`` in words; a full disk looks the same wherever it is met."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BigironError("the disk is full", where=str(where), hint="make room and run it again")
    return BigironError(error.strerror or str(error), where=str(error.filename or where))


def _only_folder(folder: Path) -> Path:
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def _is_llama_cpp(folder: Path, source: Source) -> Path:
    try:
        text = (folder / "CMakeLists.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise BigironError(
            f"the source has no {source.subdir or '.'}/CMakeLists.txt", where=source.url,
            hint="set llama_cpp_source_subdir to the folder that holds llama.cpp's CMakeLists.txt",
        ) from None  # fmt: skip
    if not OURS.search(text):
        named = re.search(r"^\s*project\s*\(\s*\"?([^\s\")]+)", text, re.MULTILINE | re.IGNORECASE)
        what = f"the source is not llama.cpp: its CMakeLists.txt is of project {named.group(1) if named else '(none)'}"
        raise BigironError(
            what, where=source.url, hint="check llama_cpp_source_url and llama_cpp_source_subdir; nothing was compiled"
        )
    return folder


def _bring(source: Source, archive: Path, work: Path, report: Callable[..., None]) -> None:
    """``archive`` from the first address that has what was asked for. Raises BigironError that says what each answered."""
    addresses = [url for url in (source.url, *source.mirrors) if url]
    if not addresses:
        raise BigironError("the source archive is not on this host, and no address is given", where="llama_cpp_source_url")
    failed: List[BigironError] = []
    for url in addresses:
        patience_s = PATIENCE_S if url == addresses[-1] else PATIENCE_S / 10
        try:
            if source.is_git:
                _clone(url[len(GIT) :], source.commit, archive, work, report)
            else:
                _archive(url, source.sha256, archive, patience_s, report)
        except BigironError as error:
            failed.append(error)
        else:
            return
    if len(failed) == 1:
        raise failed[0]
    told = "; ".join(f"{url}: {error.what}" for url, error in zip(addresses, failed))
    raise BigironError(f"none of {len(addresses)} addresses has the source: {told}", hint=failed[-1].hint)


def _archive(url: str, sha256: str, archive: Path, patience_s: float, report: Callable[..., None]) -> None:
    """``file://`` names a file on this host, for hosts without a network."""
    if not url.startswith("file://"):
        fetch(
            Item(url, archive, sha256),
            patience=Patience(patience_s),
            report=lambda done: report("fetching the source", done, 0, "bytes"),
        )
        return
    local = Path(unquote(urlsplit(url).path))
    if not local.is_file():
        raise BigironError("the source archive is not on this host", where=url)
    got = sha256_of(local)
    if got != sha256:
        raise BigironError(f"wrong content: SHA-256 is {got}, expected {sha256}", where=str(local))
    try:
        shutil.copyfile(local, archive)
    except OSError as error:
        raise no_room(error, archive) from error


def _clone(url: str, commit: str, archive: Path, work: Path, report: Callable[..., None]) -> None:
    """Exactly ``commit`` of the repository, without its history, as a tar archive."""
    report("fetching the commit", 0, 1)
    bare = work / "git"
    shutil.rmtree(bare, ignore_errors=True)
    try:
        _git(["init", "--quiet", "--bare", str(bare)], work, url)
        answer = _git(["fetch", "--quiet", "--depth=1", "--no-tags", url, commit], work, url, bare, check=False)
        if answer.returncode != 0:
            raise _not_fetched(answer.stderr, url, commit)
        _git(["archive", "--format=tar", f"--output={archive}", commit], work, url, bare)
    finally:
        shutil.rmtree(bare, ignore_errors=True)


def _not_fetched(said: str, url: str, commit: str) -> BigironError:
    if re.search(r"not our ref|couldn't find remote ref|no such remote ref", said, re.IGNORECASE):
        return BigironError(
            f"commit {commit} does not exist there",
            where=url,
            hint="git ls-remote URL shows what does; or set llama_cpp_commit",
        )
    if re.search(r"unadvertised object", said):
        hint = "use another mirror, or an archive with its SHA-256"
        return BigironError("this server gives no single commit (uploadpack.allowReachableSHA1InWant)", where=url, hint=hint)
    lines = [line for line in said.strip().splitlines() if line.strip()]
    return BigironError(f"git fetch failed: {lines[-1].strip() if lines else 'no message'}", where=url)


def _git(
    words: List[str], work: Path, url: str, bare: Optional[Path] = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run git as nobody's user: without the settings, credentials, hooks and prompts of whoever runs this."""
    environment = release.clean_environment(
        HOME=str(work), GIT_CONFIG_NOSYSTEM="1", GIT_TERMINAL_PROMPT="0", GIT_SSH_COMMAND="ssh -o BatchMode=yes"
    )
    argv = ["git", *([f"--git-dir={bare}"] if bare else []), "-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", *words]
    extra: Dict[str, Any] = {"env": environment, "stdin": subprocess.DEVNULL, "cwd": str(work)}
    try:
        answer = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", check=False, timeout=GIT_TIMEOUT_S, **extra
        )
    except FileNotFoundError:
        raise BigironError("not installed: git", hint="apply role base with base_packages, or install it") from None
    except subprocess.TimeoutExpired:
        raise BigironError(f"git gave no answer within {GIT_TIMEOUT_S:.0f} s", where=url) from None
    if check and answer.returncode != 0:
        raise BigironError(f"git {words[0]} failed: {answer.stderr.strip()[-300:]}", where=url)
    return answer
