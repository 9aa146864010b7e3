"""The observer on releases, model files and disks: what is proved, damaged or strange."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from fixtures.hostroot import look, plant


def release(root: Path, name: str = "abc123", **files: str) -> Path:
    folder = root / "opt/bigiron/releases" / name
    files = files or {"bin/llama-server": "elf", "lib/libllama.so": "lib"}
    plant(folder, dict(files))
    manifest = {
        "identity": {"libc": "glibc 2.36"},
        "fingerprint": name,
        "files": {
            path: {"size": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()} for path, text in files.items()
        },
    }
    plant(folder, {"manifest.json": json.dumps(manifest)})
    return folder


def test_a_sound_release(tmp_path):
    release(tmp_path)
    (tmp_path / "opt/bigiron/releases/.staging-x").mkdir()
    found = look(tmp_path, release=["/opt/bigiron"])
    assert set(found["releases"]) == {"abc123"}
    assert found["releases"]["abc123"]["ok"]
    assert found["releases"]["abc123"]["manifest"]["identity"] == {"libc": "glibc 2.36"}


def test_a_damaged_release_says_how(tmp_path):
    folder = release(tmp_path)
    (folder / "bin/llama-server").unlink()
    (folder / "lib/libllama.so").write_text("longer")
    assert look(tmp_path, release=["/opt/bigiron"])["releases"]["abc123"]["problems"] == [
        "bin/llama-server: missing",
        "lib/libllama.so: 6 bytes, not 3",
    ]


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (None, "manifest.json is missing"),
        ("{", "manifest.json cannot be read: "),
        ('{"files": []}', "manifest.json cannot be read: "),
        ('{"files": {"../../../etc/passwd": {"size": 1, "sha256": ""}}}', "../../../etc/passwd: outside the release"),
        ('{"files": {}, "fingerprint": "other"}', "manifest.json is of release other"),
    ],
)
def test_a_bad_manifest(tmp_path, manifest, problem):
    path = release(tmp_path) / "manifest.json"
    path.unlink() if manifest is None else path.write_text(manifest)
    found = look(tmp_path, release=["/opt/bigiron"])["releases"]["abc123"]
    assert not found["ok"]
    assert found["problems"][0].startswith(problem)


REVISION = "org/repo/0123"
SHARDS = {REVISION: "/srv/models"}


def proved(root: Path, **files: str) -> Path:
    folder = root / "srv/models" / REVISION
    plant(folder, dict(files))
    record = {}
    for path, text in files.items():
        status = (folder / path).stat()
        digest = hashlib.sha256(text.encode()).hexdigest()
        record[path] = {"size": len(text), "sha256": digest, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}
    plant(folder, {".bigiron.json": json.dumps({"files": record})})
    return folder


def test_proved_files_parts_and_strangers(tmp_path):
    folder = proved(tmp_path, **{"Q2/a-00001-of-00002.gguf": "one"})
    plant(folder, {"Q2/a-00002-of-00002.gguf.part": "tw", "mmproj.gguf": "stranger", ".cache/huggingface/x": "no"})
    found = look(tmp_path, shard={**SHARDS, "org/repo/none": "/srv/models"})["models"]
    assert set(found) == {REVISION}
    digest = hashlib.sha256(b"one").hexdigest()
    assert found[REVISION] == {
        "files": {
            "Q2/a-00001-of-00002.gguf": {"size": 3, "sha256": digest, "proved": True},
            "mmproj.gguf": {"size": 8, "sha256": None, "proved": False},
        },
        "partial": {"Q2/a-00002-of-00002.gguf": 2},
        "problems": [],
    }


def test_a_touched_file_is_no_longer_proved(tmp_path):
    folder = proved(tmp_path, a="one", b="two", c="three")
    os.utime(folder / "a", ns=(1, 1))
    (folder / "b").unlink()
    (folder / "c").write_text("longer now")
    found = look(tmp_path, shard=SHARDS)["models"][REVISION]
    assert [found["files"][name]["proved"] for name in ("a", "c")] == [False, False]
    assert found["problems"] == ["b: in the record, but missing"]


def test_hub_cache_links_have_their_targets_size_and_broken_ones_are_named(tmp_path):
    folder = proved(tmp_path, real="x")
    plant(tmp_path, {"srv/models/blobs/abc": "12345"})
    (folder / "linked.gguf").symlink_to("../../../blobs/abc")
    (folder / "broken.gguf").symlink_to("../../../blobs/gone")
    (folder / "loop").symlink_to("loop")
    (folder / "up").symlink_to("..")
    found = look(tmp_path, shard=SHARDS)["models"][REVISION]
    assert found["files"]["linked.gguf"]["size"] == 5
    assert found["files"]["broken.gguf"] == {"error": "broken link to ../../../blobs/gone"}
    assert found["problems"] == [
        "broken.gguf: broken link to ../../../blobs/gone",
        "loop: Too many levels of symbolic links",
    ]
    assert not [name for name in found["files"] if name.startswith("up")]


def test_a_torn_proof_record_proves_nothing(tmp_path):
    folder = proved(tmp_path, a="one")
    (folder / ".bigiron.json").write_text('{"files": {"a":')
    found = look(tmp_path, shard=SHARDS)["models"][REVISION]
    assert found["files"]["a"]["proved"] is False
    assert found["problems"] == [".bigiron.json is damaged, so nothing is proved"]


MOUNTS = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 259:1 / /srv/models ro,noatime - xfs /dev/nvme0n1 rw
31 22 0:50 / /srv/with\040space rw - tmpfs tmpfs rw
32 22 259:2 / /srv rw - ext4 /dev/old rw
"""


def test_disks_are_found_at_the_nearest_parent(tmp_path):
    plant(tmp_path, {"proc/self/mountinfo": MOUNTS, "srv/models/x": "", "srv/with space/x": ""})
    paths = ["/srv/models/deep/er", "/srv/modelsx", "/srv/with space/y", "/opt/bigiron"]
    found = look(tmp_path, disk=paths)["disks"]
    assert [found[path]["mount"] for path in paths] == ["/srv/models", "/srv", "/srv/with space", "/"]
    assert (found[paths[0]]["device"], found[paths[0]]["fstype"], found[paths[0]]["read_only"]) == ("259:1", "xfs", True)
    assert found["/opt/bigiron"]["read_only"] is False
    assert 0 < found[paths[0]]["free_bytes"] < found[paths[0]]["total_bytes"]


def test_where_a_path_really_is_is_told_links_followed(tmp_path):
    plant(tmp_path, {"proc/self/mountinfo": MOUNTS, "home/me/models/x": "", "srv/x": ""})
    (tmp_path / "srv/linked").symlink_to(tmp_path / "home/me/models")
    found = look(tmp_path, disk=["/srv/linked", "/srv/linked/new", "/srv/x"])["disks"]
    assert [found[path]["real"] for path in found] == ["/home/me/models", "/home/me/models/new", "/srv/x"]
