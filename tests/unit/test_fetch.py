"""Fetching one file and a set of files from a server that behaves badly in all the reported ways."""

from __future__ import annotations

import errno
import hashlib
import http.server
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bigiron.errors import BigironError, Refused
from bigiron.hub import fetch as fetching
from bigiron.hub.fetch import Item, Patience, fetch
from bigiron.hub.store import RECORD, Proofs, Revision, Wanted, ensure, remove_recorded

BODY = bytes(range(256)) * 4096
SUM = hashlib.sha256(BODY).hexdigest()
REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Server:
    """``script`` holds one answer per request; when it is empty the file is served properly."""

    url: str = ""
    requests: list[dict[str, str]] = field(default_factory=list)
    script: list[Callable[[http.server.BaseHTTPRequestHandler], None]] = field(default_factory=list)

    def ranges(self) -> list[str]:
        return [request.get("range", "") for request in self.requests]


def serve(handler: http.server.BaseHTTPRequestHandler, body: bytes = BODY, cut: int = 0, ignore_range: bool = False) -> None:
    start = 0
    asked = handler.headers.get("Range", "")
    if asked and not ignore_range:
        start = int(asked.removeprefix("bytes=").rstrip("-"))
        if start >= len(body):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(body)}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
    else:
        handler.send_response(200)
    handler.send_header("Content-Length", str(len(body) - start))
    handler.end_headers()
    handler.wfile.write(body[start : len(body) - cut])


