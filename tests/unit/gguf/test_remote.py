from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bigiron.gguf import remote
from bigiron.gguf.errors import GgufError, SourceError
from bigiron.gguf.reader import Header, read_file, read_header
from bigiron.gguf.remote import HttpSource, read_url
from fixtures.gguf import GgufFile
from fixtures.gguf_models import KIMI_K2, write_model

SRC = Path(__file__).resolve().parents[3] / "src"


class QuietServer(ThreadingHTTPServer):
    """Says nothing when a client hangs up, which is what these tests make it do."""

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@dataclass
class Server:
    """Serves one file; ``behave`` may answer a request itself and then returns True."""

    path: Path
    behave: Callable[[BaseHTTPRequestHandler], bool] = lambda _: False
    ranges: bool = True
    sent: int = 0
    seen: list[dict[str, str]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def serve() -> Iterator[Callable[[Server], Server]]:
    running: list[ThreadingHTTPServer] = []

    def start(server: Server) -> Server:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.seen.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
                if server.behave(self):
                    return
                size = server.path.stat().st_size
                match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if server.ranges else None
                first, last = (int(match[1]), min(int(match[2]), size - 1)) if match else (0, size - 1)
                self.send_response(206 if match else 200)
                self.send_header("Content-Length", str(last - first + 1))
                self.send_header("ETag", '"one"')
                if match:
                    self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
                self.end_headers()
                with server.path.open("rb") as data:
                    data.seek(first)
                    self.wfile.write(data.read(last - first + 1))
                server.sent += last - first + 1

            def log_message(self, *args: object) -> None:
                pass

        http = QuietServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
        running.append(http)
        server.url = f"http://127.0.0.1:{http.server_port}/m.gguf"
        return server

    yield start
    for http in running:
        http.shutdown()
        http.server_close()


def answer(status: int, body: bytes = b"", **headers: str) -> Callable[[BaseHTTPRequestHandler], bool]:
    def behave(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        return True

    return behave


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_model(tmp_path_factory.mktemp("kimi"), KIMI_K2, "Q4_K_M")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return GgufFile().add("general.architecture", "llama").tensor("a", (20_000,)).write(tmp_path / "m.gguf")


def same(one: Header, other: Header) -> bool:
    return (one.keys, one.tensors, one.data_offset, one.file_bytes) == (
        other.keys,
        other.tensors,
        other.data_offset,
        other.file_bytes,
    )


@pytest.mark.parametrize("shard", [0, 1, -1])
def test_only_the_header_is_fetched_in_few_round_trips(kimi: list[Path], serve: Callable[[Server], Server], shard: int) -> None:
    server = serve(Server(kimi[shard]))
    local = read_file(kimi[shard])
    with HttpSource(server.url) as source:
        assert same(read_header(source), local)
        assert source.requests == len(server.seen) <= 12
    floor = 8 << 10
    assert server.sent <= max(1.1 * local.header_bytes, floor)


def test_redirects_are_followed_once_and_the_token_stays_behind(small: Path, serve: Callable[[Server], Server]) -> None:
    file = GgufFile().add("general.architecture", "llama").add("words", [f"word{n}" for n in range(5000)]).tensor("a", (9,))
    store = serve(Server(file.write(small)))
    elsewhere = store.url.replace("127.0.0.1", "localhost")
    hub = serve(Server(small, behave=answer(302, Location=elsewhere)))
    header = read_url(hub.url, headers={"Authorization": "Bearer secret"})
    assert header.keys["words"].items == 5000
    assert len(hub.seen) == 1
    assert hub.seen[0]["authorization"] == "Bearer secret"
    assert len(store.seen) > 1
    assert not any("authorization" in seen for seen in store.seen)


def test_a_server_without_ranges_is_refused_with_the_reason(kimi: list[Path], serve: Callable[[Server], Server]) -> None:
    server = serve(Server(kimi[1], behave=answer(200, b"GGUF" * 100)))
    with pytest.raises(SourceError, match="ignores ranges") as caught:
        read_url(server.url)
    assert "Accept-Ranges" in (caught.value.hint or "")
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("status", "words"), [(401, "valid token"), (403, "refuses"), (404, "no such file"), (418, "HTTP 418")]
)
def test_refusals_are_told_apart_not_retried_and_leak_no_token(
    small: Path, serve: Callable[[Server], Server], status: int, words: str
) -> None:
    server = serve(Server(small, behave=answer(status)))
    with pytest.raises(SourceError, match=words) as caught:
        read_url(server.url + "?signature=hush", headers={"Authorization": "Bearer secret"})
    assert len(server.seen) == 1
    shown = str(caught.value.to_json())
    assert "secret" not in shown
    assert "hush" not in shown


def test_a_busy_server_is_asked_again_when_it_says(
    small: Path, serve: Callable[[Server], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(remote.time, "sleep", waits.append)
    busy = [answer(429, Retry_After="2"), answer(503, Retry_After="3")]
    server = serve(Server(small, behave=lambda handler: busy.pop(0)(handler) if busy else False))
    assert read_url(server.url).text("general.architecture") == "llama"
    assert waits == [2.0, 3.0]
    server = serve(Server(small, behave=answer(500)))
    with pytest.raises(SourceError, match="HTTP 500"):
        read_url(server.url)
    assert len(server.seen) == 4


def test_a_short_body_is_asked_again(small: Path, serve: Callable[[Server], Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote.time, "sleep", lambda _: None)
    short = [True]

    def behave(handler: BaseHTTPRequestHandler) -> bool:
        if not short:
            return False
        short.clear()
        size = small.stat().st_size
        return answer(206, b"GGUF", Content_Range=f"bytes 0-8191/{size}")(handler)

    server = serve(Server(small, behave=behave))
    assert same(read_url(server.url), read_file(small))
    assert len(server.seen) == 2


def test_more_than_was_asked_for_is_not_taken(small: Path, serve: Callable[[Server], Server]) -> None:
    server = serve(Server(small, behave=answer(206, bytes(1 << 20), Content_Range="bytes 0-8191/9999999")))
    with pytest.raises(SourceError, match="more than the range"):
        read_url(server.url)


@pytest.mark.parametrize("value", ["", "bytes */100", "bytes 5-9/100", "bytes 0-9/*", "lines 0-9/10"])
def test_a_wrong_content_range_is_an_error(small: Path, serve: Callable[[Server], Server], value: str) -> None:
    server = serve(Server(small, behave=answer(206, b"GGUF", Content_Range=value)))
    with pytest.raises(SourceError, match="Content-Range"):
        read_url(server.url)


def test_a_file_that_changes_on_the_way_is_an_error(tmp_path: Path, serve: Callable[[Server], Server]) -> None:
    file = GgufFile().add("general.architecture", "llama").add("words", [f"word{n}" for n in range(5000)]).tensor("a", (9,))
    path = file.write(tmp_path / "m.gguf")
    count = [0]

    def behave(handler: BaseHTTPRequestHandler) -> bool:
        count[0] += 1
        if count[0] == 2:
            with path.open("ab") as out:
                out.write(b"more")
        return False

    server = serve(Server(path, behave=behave))
    with pytest.raises(SourceError, match="changed on the server"):
        read_url(server.url)


def test_nobody_there_and_nonsense_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote.time, "sleep", lambda _: None)
    for url, words in (
        ("http://127.0.0.1:9/m.gguf", "did not answer"),
        ("ftp://x/m.gguf", "only http"),
        ("http://x:port/m", "not a URL"),
    ):
        with pytest.raises(SourceError, match=words):
            read_url(url)


def test_damaged_headers_are_the_same_errors_as_from_a_file(tmp_path: Path, serve: Callable[[Server], Server]) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + bytes(40))
    server = serve(Server(path))
    with pytest.raises(GgufError, match="version at byte 4"):
        read_url(server.url)
    path.write_bytes(b"")
    with pytest.raises(GgufError):
        read_url(server.url)


def test_hosts_import_everything_without_httpx() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import bigiron.gguf.remote, bigiron.gguf.sets, bigiron.gguf.facts, bigiron.gguf.split\n"
        "assert 'httpx' not in sys.modules and 'typing_extensions' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code, str(SRC)], check=True)
