"""Which GGUF files belong together: shard sets, and the quant each set is, from their names alone.

A name is only a label: what a file really holds is read from its header (:mod:`bigiron.gguf`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

_SHARD = re.compile(r"(?P<base>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})", re.IGNORECASE)
# ftype names of llama.cpp and ik_llama.cpp, with unsloth's "UD-" and ubergarm's "smol-" in front
_TYPE = r"(?:I?Q\d+(?:_[A-Z0-9]+)*|TQ\d_\d|BF16|F16|FP16|F32|MXFP4(?:_[A-Z0-9]+)*|NVFP4)"
_QUANT = re.compile(rf"(?:(?:UD|smol)-)?{_TYPE}", re.IGNORECASE)
_QUANT_AT_END = re.compile(rf"(?:^|[-.])(?P<quant>(?:(?:UD|smol)-)?{_TYPE})$", re.IGNORECASE)
_NOT_A_MODEL = frozenset({"mmproj", "imatrix"})


@dataclass(frozen=True)
class RepoFile:
    """One file of a repository: ``size`` in bytes; ``sha256`` of its content, None where the hub has none (not LFS)."""

    path: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class QuantFiles:
    """The files of one model in one quant, in shard order. ``missing`` names shards the repository should have but has not."""

    name: str
    quant: str
    files: tuple[RepoFile, ...]
    missing: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def entry(self) -> str:
        """The path llama.cpp is given: shard 1, or the only file."""
        return self.files[0].path


def group(files: Iterable[RepoFile]) -> dict[str, QuantFiles]:
    """GGUF models by name. The name is the quant; where several models share a quant, the file name without its ending.

    Projectors (mmproj) and importance matrices are not models. Of two sets with one quant, an incomplete one loses.
    """
    sets: dict[tuple[str, str, int], dict[int, RepoFile]] = {}
    for file in files:
        path = PurePosixPath(file.path)
        if path.suffix.lower() != ".gguf" or _NOT_A_MODEL & set(re.split(r"[-._]", path.stem.lower())):
            continue
        shard = _SHARD.fullmatch(path.stem)
        base, number, count = (shard["base"], int(shard["number"]), int(shard["count"])) if shard else (path.stem, 1, 1)
        sets.setdefault((str(path.parent), base, count if shard else 0), {})[number] = file
    by_quant: dict[str, list[QuantFiles]] = {}
    for (folder, base, count), members in sets.items():
        label = quant_of(folder, base)
        missing = tuple(f"{base}-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1) if n not in members)
        ordered = tuple(members[number] for number in sorted(members))
        by_quant.setdefault(label.lower(), []).append(QuantFiles(base, label, ordered, missing))
    named: dict[str, QuantFiles] = {}
    for candidates in by_quant.values():
        usable = [candidate for candidate in candidates if not candidate.missing] or candidates
        for one in usable:
            name = one.quant if len(usable) == 1 else one.name
            if name in named:
                name = str(PurePosixPath(one.entry).with_suffix(""))
            named[name] = QuantFiles(name, one.quant, one.files, one.missing)
    return dict(sorted(named.items(), key=lambda item: (item[1].total_bytes, item[0])))


def quant_of(folder: str, base: str) -> str:
    """The quant a set calls itself: its folder's name, else the end of its file or folder name, else ``base``."""
    parent = PurePosixPath(folder).name
    if _QUANT.fullmatch(parent):
        return parent
    for text in (base, parent):
        if found := _QUANT_AT_END.search(text):
            return found["quant"]
    return base
