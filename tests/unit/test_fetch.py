"""Fetching one file from a server that behaves badly in all the reported ways."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bigiron.errors import BigironError
from bigiron.onhost import fetch as fetching
from bigiron.onhost.fetch import Item, Patience, fetch
from fixtures.hubserver import BODY, Server, running, serve, status

SUM = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as state:
        yield state


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
            fetch(item(server, tmp_path), patience=Patience(sleep=lambda _: None))
        # a killed run lets go of it a moment later
        assert fetch(item(server, tmp_path), patience=Patience(sleep=lambda _: other.close())) == len(BODY)


def test_folder_of_another_user_is_named(server: Server, tmp_path: Path) -> None:
    with pytest.raises(BigironError, match="cannot write here") as caught:
        fetch(Item(f"{server.url}/x", tmp_path / "missing" / "x", SUM, len(BODY)))
    assert "uid" in str(caught.value.hint)
