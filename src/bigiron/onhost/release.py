"""A release: one built llama.cpp in ``<prefix>/releases/<fingerprint>``, its manifest, its proof, and which one is current.

Standard library only: this file also runs on hosts.
"""

from __future__ import annotations

import contextlib
import grp
import gzip
import json
import os
import pwd
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Mapping, Optional, Sequence

from ..errors import BigironError
from .fit import cpu_flags, libc_version
from .progress import write_atomic
from .symptoms import SIGNALS
from .system import sha256_of

MANIFEST = "manifest.json"
STAGING = ".staging-"
DRIVER_LIBRARIES = ("libcuda.so.1 ", "libnvidia-ml.so.1 ")
"""They come with the kernel driver, which a host that only builds does not have; a backend that lacks them is not loaded."""
CLEAN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Layout:
    """The folders of releases below ``prefix`` (by default ``/opt/bigiron``)."""

    prefix: Path

    @property
    def releases(self) -> Path:
        return self.prefix / "releases"

    @property
    def current(self) -> Path:
        return self.prefix / "current"

    @property
    def previous(self) -> Path:
        return self.prefix / "previous"

    def release(self, fingerprint: str) -> Path:
        return self.releases / fingerprint

    def target(self, link: Path) -> Optional[str]:
        """The fingerprint that ``current`` or ``previous`` points at; ``None`` without a link."""
        try:
            return link.readlink().name
        except OSError:
            return None


def clean_environment(**extra: str) -> dict[str, str]:
    """What a build and a proof may see: no LD_LIBRARY_PATH, no LLAMA_*, no CFLAGS of whoever started this."""
    return {"PATH": CLEAN_PATH, "LC_ALL": "C", "LANG": "C", **extra}


