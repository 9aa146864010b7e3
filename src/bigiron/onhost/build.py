"""Makes a llama.cpp release stand on this host: takes it as it is, installs a packed one, or builds it from pinned source.

Standard library only: this file also runs on hosts. Whatever fails or is killed on the way, ``current`` still points at
what it pointed at before: a release appears by one rename, and only after it was proved.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

from ..errors import BigironError
from . import fit, gpuproof, release, trial
from .compile import Request, collect, compile_release, named
from .progress import Progress
from .source import no_room
from .system import sha256_of

__all__ = ["Request", "ensure", "main"]


def main(request: dict[str, Any]) -> dict[str, Any]:
    """See `ensure`; JSON in, JSON out."""
    lists = {name: tuple(request.get(name) or ()) for name in ("targets", "source_mirrors", "library_path", "compilers")}
    return ensure(Request(**{**request, **lists}))


def ensure(request: Request, progress: Optional[Callable[..., None]] = None) -> dict[str, Any]:
    """Make ``current`` the release of this fingerprint; with ``activate`` off it is only made, and nothing that runs is touched.

    Returns ``{"changed", "how", "fingerprint", "release", "before", "pruned"}``, ``how`` being ``"present"``, ``"archive"`` or
    ``"built"``; outside check mode also ``"manifest"``, ``"trial"`` (`trial.beside`) and ``"findings"`` for a person, and ``"packed"`` and
    ``"packed_sha256"`` when asked for.
    """
    request = named(request)
    if not request.fingerprint:
        if request.check:  # the compiler is going to be installed by role base
            return {"changed": True, "how": "built", "fingerprint": "", "release": "", "before": None, "pruned": []}
        raise BigironError("g++ is not installed", hint="apply role base with base_packages, or install it")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{5,63}", request.fingerprint):
        raise BigironError(f"not a usable fingerprint: {request.fingerprint!r}", where="llama_cpp_fingerprint")
    report = Progress("llama_cpp") if progress is None else progress
    layout = request.layout
    folder = layout.release(request.fingerprint)
    before = layout.target(layout.current)
    how = "present" if not release.problems(folder, request.fingerprint) else "archive" if request.archive else "built"
    answer: dict[str, Any] = {
        "fingerprint": request.fingerprint,
        "release": str(folder),
        "before": before,
        "how": how,
        "pruned": [],
    }
    if request.check:
        return {**answer, "changed": how != "present" or (request.activate and before != request.fingerprint)}
    try:
        changed = False
        if how != "present":
            with _only_one(request, report):
                if release.problems(folder, request.fingerprint):  # another run may have made it while this one waited
                    _install(request, report)
                    changed = True
        if request.activate:
            changed = _take_into_use(request, answer, report, new=changed) or changed
        if request.pack:
            archive = Path(request.build_root) / "releases" / f"{request.fingerprint}.tar.gz"
            report("packing the release", 0, 1)
            answer.update(packed=str(archive), packed_sha256=release.pack(folder, archive))
        return {**answer, "changed": changed, "manifest": release.read_manifest(folder)}
    except OSError as error:
        raise no_room(error, folder) from error
    finally:
        if isinstance(report, Progress):
            report.close()


def _take_into_use(request: Request, answer: dict[str, Any], report: Callable[..., None], *, new: bool) -> bool:
    """Prove the release where it is going to serve, then move ``current``; whether that moved. ``answer`` gets ``pruned`` and ``findings``."""
    layout, before = request.layout, answer["before"]
    moves = before != request.fingerprint
    if request.gpu and (new or moves):
        gpuproof.prove(layout.release(request.fingerprint), request.user, request.gpu)
    if request.trial and before and moves:
        tried = trial.beside(layout, request.fingerprint, request.user, bool(request.gpu), report)
        if tried:
            answer["trial"] = tried
            answer["findings"] = [tried["told"]]
    moved = release.flip(layout, request.fingerprint) is not None or before is None
    answer["pruned"] = release.prune(layout)
    _drop_old_files(request)
    return moved


def _drop_old_files(request: Request) -> None:
    """Keep the source archive of this release and the packed releases of the kept ones; the rest is of no use any more."""
    kept = {path.name for path in request.layout.releases.iterdir()}
    for archive in Path(request.build_root, "sources").glob("*"):
        if request.source_sha256 and not archive.name.startswith(request.source_sha256):
            archive.unlink()
    for archive in Path(request.build_root, "releases").glob("*.tar.gz"):
        if archive.name[: -len(".tar.gz")] not in kept:
            archive.unlink()


@contextlib.contextmanager
def _only_one(request: Request, report: Callable[..., None]) -> Iterator[None]:
    """One build at a time on a host. The compiler inherits the lock, so one that outlives a killed run still holds it."""
    root = Path(request.build_root)
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle = os.open(root / "build.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        waited_since = time.monotonic()
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                waited = time.monotonic() - waited_since
                if waited > request.lock_wait_s:
                    raise BigironError(
                        "another build still runs", where=str(root / "build.lock"), hint="stop it, or wait"
                    ) from None
                report("waiting for another build on this host", int(waited), int(request.lock_wait_s))
                time.sleep(1)
        os.set_inheritable(handle, True)
        yield
    finally:
        os.close(handle)


def _install(request: Request, report: Callable[..., None]) -> None:
    """Fill a staging folder, prove it, give it its name; a folder of that name that is not sound is moved out of the way."""
    if not request.archive:
        compile_release(request, report)
    stage = release.staging(request.layout)
    try:
        if request.archive:
            identity = _from_archive(request, stage, report)
            facts = {}
        else:
            identity, facts = request.identity, collect(request, stage)
        fit.check(identity, request.gpu)
        report("proving the installed program", 0, 1)
        proved = release.prove(stage, request.user, request.work)
        if not request.archive:
            release.write_manifest(stage, request.fingerprint, identity, {**facts, **proved})
        folder = request.layout.release(request.fingerprint)
        if folder.exists():
            if request.layout.target(request.layout.current) == request.fingerprint:
                # a new link tells that the server runs files that are gone, also to the next run when this one is killed
                release.point(request.layout.current, f"releases/{request.fingerprint}")
            folder.rename(stage.with_name(f"{release.STAGING}broken-{request.fingerprint}"))
        stage.rename(folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        for leftover in request.layout.releases.glob(release.STAGING + "broken-*"):
            shutil.rmtree(leftover, ignore_errors=True)
    if not request.archive:
        shutil.rmtree(request.work, ignore_errors=True)  # ccache and the source archive make the next build cheap


def _from_archive(request: Request, stage: Path, report: Callable[..., None]) -> dict[str, Any]:
    archive = Path(request.archive)
    report("installing the packed release", 0, 1)
    if not archive.is_file():
        raise BigironError("the packed release is not there", where=str(archive))
    got = sha256_of(archive)
    if request.archive_sha256 and got != request.archive_sha256:
        archive.unlink()
        raise BigironError(
            f"wrong content: SHA-256 is {got}, expected {request.archive_sha256}; it was removed", where=str(archive)
        )
    release.unpack(archive, stage)
    stage.chmod(0o755)
    found = release.problems(stage, request.fingerprint)
    if found:
        raise BigironError(f"the packed release is not sound: {found[0].replace(str(stage) + '/', '')}", where=str(archive))
    identity: dict[str, Any] = release.read_manifest(stage)["identity"]
    return identity