def status(code: int, **headers: str) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in {"Content-Length": "0", **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()

    return answer


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
            (state.script.pop(0) if state.script else serve)(self)
            self.close_connection = True

        def log_message(self, *_args: object) -> None:
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{running.server_address[1]}"
    yield state
    running.shutdown()
    running.server_close()


class Clock:
    """Sleeps that only add up."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def patience(self, budget_s: float = 600.0) -> Patience:
        return Patience(budget_s, sleep=self.slept.append)


def item(server: Server, tmp_path: Path, **more: object) -> Item:
    return Item(f"{server.url}/x.gguf", tmp_path / "x.gguf", SUM, len(BODY), **more)  # type: ignore[arg-type]


def test_whole_file_arrives_and_no_part_is_left(server: Server, tmp_path: Path) -> None:
    assert fetch(item(server, tmp_path)) == len(BODY)
    assert (tmp_path / "x.gguf").read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]
    assert (tmp_path / "x.gguf").stat().st_mode & 0o777 == 0o644


def test_resumes_at_the_kept_offset(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x.gguf.part").write_bytes(BODY[:400_000])
    assert fetch(item(server, tmp_path)) == len(BODY) - 400_000
    assert server.ranges() == ["bytes=400000-"]
    assert (tmp_path / "x.gguf").read_bytes() == BODY


def test_server_that_ignores_range_restarts_instead_of_appending(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x.gguf.part").write_bytes(BODY[:400_000])
    server.script = [lambda handler: serve(handler, ignore_range=True)]
    assert fetch(item(server, tmp_path)) == len(BODY)
    assert (tmp_path / "x.gguf").read_bytes() == BODY


def test_complete_part_needs_no_request(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x.gguf.part").write_bytes(BODY)
    assert fetch(item(server, tmp_path)) == 0
    assert server.requests == []


def test_part_longer_than_the_file_starts_over(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x.gguf.part").write_bytes(BODY + b"tail")
    fetch(item(server, tmp_path))
    assert server.ranges() == [""]
    assert (tmp_path / "x.gguf").read_bytes() == BODY


def test_short_body_is_continued_from_its_offset(server: Server, tmp_path: Path) -> None:
    clock = Clock()
    server.script = [lambda handler: serve(handler, cut=1000)]
    fetch(item(server, tmp_path), patience=clock.patience())
    assert server.ranges() == ["", f"bytes={len(BODY) - 1000}-"]
    assert (tmp_path / "x.gguf").read_bytes() == BODY


def test_retry_after_is_honoured(server: Server, tmp_path: Path) -> None:
    clock = Clock()
    server.script = [status(429, Retry_After="2"), status(503, Retry_After="3")]
    fetch(item(server, tmp_path), patience=clock.patience())
    assert clock.slept == [2.0, 3.0]


def test_gives_up_when_the_budget_is_spent(server: Server, tmp_path: Path) -> None:
    clock = Clock()
    server.script = [status(429, Retry_After="20")] * 50
    with pytest.raises(BigironError, match=r"429.*gave up") as caught:
        fetch(item(server, tmp_path), patience=clock.patience(50))
    assert sum(clock.slept) <= 50
    assert len(server.requests) == 3
    assert "kept" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("code", "headers", "says"),
    [
        (401, {}, "token rejected"),
        (401, {"X_Error_Code": "RepoNotFound"}, "no such repository"),
        (403, {}, "gated"),
        (401, {"X_Error_Code": "GatedRepo"}, "gated"),
        (404, {}, "no such repository"),
        (400, {}, "400"),
    ],
)
def test_refusals_are_told_apart_not_retried_and_hold_no_token(
    server: Server, tmp_path: Path, code: int, headers: dict[str, str], says: str
) -> None:
    server.script = [status(code, **headers)]
    with pytest.raises(BigironError, match=says) as caught:
        fetch(item(server, tmp_path, token="hf_sentinel"))
    assert len(server.requests) == 1
    assert server.requests[0]["authorization"] == "Bearer hf_sentinel"
    assert "hf_sentinel" not in json.dumps(caught.value.to_json()) + repr(item(server, tmp_path, token="hf_sentinel"))


def test_missing_token_is_not_a_rejected_token(server: Server, tmp_path: Path) -> None:
    server.script = [status(401)]
    with pytest.raises(BigironError, match="model_token"):
        fetch(item(server, tmp_path))


def test_redirect_to_another_server_drops_the_token(server: Server, tmp_path: Path) -> None:
    # localhost and 127.0.0.1 are two names, so two origins, of the same server
    elsewhere = server.url.replace("127.0.0.1", "localhost")
    server.script = [status(302, Location=f"{elsewhere}/cdn")]
    fetch(item(server, tmp_path, token="hf_sentinel"))
    assert [request.get("authorization") for request in server.requests] == ["Bearer hf_sentinel", None]


def test_redirect_within_the_server_keeps_the_token_and_the_range(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x.gguf.part").write_bytes(BODY[:5])
    server.script = [status(302, Location="/other")]
    fetch(item(server, tmp_path, token="hf_sentinel"))
    assert [request.get("authorization") for request in server.requests] == ["Bearer hf_sentinel"] * 2
    assert server.ranges() == ["bytes=5-"] * 2


def test_redirect_off_http_is_refused(server: Server, tmp_path: Path) -> None:
    server.script = [status(302, Location="ftp://127.0.0.1/x")]
    with pytest.raises(BigironError, match="not HTTP"):
        fetch(item(server, tmp_path))


def test_token_stays_off_a_plain_http_wire() -> None:
    carries = fetching._may_carry_token
    assert not carries("http://10.0.0.1/x")
    assert not carries("http://mirror.lab/x")
    assert carries("https://huggingface.co/x")
    assert carries("http://127.0.0.1:80/x")
    assert carries("http://[::1]/x")


def test_wrong_content_is_removed_and_both_sums_are_named(server: Server, tmp_path: Path) -> None:
    other = bytes(reversed(BODY))
    server.script = [lambda handler: serve(handler, other)]
    with pytest.raises(BigironError) as caught:
        fetch(item(server, tmp_path))
    assert SUM in str(caught.value)
    assert hashlib.sha256(other).hexdigest() in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_size_that_differs_from_the_plan_is_refused_before_a_byte_is_kept(server: Server, tmp_path: Path) -> None:
    server.script = [lambda handler: serve(handler, BODY + b"x")]
    with pytest.raises(BigironError, match=rf"{len(BODY) + 1} bytes, expected {len(BODY)}"):
        fetch(item(server, tmp_path))
    assert (tmp_path / "x.gguf.part").stat().st_size == 0


def test_416_restarts_once_then_tells(server: Server, tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "x.gguf.part").write_bytes(BODY[:5])
    server.script = [status(416)]
    fetch(item(server, tmp_path), patience=clock.patience())
    assert server.ranges() == ["bytes=5-", ""]
    (tmp_path / "x.gguf").unlink()
    (tmp_path / "x.gguf.part").write_bytes(BODY[:5])
    server.script = [status(416), status(416)]
    with pytest.raises(BigironError, match="416"):
        fetch(item(server, tmp_path), patience=clock.patience())


def test_unknown_size_takes_the_servers_word_and_still_checks_the_sum(server: Server, tmp_path: Path) -> None:
    wanted = Item(f"{server.url}/x", tmp_path / "x", SUM)
    assert fetch(wanted) == len(BODY)


def test_no_server_is_retried_and_then_told(tmp_path: Path) -> None:
    clock = Clock()
    with pytest.raises(BigironError, match="no answer"):
        fetch(Item("http://127.0.0.1:9/x", tmp_path / "x", SUM, 4), patience=clock.patience(10))
    assert clock.slept == [1.0, 2.0, 4.0]


def test_full_disk_keeps_the_part(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def write(handle: int, data: bytes) -> int:
        if os.fstat(handle).st_size >= 300_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, bytes(data[:300_000]))

    monkeypatch.setattr(fetching.os, "write", write)
    with pytest.raises(BigironError, match="disk is full"):
        fetch(item(server, tmp_path))
    assert (tmp_path / "x.gguf.part").read_bytes() == BODY[:300_000]
    monkeypatch.undo()
    assert fetch(item(server, tmp_path)) == len(BODY) - 300_000


def test_two_runs_do_not_write_the_same_part(server: Server, tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / "x.gguf.part").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BigironError, match="another run"):
            fetch(item(server, tmp_path))


def test_folder_of_another_user_is_named(server: Server, tmp_path: Path) -> None:
    with pytest.raises(BigironError, match="cannot write here") as caught:
        fetch(Item(f"{server.url}/x", tmp_path / "missing" / "x", SUM, len(BODY)))
    assert "uid" in str(caught.value.hint)


# --- a set of files ------------------------------------------------------------------------------------------


PARTS = {"q/a-00001-of-00002.gguf": BODY, "q/a-00002-of-00002.gguf": BODY[::-1]}


def wanted_files() -> list[Wanted]:
    return [Wanted(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in PARTS.items()]


def serve_set(server: Server) -> None:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        name = handler.path.split(f"/resolve/{REVISION}/", 1)[1]
        serve(handler, PARTS[name])

    server.script = [answer] * 20


def run(server: Server, root: Path, **more: object) -> dict[str, object]:
    options = {"endpoint": server.url, "reserve_bytes": 0, "progress": lambda *_a: None, **more}
    return ensure(Revision(root, "org/repo", REVISION), wanted_files(), **options)  # type: ignore[arg-type]


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
        Wanted(path, 1, SUM)


@pytest.mark.parametrize(
    ("repo", "revision"), [("org", REVISION), ("../x", REVISION), ("org/repo", "main"), ("a/b/c", REVISION)]
)
def test_unpinned_or_strange_repository_is_refused(tmp_path: Path, repo: str, revision: str) -> None:
    with pytest.raises(BigironError):
        Revision(tmp_path, repo, revision)


def test_torn_record_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text('{"files": {"a"')
    assert Proofs(tmp_path).files == {}
