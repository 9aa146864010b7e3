"""A toolkit from files of the Python package index: brought by pip, checked by SHA-256, unpacked into one folder with the links that linkers want.

Standard library only: `bring` runs on the controller and `install` on hosts, neither of which needs anything but Python (the controller: pip).
"""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Callable, List, Mapping, Sequence

from ..errors import BigironError, Refused
from .kinds.toolkit import RECORD, read_record
from .progress import write_atomic
from .source import no_room
from .system import sha256_of

PIP_TIMEOUT_S = 1800


def lacking(root: Path, wheels: Sequence[Mapping[str, str]]) -> List[str]:
    """The files of ``wheels`` (``{"file", "sha256"}``) that ``root`` was not made of; all of them when something of it is gone."""
    record = read_record((root / RECORD).read_text(encoding="utf-8")) if (root / RECORD).is_file() else {}
    whole = record and all((root / name).exists() for name in record["files"])
    return [each["file"] for each in wheels if not whole or record["wheels"].get(each["file"]) != each["sha256"]]


def bring(wheels: Sequence[Mapping[str, str]], folder: Path) -> List[str]:
    """Have every wheel (``{"name", "version", "file", "sha256"}``) in ``folder``; the names of those that pip fetched.

    Raises BigironError when pip cannot, with how to do without it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [
        each for each in wheels if not (folder / each["file"]).is_file() or sha256_of(folder / each["file"]) != each["sha256"]
    ]
    if not wanted:
        return []
    work = Path(tempfile.mkdtemp(prefix="tmp-pip-", dir=str(folder)))
    try:
        pins = work / "requirements.txt"
        lines = [f"{each['name']}=={each['version']} --hash=sha256:{each['sha256']}\n" for each in wanted]
        pins.write_text("".join(lines), encoding="ascii")
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--no-input"]
        argv += ["--require-hashes", "--only-binary", ":all:", *_platform(wanted)]
        argv += ["--dest", str(work), "--requirement", str(pins)]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=PIP_TIMEOUT_S, check=False, cwd="/"
        )  # fmt: skip
        if done.returncode != 0:
            told = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
                done.stderr.strip() or "no output"
            ]
            raise BigironError(
                told[-1].replace("ERROR: ", "", 1).strip(),
                where="pip download " + " ".join(each["name"] for each in wanted),
                hint=f"fetch the files on another machine and put them into {folder}: "
                + " ".join(each["file"] for each in wanted),
            )
        for each in wanted:
            (work / each["file"]).replace(folder / each["file"])
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return [each["file"] for each in wanted]


def _platform(wheels: Sequence[Mapping[str, str]]) -> List[str]:
    """The hosts' platform, whatever the controller is."""
    tags = [tag for each in wheels for tag in each["file"][: -len(".whl")].split("-")[-1].split(".")]
    return [word for tag in dict.fromkeys(tags) for word in ("--platform", tag)]


def install(root: Path, wheels: Sequence[Mapping[str, str]], source: Path, inside: str, report: Callable[..., None]) -> None:
    """Unpack the folder ``inside`` of every wheel in ``source`` into ``root``, beside first: ``root`` is there whole, or as it was.

    Raises BigironError for a wheel that is missing or not the pinned one, Refused for a root that is not ours.
    """
    if root.exists() and not (root / RECORD).is_file():
        raise Refused("there is a folder that bigiron did not make", where=str(root), hint="move it away, then run this again")
    for each in wheels:
        path = source / each["file"]
        got = sha256_of(path) if path.is_file() else ""
        if got != each["sha256"]:
            what = f"wrong content: SHA-256 is {got}, expected {each['sha256']}" if got else "the file is not there"
            raise BigironError(what, where=str(path), hint="run this again; it is copied anew")
    root.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    stage = Path(tempfile.mkdtemp(prefix=".new-", dir=str(root.parent)))
    try:
        for number, each in enumerate(wheels):
            report(f"unpacking {each['file'].split('-')[0]}", number, len(wheels))
            _unpack(source / each["file"], inside, stage)
        _links(stage)
        inside_it = [path for path in sorted(stage.rglob("*")) if path.is_symlink() or not path.is_dir()]
        files = {str(path.relative_to(stage)): path.lstat().st_size for path in inside_it}
        record = {"wheels": {each["file"]: each["sha256"] for each in wheels}, "files": files}
        write_atomic(stage / RECORD, json.dumps(record, indent=1))
        stage.chmod(0o755)
        old = root.with_name(f".old-{root.name}")
        shutil.rmtree(old, ignore_errors=True)
        if root.exists():
            root.rename(old)
        stage.rename(root)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise no_room(error, root) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _unpack(wheel: Path, inside: str, stage: Path) -> None:
    """Files below ``inside``; their execute bits are kept, which zipfile's own extract drops."""
    try:
        archive = zipfile.ZipFile(wheel)
    except zipfile.BadZipFile as error:
        raise BigironError(f"is no wheel: {error}", where=str(wheel)) from error
    with archive:
        for entry in archive.infolist():
            name = PurePosixPath(entry.filename)
            if entry.is_dir() or not entry.filename.startswith(inside + "/"):
                continue
            if ".." in name.parts or stat.S_ISLNK(entry.external_attr >> 16):
                raise BigironError(f"holds an entry that leads elsewhere: {entry.filename}", where=str(wheel))
            target = stage / name.relative_to(inside)
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            with archive.open(entry) as packed, target.open("wb") as stream:
                shutil.copyfileobj(packed, stream, 1 << 20)
            target.chmod(0o755 if entry.external_attr >> 16 & stat.S_IXUSR else 0o644)


def _links(stage: Path) -> None:
    """``lib64``, and the names that linkers ask for: wheels have ``libcublas.so.13`` only."""
    library = stage / "lib"
    if not library.is_dir():
        return
    if not (stage / "lib64").exists():
        (stage / "lib64").symlink_to("lib")
    for path in sorted(library.iterdir()):
        match = re.fullmatch(r"(lib[\w+-]+\.so)\.[\d.]+", path.name)
        if match and not (library / match.group(1)).exists():
            (library / match.group(1)).symlink_to(path.name)
