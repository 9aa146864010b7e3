"""The shards: sizes and SHA-256 against the hub's, by the proof record, or by reading every byte with ``--deep``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bigiron.report.verdict import Check
from bigiron.units import gib

from .subject import Subject


def present(s: Subject, shard: Mapping[str, Any]) -> tuple[bool, str]:
    path = shard["path"]
    if s.missing("model", "files", path):
        return False, f"{path} does not exist in {s.model_dir}"
    kind = s.fact("model", "files", path, "type")
    return kind == "file", f"{path} is a {kind}"


def size(s: Subject, shard: Mapping[str, Any]) -> tuple[bool, str]:
    found = s.fact("model", "files", shard["path"], "size")
    return found == shard["size"], f"{found} bytes, the hub says {shard['size']} ({gib(shard['size'])})"


def _record(s: Subject, path: str) -> Mapping[str, Any]:
    return dict(s.fact("model", "record", "files", path))


def recorded(s: Subject, shard: Mapping[str, Any]) -> tuple[bool, str]:
    if s.missing("model", "record") or shard["path"] not in s.fact("model", "record", "files"):
        return False, "it was never proved: no record of its SHA-256"
    found = _record(s, shard["path"]).get("sha256")
    if shard["sha256"] is None:  # the hub keeps none for a small file outside its large-file store
        return bool(found), "hashed; the hub has no SHA-256 to compare"
    return found == shard["sha256"], f"the record's SHA-256 is {found}, the hub's {shard['sha256']}"


def unchanged(s: Subject, shard: Mapping[str, Any]) -> tuple[bool, str]:
    record, found = _record(s, shard["path"]), s.fact("model", "files", shard["path"])
    differing = [name for name in ("size", "mtime_ns", "inode") if record.get(name) != found[name]]
    return (
        not differing,
        f"changed since it was hashed: {', '.join(differing)}" if differing else "unchanged since it was hashed",
    )


def hashed(s: Subject, shard: Mapping[str, Any]) -> tuple[bool, str]:
    found = s.fact("model", "files", shard["path"], "sha256")
    return found == shard["sha256"], f"its bytes give {found}, the hub says {shard['sha256']}"


def readable(s: Subject, shard: Mapping[str, Any]) -> tuple[bool, str]:
    """By mode and owner, so that it is known without becoming the service user."""
    found = s.fact("model", "files", shard["path"])
    mode, user = int(found["mode"], 8), s.expect["llama_server_user"]
    allowed = mode & 0o004 or (found["group"] == user and mode & 0o040) or (found["owner"] == user and mode & 0o400)
    return bool(allowed), f"{found['owner']}:{found['group']} {found['mode']}, read by {user}"


def whole(s: Subject) -> tuple[bool, str]:
    left = s.fact("model", "leftovers")
    return not left, f"unfinished downloads: {', '.join(left[:5])}" if left else "no unfinished download"


def entry(s: Subject) -> tuple[bool, str]:
    """The running server was told to load the first of these shards."""
    first = f"{s.model_dir}/{s.expect['model_entry']}"
    used = first in s.fact("process", "cmdline")
    return used, f"the server was told to load {first}" if used else f"no argument of the running server is {first}"


def checks(s: Subject) -> Iterator[Check]:
    fetch = f"{s.provision} (it fetches again what is not proved)"
    for shard in s.expect["model_files"]:
        name = shard["path"]
        yield s.check(f"shard.present:{name}", fetch, present, shard)
        yield s.check(f"shard.size:{name}", fetch, size, shard)
        yield s.check(f"shard.recorded:{name}", fetch, recorded, shard)
        yield s.check(f"shard.unchanged:{name}", f"./inv verify --host {s.name} --deep, then {s.provision}", unchanged, shard)
        yield s.check(f"shard.readable:{name}", s.provision, readable, shard)
        if s.deep and shard["sha256"] is not None:
            yield s.check(f"shard.sha256:{name}", fetch, hashed, shard)
    yield s.check("model.leftovers", f"{s.provision}; or remove the .part files in {s.model_dir}", whole)
    yield s.check("model.entry", s.provision, entry)


def test_model(check: Check, judge: Any) -> None:
    judge(check)