def problems(release: Path, fingerprint: str) -> list[str]:
    """Why this folder is not a sound release of ``fingerprint``; empty when every file has its recorded size and SHA-256."""
    try:
        manifest = json.loads((release / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        named = manifest["fingerprint"]
    except FileNotFoundError:
        return [f"{release / MANIFEST} is missing"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"{release / MANIFEST} is not readable: {error}"]
    found = [] if named == fingerprint else [f"the manifest is of {named}, expected {fingerprint}"]
    for name, want in files.items():
        path = release / name
        try:
            if path.is_symlink() or not path.is_file():
                found.append(f"{path} is missing or no plain file")
            elif path.stat().st_size != want["size"] or sha256_of(path) != want["sha256"]:
                found.append(f"{path} differs from the manifest")
        except OSError as error:
            found.append(f"{path}: {error.strerror}")
    return found


def read_manifest(release: Path) -> dict[str, Any]:
    """The manifest of a release that `problems` found sound."""
    manifest: dict[str, Any] = json.loads((release / MANIFEST).read_text(encoding="utf-8"))
    return manifest


def write_manifest(release: Path, fingerprint: str, identity: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Record every file of ``release`` with size and SHA-256; the result has no time in it, so equal builds give equal text."""
    files = {
        str(path.relative_to(release)): {"size": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(release.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    manifest = {"fingerprint": fingerprint, "identity": identity, "files": files, **facts}
    write_atomic(release / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    return manifest


def staging(layout: Layout) -> Path:
    """A fresh folder beside the releases, so that taking it into use is one rename; leftovers of killed runs go first."""
    layout.releases.mkdir(mode=0o755, parents=True, exist_ok=True)
    for folder in (layout.prefix, layout.releases):
        folder.chmod(0o755)
    for leftover in layout.releases.glob(STAGING + "*"):
        shutil.rmtree(leftover)
    folder = Path(tempfile.mkdtemp(dir=str(layout.releases), prefix=STAGING))
    folder.chmod(0o755)
    return folder


def prove(release: Path, user: str, forbidden: Optional[Path] = None) -> dict[str, Any]:
    """Run the installed server as ``user`` with a clean environment and from another folder; see that every library is found.

    ``forbidden`` is the build folder: nothing may be loaded from there. Returns ``{"version", "help", "libc", "cpu_flags"}``.
    """
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise BigironError(
            f"the service user {user!r} does not exist",
            where="llama_cpp_user",
            hint="apply role base first, or name another user",
        ) from None
    server = release / "bin" / "llama-server"
    for path in sorted(release.rglob("*")):
        if path.is_file() and path.name != MANIFEST and _is_elf(path):
            _prove_libraries(path, account, forbidden)
    version = run_as(account, [str(server), "--version"])
    return {
        "version": (version.stdout + version.stderr).strip(),
        "help": run_as(account, [str(server), "--help"]).stdout,
        "libc": libc_version(),
        "cpu_flags": cpu_flags(),
    }


def _is_elf(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def _prove_libraries(path: Path, account: pwd.struct_passwd, forbidden: Optional[Path]) -> None:
    answer = subprocess.run(
        ["ldd", str(path)], capture_output=True, text=True, check=False, env=clean_environment(), cwd="/", **_as(account)
    )
    lines = [line.strip() for line in (answer.stdout + answer.stderr).splitlines() if "not found" in line]
    missing = [line for line in lines if not line.startswith(DRIVER_LIBRARIES)]
    if missing:
        raise BigironError(
            f"a library is missing: {'; '.join(missing[:3])}",
            where=str(path),
            hint="install the package that holds it, or build on a host of the same distribution",
        )
    if forbidden is not None and f"=> {forbidden}/" in answer.stdout:
        raise BigironError("it would load libraries from the build folder, which is going to be removed", where=str(path))


def _as(account: pwd.struct_passwd, groups: Sequence[str] = ()) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}  # an unprivileged run proves as itself
    more = [each.gr_gid for each in grp.getgrall() if each.gr_name in groups]
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": more}


def run_as(
    account: pwd.struct_passwd,
    argv: list[str],
    timeout_s: float = 60.0,
    environment: Mapping[str, str] = MappingProxyType({}),
    groups: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a program of a release as the service would; a death by signal or a non-zero exit is an error that says which."""
    try:
        answer = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", check=False, timeout=timeout_s,
            env=clean_environment(**environment), cwd="/", stdin=subprocess.DEVNULL, **_as(account, groups),
        )  # fmt: skip
    except OSError as error:
        raise BigironError(f"cannot be run by {account.pw_name}: {error.strerror}", where=argv[0]) from error
    except subprocess.TimeoutExpired as error:
        raise BigironError(f"no answer within {timeout_s:.0f} s", where=" ".join(argv)) from error
    if answer.returncode != 0:
        plain = f"signal {-answer.returncode}" if answer.returncode < 0 else f"exit code {answer.returncode}"
        how, hint = SIGNALS.get(-answer.returncode, (plain, None))
        what = f"does not run as {account.pw_name} ({how}): {answer.stderr.strip()[-400:]}"
        raise BigironError(what, where=" ".join(argv), hint=hint)
    return answer


def flip(layout: Layout, fingerprint: str) -> Optional[str]:
    """Point ``current`` at ``fingerprint`` in one step, and remember the old one as ``previous``.

    Returns the old one; None when nothing changed.
    """
    old = layout.target(layout.current)
    if old == fingerprint:
        return None
    if old is not None and layout.release(old).is_dir():
        point(layout.previous, f"releases/{old}")
    point(layout.current, f"releases/{fingerprint}")
    return old


def point(link: Path, target: str) -> None:
    """Make ``link`` a new link to ``target``, in one step."""
    temporary = link.with_name(f".{link.name}.new")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    temporary.symlink_to(target)
    temporary.replace(link)


def prune(layout: Layout) -> list[str]:
    """Remove every release but those that run now or that a link in the prefix names (current, previous); returns the removed ones."""
    keep = {layout.target(link) for link in layout.prefix.iterdir()} | in_use(layout)
    removed = []
    for folder in sorted(layout.releases.iterdir()):
        if folder.is_dir() and not folder.name.startswith(".") and folder.name not in keep:
            shutil.rmtree(folder)
            removed.append(folder.name)
    return removed


def in_use(layout: Layout) -> set[str]:
    """The fingerprints whose programs some process is running now."""
    used = set()
    base = str(layout.releases.resolve()) + "/"
    for exe in Path("/proc").glob("[0-9]*/exe"):
        with contextlib.suppress(OSError):
            target = str(exe.readlink())
            if target.startswith(base):
                used.add(target[len(base) :].split("/", 1)[0])
    return used


def pack(release: Path, archive: Path) -> str:
    """Write ``release`` as a tar.gz whose bytes depend on the content only; returns its SHA-256."""
    archive.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    temporary = archive.with_name(f".{archive.name}.new")
    with temporary.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
        _write_tar(release, packed)
    temporary.chmod(0o644)
    temporary.replace(archive)
    return sha256_of(archive)


def _write_tar(release: Path, stream: gzip.GzipFile) -> None:
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for path in sorted(release.rglob("*")):
            member = tar.gettarinfo(str(path), arcname=str(path.relative_to(release)))
            member.uid = member.gid = 0
            member.uname = member.gname = "root"
            member.mtime = 0
            if member.isfile():
                with path.open("rb") as content:
                    tar.addfile(member, content)
            else:
                tar.addfile(member)


def unpack(archive: Path, folder: Path, subdir: str = "") -> None:
    """Unpack a tar archive (only ``subdir`` of it) into ``folder``; a member that could write elsewhere is an error.

    ``tarfile``'s own data filter does the same where Python has it (3.9.17, 3.10.12, 3.11.4 and later); Debian 12 has 3.11.2.
    """
    prefix = f"{subdir.strip('/')}/" if subdir.strip("/") else ""
    try:
        with tarfile.open(archive) as tar:
            members = [member for member in tar if not prefix or f"{member.name.rstrip('/')}/".startswith(prefix)]
            for member in members:
                _check_member(member, archive)
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                member.uid = member.gid = os.geteuid()
                member.uname = member.gname = ""
            extra: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(folder, members, **extra)  # noqa: S202 (every member was checked above)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise BigironError(f"not a readable tar archive: {error}", where=str(archive)) from error


def _check_member(member: tarfile.TarInfo, archive: Path) -> None:
    def inside(name: str, start: str = "") -> bool:
        depth = 0
        for part in PurePosixPath(start, name).parts:
            depth += -1 if part == ".." else 1
            if depth < 0:
                return False
        return not PurePosixPath(name).is_absolute()

    ok = inside(member.name) and (member.isfile() or member.isdir() or member.issym() or member.islnk())
    if ok and member.issym():
        ok = inside(member.linkname, str(PurePosixPath(member.name).parent))
    elif ok and member.islnk():
        ok = inside(member.linkname)
    if not ok:
        raise BigironError(f"the member {member.name!r} would reach outside the folder it is unpacked into", where=str(archive))
