"""Judge a model's files from their headers and sizes alone, so that 600 GB are judged in seconds.

A split set is loaded through its first shard; siblings lie beside it under names llama.cpp derives (``llama_split_path`` in
src/llama.cpp, checks in src/llama-model-loader.cpp, build 11434). Links are never resolved: a hub cache keeps shard names only
in its links. Runs on hosts: standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

from .errors import GgufError, SplitError
from .reader import Header, read_header
from .source import FileSource
from .split import SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS, shard_name

SPLIT_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
RAW_PART = re.compile(r"\.gguf[.-](part|split-)[-_a-z0-9]*$|\.gguf\.\d{2,3}$", re.IGNORECASE)


@dataclass(frozen=True)
class Finding:
    """One check: ``id`` names it, ``detail`` says what was seen, with file and numbers."""

    ok: bool
    id: str
    detail: str


@dataclass(frozen=True)
class Shard:
    """One file of the set; ``header`` is None when it cannot be read. ``file_bytes`` is the size of a link's target."""

    path: Path
    file_bytes: Optional[int]
    header: Optional[Header]


@dataclass(frozen=True)
class SetReport:
    """The verdict on a set: ``entry`` is the path to hand to llama-server, ``kind`` as ``classify`` says."""

    entry: Path
    kind: str
    architecture: str
    shards: tuple[Shard, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """No finding failed: the files are sound (whether a build knows the architecture is another question)."""
        return all(finding.ok for finding in self.findings)

    @property
    def headers(self) -> tuple[Header, ...]:
        """The headers that could be read, in shard order."""
        return tuple(shard.header for shard in self.shards if shard.header is not None)

    @property
    def total_bytes(self) -> int:
        """Bytes of the files that are there."""
        return sum(shard.file_bytes or 0 for shard in self.shards)

    def to_json(self) -> dict[str, Any]:
        """The report as data, without the headers."""
        return {
            "entry": str(self.entry),
            "ok": self.ok,
            "kind": self.kind,
            "architecture": self.architecture,
            "files": [
                {
                    "path": str(shard.path),
                    "bytes": shard.file_bytes,
                    "tensors": None if shard.header is None else len(shard.header.tensors),
                }
                for shard in self.shards
            ],
            "findings": [asdict(finding) for finding in self.findings],
        }


def classify(header: Header) -> str:
    """What the file is, by header and not by name: model, mmproj, imatrix, adapter, vocabulary or shard (2 and later)."""
    kind, architecture = header.text("general.type"), header.text("general.architecture")
    if architecture == "clip" or kind == "mmproj":
        return "mmproj"
    if kind in ("imatrix", "adapter"):
        return kind
    if not architecture and header.get(SPLIT_NO, 0) not in (0, None):
        return "shard"
    if kind == "vocab" or (not header.tensors and header.get(SPLIT_COUNT, 0) in (0, 1)):
        return "vocabulary"
    return "model"


def entry_of(path: Path) -> Path:
    """The first shard's path for any shard's path, unresolved; other names stay as they are. Touches no disk."""
    match = SPLIT_NAME.match(path.name)
    return path if match is None else path.with_name(shard_name(match["stem"], 1, int(match["count"])))


def find_entries(directory: Path) -> list[Path]:
    """Every GGUF set and single file of a directory (not below it), as entry paths in name order, whatever it is."""
    names = sorted(path for path in directory.iterdir() if path.name.endswith(".gguf"))
    return list(dict.fromkeys(entry_of(path) for path in names))


def _raw_piece(path: Path) -> str:
    return f"{path.name} is a piece of a raw byte split, not a shard: join all pieces in order into one .gguf file (cat)"


def resolve_entry(path: Path) -> Path:
    """The file to hand to llama-server, for a directory, any shard, or a single file.

    Raises:
        GgufError: a directory holds no model, or several; mmproj and imatrix files are not models, by header.

    """
    if not path.is_dir():
        return entry_of(path)
    models, reasons = [], []
    for entry in find_entries(path):
        try:
            with FileSource(entry) as source:
                kind = classify(read_header(source))
        except GgufError as error:
            reasons.append(str(error))
            continue
        if kind == "model":
            models.append(entry)
        else:
            reasons.append(f"{entry.name} is {kind}")
    if len(models) == 1:
        return models[0]
    reasons += [_raw_piece(piece) for piece in sorted(path.iterdir()) if RAW_PART.search(piece.name)][:1]
    what = (
        f"holds {len(models)} models: {', '.join(model.name for model in models)}"
        if models
        else "; ".join(["holds no model", *reasons])
    )
    raise SplitError(what, file=str(path), field="directory", offset=0, hint="name the file" if models else None)


def inspect_set(path: Path, *, known_architectures: Optional[Iterable[str]] = None) -> SetReport:
    """Judge the set that ``path`` (a directory, any shard, or a single file) belongs to. Reads headers and sizes only.

    ``known_architectures`` adds a finding of its own: the build at hand knows the architecture, or not.
    Raises GgufError only where no set can be named at all (see ``resolve_entry``); everything else is a finding.
    """
    if not path.is_dir() and RAW_PART.search(path.name):
        what = _raw_piece(path)
        return SetReport(path, "raw part", "", (Shard(path, None, None),), (Finding(ok=False, id="raw-split", detail=what),))
    entry = resolve_entry(path)
    findings: list[Finding] = []
    match = SPLIT_NAME.match(entry.name)
    names = [entry]
    if match is not None:
        count = int(match["count"])
        names = [entry.with_name(shard_name(match["stem"], number, count)) for number in range(1, count + 1)]
    shards = tuple(_open(name, findings) for name in names)
    for shard in shards:
        if shard.header is not None:
            _check_file(shard.header, findings)
    first = shards[0].header
    if first is not None:
        if match is not None:
            _check_split(shards, findings)
        else:
            _check_single(first, findings)
    architecture = "" if first is None else first.text("general.architecture")
    kind = "unreadable" if first is None else classify(first)
    if first is not None and not architecture and kind not in ("imatrix", "shard"):
        findings.append(Finding(ok=False, id="architecture", detail=f"{entry.name} has no general.architecture"))
    if known_architectures is not None and kind == "model":
        known = architecture in frozenset(known_architectures)
        detail = f"the installed llama.cpp {'knows' if known else 'does not know'} the architecture {architecture!r}"
        findings.append(Finding(ok=known, id="architecture-known", detail=detail))
    if all(finding.ok for finding in findings):
        tensors = sum(len(shard.header.tensors) for shard in shards if shard.header is not None)
        findings.append(Finding(ok=True, id="sound", detail=f"{len(shards)} files, {tensors} tensors"))
    return SetReport(entry, kind, architecture, shards, tuple(findings))


def _open(path: Path, findings: list[Finding]) -> Shard:
    try:
        with FileSource(path) as source:
            size = source.size
            try:
                return Shard(path, size, read_header(source))
            except GgufError as error:
                findings.append(Finding(ok=False, id="header", detail=str(error)))
                return Shard(path, size, None)
    except GgufError as error:
        missing = not path.is_symlink() and not path.exists()
        identifier = "missing" if missing else ("broken-link" if path.is_symlink() and not path.exists() else "unreadable")
        detail = f"{path.name} is missing from {path.parent}" if missing else str(error)
        findings.append(Finding(ok=False, id=identifier, detail=detail))
        return Shard(path, None, None)


def _check_file(header: Header, findings: list[Finding]) -> None:
    name = Path(header.name).name
    if header.big_endian:
        findings.append(
            Finding(ok=False, id="byte-order", detail=f"{name} is big-endian: llama.cpp on this machine refuses it")
        )
    findings.extend(
        Finding(
            ok=False, id="empty-tensor", detail=f"{name}: tensor {tensor.name!r} has a dimension of 0: {list(tensor.shape)}"
        )
        for tensor in header.tensors
        if 0 in tensor.shape
    )
    if header.tensors and header.data_end > header.file_bytes:
        for tensor in header.tensors:
            end = header.data_offset + tensor.offset + tensor.nbytes
            if end > header.file_bytes:
                detail = f"{name}: tensor {tensor.name!r} ends at byte {end}, the file at {header.file_bytes}: incomplete"
                findings.append(Finding(ok=False, id="truncated", detail=detail))
                break
        return
    end = header.data_offset + header.data_bytes
    if header.tensors and header.file_bytes < end:
        detail = f"{name}: {end - header.file_bytes} bytes of padding behind the last tensor are missing; harmless"
        findings.append(Finding(ok=True, id="padding", detail=detail))
    elif header.tensors and header.file_bytes > end:
        detail = f"{name}: {header.file_bytes - end} bytes follow the last tensor (ends at {end}): files joined with cat?"
        findings.append(Finding(ok=False, id="trailing-bytes", detail=detail))


def _check_single(header: Header, findings: list[Finding]) -> None:
    count, number = header.get(SPLIT_COUNT, 0), header.get(SPLIT_NO, 0)
    if isinstance(count, int) and count > 1:
        detail = (
            f"{Path(header.name).name} declares itself part {number + 1} of {count} but the name is not a split name: "
            "fetch the shards again under their own names; llama.cpp loads them through the first"
        )
        findings.append(Finding(ok=False, id="split-name", detail=detail))


def _check_split(shards: tuple[Shard, ...], findings: list[Finding]) -> None:
    count = len(shards)
    total: Optional[int] = None
    seen: dict[str, str] = {}
    counts = {shard.header.get(SPLIT_COUNT) for shard in shards if shard.header is not None}
    for index, shard in enumerate(shards):
        header = shard.header
        if header is None:
            continue
        name = shard.path.name
        number, says = header.get(SPLIT_NO), header.get(SPLIT_COUNT)
        if number is None or says is None:
            key = SPLIT_NO if number is None else SPLIT_COUNT
            findings.append(
                Finding(ok=False, id="split-keys", detail=f"{name} has no {key}: not a shard written by gguf-split")
            )
        else:
            if number != index:
                detail = f"{name} has split.no {number}, expected {index} (split.no counts from 0, names from 1)"
                findings.append(Finding(ok=False, id="split-no", detail=detail))
            if says != count:
                where = "every header" if counts == {says} else "its header"
                detail = f"{name}: the name says {count} shards, {where} says split.count {says}"
                findings.append(Finding(ok=False, id="split-count-name" if counts == {says} else "split-count", detail=detail))
        if index == 0:
            total = header.get(SPLIT_TENSORS)
        for tensor in header.tensors:
            if tensor.name in seen:
                detail = f"tensor {tensor.name!r} is in {seen[tensor.name]} and in {name}"
                findings.append(Finding(ok=False, id="duplicate-tensor", detail=detail))
            seen[tensor.name] = name
    if total is not None and all(shard.header is not None for shard in shards):
        found = sum(len(shard.header.tensors) for shard in shards if shard.header is not None)
        if found != total:
            detail = f"{shards[0].path.name} says split.tensors.count {total}, the shards hold {found} tensors"
            findings.append(Finding(ok=False, id="tensor-count", detail=detail))
    elif total is None:
        findings.append(Finding(ok=False, id="split-keys", detail=f"{shards[0].path.name} has no {SPLIT_TENSORS}"))
