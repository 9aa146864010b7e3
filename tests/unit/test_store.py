"""The files of a revision: proved, adopted, linked, fetched; and what a person has is theirs."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bigiron.errors import BigironError, Refused
from bigiron.onhost.store import RECORD, Proofs, Revision, Wanted, ensure, remove_recorded
from fixtures.hubserver import BODY, Server, running, serve, status

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as state:
        yield state


PARTS = {"q/a-00001-of-00002.gguf": BODY, "q/a-00002-of-00002.gguf": BODY[::-1]}


def wanted_files() -> list[Wanted]:
    return [Wanted(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in PARTS.items()]


def serve_set(server: Server) -> None:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        name = re.split(r"/resolve/[0-9a-f]{40}/", handler.path)[1]
        serve(handler, PARTS[name])

    server.script = [answer] * 20


def run(server: Server, root: Path, revision: str = REVISION, **more: object) -> dict[str, object]:
    options = {"endpoint": server.url, "reserve_bytes": 0, "progress": lambda *_a: None, **more}
    return ensure(Revision(root, "org/repo", revision), wanted_files(), **options)  # type: ignore[arg-type]


def test_set_is_fetched_recorded_and_then_left_alone(server: Server, tmp_path: Path) -> None:
    serve_set(server)
    first = run(server, tmp_path)
    assert first["changed"]
    assert first["fetched"] == list(PARTS)
    asked = len(server.requests)
    second = run(server, tmp_path)
    assert not second["changed"]
    assert second["proved"] == list(PARTS)
    assert len(server.requests) == asked == 2
    record = json.loads((tmp_path / "org/repo" / REVISION / RECORD).read_text())
    assert set(record["files"]) == set(PARTS)
    assert set(record["files"]["q/a-00001-of-00002.gguf"]) == {"size", "sha256", "mtime_ns", "inode"}


def test_folders_are_readable_whatever_the_umask(server: Server, tmp_path: Path) -> None:
    serve_set(server)
    old = os.umask(0o077)
    try:
        run(server, tmp_path / "models")
    finally:
        os.umask(old)
    folder = tmp_path / "models/org/repo" / REVISION / "q"
    assert {path.stat().st_mode & 0o777 for path in (folder, folder.parent, tmp_path / "models")} == {0o755}
    assert (folder / "a-00001-of-00002.gguf").stat().st_mode & 0o777 == 0o644
    assert (folder.parent / RECORD).stat().st_mode & 0o777 == 0o644


def test_small_disk_is_refused_before_the_first_byte(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_set(server)
    room = 2 * len(BODY) - 1000
    real = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result((*real[:1], 1, *real[2:4], room, *real[5:])))
    with pytest.raises(Refused, match="2 files") as caught:
        run(server, tmp_path)
    assert server.requests == []
    assert not (tmp_path / "org").exists()
    assert caught.value.exit_code == 4
    # a kept part counts towards the need
    part = tmp_path / "org/repo" / REVISION / "q/a-00001-of-00002.gguf.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(BODY[:1000])
    assert run(server, tmp_path)["received_bytes"] == 2 * len(BODY) - 1000


def test_right_file_of_a_person_is_adopted(server: Server, tmp_path: Path) -> None:
    serve_set(server)
    folder = tmp_path / "org/repo" / REVISION / "q"
    folder.mkdir(parents=True)
    mine = folder / "a-00001-of-00002.gguf"
    mine.write_bytes(BODY)
    server.script = [lambda handler: serve(handler, BODY[::-1])]
    answer = run(server, tmp_path)
    assert answer["adopted"] == ["q/a-00001-of-00002.gguf"]
    assert answer["fetched"] == ["q/a-00002-of-00002.gguf"]
    remove_recorded(tmp_path)
    assert mine.read_bytes() == BODY
    assert not (folder / "a-00002-of-00002.gguf").exists()


@pytest.mark.parametrize("folder", [f"org/repo/{REVISION}/q/q", "org/repo/q", "old downloads"])
def test_right_file_in_a_wrong_place_is_not_fetched_again_and_the_move_is_named(
    server: Server, tmp_path: Path, folder: str
) -> None:
    serve_set(server)
    mine = tmp_path / folder / "a-00002-of-00002.gguf"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(BODY[::-1])
    with pytest.raises(Refused, match="1 file of the model found elsewhere") as caught:
        run(server, tmp_path)
    assert str(mine) in str(caught.value)
    assert server.requests == []
    assert caught.value.hint
    subprocess.run(caught.value.hint, shell=True, check=True)
    answer = run(server, tmp_path)
    assert (answer["adopted"], answer["fetched"]) == (["q/a-00002-of-00002.gguf"], ["q/a-00001-of-00002.gguf"])


@pytest.mark.parametrize("content", [b"other", bytes(len(BODY))])
def test_a_namesake_elsewhere_with_other_content_is_left_alone(server: Server, tmp_path: Path, content: bytes) -> None:
    serve_set(server)
    other = tmp_path / "other/a-00001-of-00002.gguf"
    other.parent.mkdir()
    other.write_bytes(content)
    assert run(server, tmp_path)["fetched"] == list(PARTS)
    assert other.read_bytes() == content


def test_what_did_not_change_in_a_new_revision_gets_a_second_name(server: Server, tmp_path: Path) -> None:
    serve_set(server)
    run(server, tmp_path, "f" * 40)
    asked = len(server.requests)
    assert run(server, tmp_path, check=True)["linked"] == list(PARTS)
    assert not (tmp_path / "org/repo" / REVISION).exists()
    answer = run(server, tmp_path)
    assert (answer["changed"], answer["linked"], answer["received_bytes"]) == (True, list(PARTS), 0)
    assert len(server.requests) == asked
    assert not run(server, tmp_path)["changed"]
    first = list(tmp_path.rglob("a-00001*"))
    assert len({path.stat().st_ino for path in first}) == 1
    assert len(first) == 2
    remove_recorded(tmp_path)
    assert not tmp_path.exists()


def test_without_hard_links_it_is_fetched(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    serve_set(server)
    run(server, tmp_path, "f" * 40)
    monkeypatch.setattr("os.link", none)
    answer = run(server, tmp_path)
    assert (answer["linked"], answer["fetched"], answer["received_bytes"]) == ([], list(PARTS), 2 * len(BODY))


def test_a_move_is_asked_for_before_anything_is_linked(server: Server, tmp_path: Path) -> None:
    serve_set(server)
    run(server, tmp_path, "f" * 40)
    old = tmp_path / "org/repo" / ("f" * 40) / "q/a-00001-of-00002.gguf"
    (tmp_path / "mine").mkdir()
    old.rename(tmp_path / "mine" / old.name)
    with pytest.raises(Refused):
        run(server, tmp_path)
    assert not (tmp_path / "org/repo" / REVISION).exists()


def test_a_file_of_another_revision_that_rotted_is_fetched(server: Server, tmp_path: Path) -> None:
    serve_set(server)
    run(server, tmp_path, "f" * 40)
    old = tmp_path / "org/repo" / ("f" * 40) / "q/a-00001-of-00002.gguf"
    old.write_bytes(bytes(len(BODY)))
    answer = run(server, tmp_path)
    assert (answer["linked"], answer["fetched"]) == (["q/a-00002-of-00002.gguf"], ["q/a-00001-of-00002.gguf"])


@pytest.mark.parametrize("content", [b"other", bytes(len(BODY))])
def test_other_file_of_a_person_is_never_overwritten(server: Server, tmp_path: Path, content: bytes) -> None:
    serve_set(server)
    mine = tmp_path / "org/repo" / REVISION / "q/a-00001-of-00002.gguf"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(content)
    with pytest.raises(BigironError, match="other content"):
        run(server, tmp_path)
    assert mine.read_bytes() == content
    assert server.requests == []


def test_our_own_file_that_rotted_is_fetched_again(server: Server, tmp_path: Path) -> None:
    serve_set(server)
    run(server, tmp_path)
    path = tmp_path / "org/repo" / REVISION / "q/a-00001-of-00002.gguf"
    path.write_bytes(b"\0" * len(BODY))
    assert run(server, tmp_path)["fetched"] == ["q/a-00001-of-00002.gguf"]
    assert path.read_bytes() == BODY


def test_touched_file_is_hashed_again_not_fetched(server: Server, tmp_path: Path) -> None:
    serve_set(server)
    run(server, tmp_path)
    path = tmp_path / "org/repo" / REVISION / "q/a-00001-of-00002.gguf"
    os.utime(path, ns=(1, 1))
    again = run(server, tmp_path)
    assert again["adopted"] == ["q/a-00001-of-00002.gguf"]
    assert Proofs(path.parent.parent).adopted == set()
    assert len(server.requests) == 2


def test_check_changes_nothing(server: Server, tmp_path: Path) -> None:
    answer = run(server, tmp_path / "models", check=True)
    assert answer["fetched"] == list(PARTS)
    assert list(tmp_path.iterdir()) == []
    assert server.requests == []


def test_dangling_link_is_told(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "org/repo" / REVISION / "q/a-00001-of-00002.gguf"
    path.parent.mkdir(parents=True)
    path.symlink_to("../../blobs/gone")
    with pytest.raises(BigironError, match="broken link"):
        run(server, tmp_path)


def test_failing_shard_leaves_the_finished_one_valid(server: Server, tmp_path: Path) -> None:
    server.script = [lambda handler: serve(handler, BODY), status(404)]
    with pytest.raises(BigironError, match="404"):
        run(server, tmp_path)
    serve_set(server)
    answer = run(server, tmp_path)
    assert answer["proved"] == ["q/a-00001-of-00002.gguf"]
    assert answer["fetched"] == ["q/a-00002-of-00002.gguf"]


def test_removal_takes_parts_and_empty_folders_and_keeps_strangers(server: Server, tmp_path: Path) -> None:
    root = tmp_path / "models"
    serve_set(server)
    run(server, root)
    folder = root / "org/repo" / REVISION
    (folder / "q/rest.gguf.part").write_bytes(b"x")
    stranger = root / "mine" / "notes.txt"
    stranger.parent.mkdir()
    stranger.write_text("keep")
    assert remove_recorded(root, check=True)
    assert (folder / "q/a-00001-of-00002.gguf").exists()
    removed = remove_recorded(root)
    assert len(removed) == 4
    assert not (root / "org").exists()
    assert stranger.exists()
    assert remove_recorded(root) == []


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/./b", "", "x.part"])
def test_path_that_leaves_the_folder_is_refused(path: str) -> None:
    with pytest.raises(BigironError):
        Wanted(path, 1, hashlib.sha256(BODY).hexdigest())


@pytest.mark.parametrize(
    ("repo", "revision"), [("org", REVISION), ("../x", REVISION), ("org/repo", "main"), ("a/b/c", REVISION)]
)
def test_unpinned_or_strange_repository_is_refused(tmp_path: Path, repo: str, revision: str) -> None:
    with pytest.raises(BigironError):
        Revision(tmp_path, repo, revision)


def test_torn_record_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text('{"files": {"a"')
    assert Proofs(tmp_path).files == {}
