"""The shards: sizes and SHA-256 against the hub's, by the proof record, or by reading every byte with ``--deep``."""

import pytest

from bigiron.judge.checks import check
from bigiron.units import gib

FETCH = "./inv provision --host {host} (it fetches again what is not proved)"


def folder(plan):
    return f"{plan['model_root']}/{plan['model_repo']}/{plan['model_revision']}"


def shards(plan):
    return {shard["path"]: shard for shard in plan["model_files"]}


def hashed_by_the_hub(plan):
    """The hub keeps no SHA-256 of a small file outside its large-file store."""
    return {path: shard for path, shard in shards(plan).items() if shard["sha256"] is not None}


def look(plan):
    """What the collector is to look at on the host."""
    return {"model": {"folder": folder(plan), "files": [*shards(plan)]}}


@pytest.fixture(scope="module")
def model(found):
    return found["model"]


@check("shard.present", FETCH, shard=shards)
def test_shard_is_there(shard, plan, model, note):
    path = shard["path"]
    assert not model.absent("files", path), f"{path} does not exist in {folder(plan)}"
    note(f"{path} is a {model['files'][path]['type']}")
    assert model["files"][path]["type"] == "file"


@check("shard.size", FETCH, shard=shards)
def test_shard_has_the_size_the_hub_says(shard, model, note):
    size = model["files"][shard["path"]]["size"]
    note(f"{size} bytes, the hub says {shard['size']} ({gib(shard['size'])})")
    assert size == shard["size"]


@check("shard.recorded", FETCH, shard=shards)
def test_shard_was_proved_to_have_the_hubs_sha256(shard, model, note):
    proved = not model.absent("record") and shard["path"] in model["record"]["files"]
    assert proved, "it was never proved: no record of its SHA-256"
    recorded = model["record"]["files"][shard["path"]]["sha256"]
    note(f"the record's SHA-256 is {recorded}, the hub's {shard['sha256'] or 'is unknown'}")
    assert recorded == (shard["sha256"] or recorded)


@check("shard.unchanged", "./inv verify --host {host} --deep, then ./inv provision --host {host}", shard=shards)
def test_shard_is_unchanged_since_it_was_hashed(shard, model):
    recorded, there = model["record"]["files"][shard["path"]], model["files"][shard["path"]]
    differing = [name for name in ("size", "mtime_ns", "inode") if recorded.get(name) != there[name]]
    assert not differing, f"changed since it was hashed: {', '.join(differing)}"


@check("shard.readable", shard=shards)
def test_shard_can_be_read_by_the_service_user(shard, plan, model, note):
    """By mode and owner, so that it is known without becoming that user."""
    there, user = model["files"][shard["path"]], plan["base_user"]
    mode = int(there["mode"], 8)
    note(f"{there['owner']}:{there['group']} {there['mode']}, read by {user}")
    assert mode & 0o004 or (there["group"] == user and mode & 0o040) or (there["owner"] == user and mode & 0o400)


@check("shard.sha256", FETCH, when=lambda plan: plan.deep, shard=hashed_by_the_hub)
def test_shard_has_the_hubs_sha256(shard, model, note):
    found = model["files"][shard["path"]]["sha256"]
    note(f"its bytes give {found}, the hub says {shard['sha256']}")
    assert found == shard["sha256"]


@check("model.leftovers", lambda plan: f"./inv provision --host {plan.host}; or remove the .part files in {folder(plan)}")
def test_no_unfinished_download(model):
    left = model["leftovers"]
    assert not left, f"unfinished downloads: {', '.join(left[:5])}"
