"""Listing a hub repository over real HTTP, against a hub-like server in this process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from bigiron.errors import BigironError, Refused, UsageError
from bigiron.hub.quants import RepoFile, group
from bigiron.hub.tree import RepoTree, commit_of, list_files, quants, select

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40
SHA = "a" * 64
TOKEN = "hf_secretsecretsecret"
REPO = "lab/Kimi-GGUF"


def lfs(path: str, size: int) -> dict[str, object]:
    return {
        "type": "file",
        "path": path,
        "size": size,
        "oid": "b" * 40,
        "lfs": {"oid": SHA, "size": size, "pointerSize": 135},
    }


def shards(folder: str, base: str, count: int, size: int = 1000) -> list[dict[str, object]]:
    return [lfs(f"{folder}/{base}-{n:05d}-of-{count:05d}.gguf", size + n) for n in range(1, count + 1)]


LISTING = [
    {"type": "directory", "path": "Q2", "oid": "c" * 40, "size": 0},
    {"type": "file", "path": "README.md", "size": 10, "oid": "d" * 40},
    *shards("Q2", "Kimi-Q2", 3),
    *shards("Q4", "Kimi-Q4", 3),
    *shards("UD-Q2_K_XL", "Kimi-UD-Q2_K_XL", 3),
    lfs("mmproj-other-F16.gguf", 5),
    lfs("imatrix.gguf", 6),
]


class Hub(BaseHTTPRequestHandler):
    """The hub's tree API, two entries a page; the repository's name decides how it misbehaves."""

    def do_GET(self) -> None:
        server = self.server
        url = urlsplit(self.path)
        server.seen.append((self.path, self.headers.get("Authorization")))
        if server.down:
            return self.answer(503, {"error": "down"})
        if "Invalid" in (self.headers.get("Authorization") or ""):
            return self.answer(401, {"error": "no"}, {"X-Error-Message": "Invalid credentials in Authorization header"})
        if "/lab/gated/" in url.path:
            status = 403 if self.headers.get("Authorization") else 401
            return self.answer(status, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
        if "/lab/forbidden/" in url.path:
            return self.answer(403, {"error": "no"})
        if "/lab/html/" in url.path:
            return self.answer(200, None)
        if url.path.endswith("/revision/main"):
            return self.answer(
                200, {"id": REPO, "sha": COMMIT, "siblings": [], "tags": [], "downloads": 0, "likes": 0, "private": False}
            )
        if url.path == f"/api/models/{REPO}/tree/{OTHER}":
            return self.answer(404, {"error": "x"}, {"X-Error-Code": "RevisionNotFound"})
        if url.path == f"/api/models/lab/escape/tree/{COMMIT}":
            return self.answer(200, [lfs("../../etc/x.gguf", 1)])
        if url.path != f"/api/models/{REPO}/tree/{COMMIT}":
            return self.answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        assert parse_qs(url.query)["recursive"][0].lower() == "true"
        start = int(parse_qs(url.query).get("cursor", ["0"])[0])
        link = f'<http://{self.headers["Host"]}{url.path}?recursive=true&cursor={start + 5}>; rel="next"'
        extra = {"Link": link} if start + 5 < len(LISTING) else {}
        return self.answer(200, LISTING[start : start + 5], extra)

    def answer(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = b"<html>hello</html>" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.seen, server.down = [], False
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_pages_are_joined_and_sizes_and_hashes_kept(hub: ThreadingHTTPServer) -> None:
    tree = list_files(hub.url, REPO, COMMIT, None)
    assert [file.path for file in tree.files] == sorted(str(entry["path"]) for entry in LISTING if entry["type"] == "file")
    assert RepoFile("Q2/Kimi-Q2-00003-of-00003.gguf", 1003, SHA) in tree.files
    assert RepoFile("README.md", 10, None) in tree.files
    assert tree.notes == ()
    assert len(hub.seen) == 3


def test_a_second_call_costs_no_network_and_says_so(hub: ThreadingHTTPServer) -> None:
    first = list_files(hub.url, REPO, COMMIT, None)
    requests = len(hub.seen)
    second = list_files(hub.url, REPO, COMMIT.upper(), None)
    assert second.files == first.files
    assert len(hub.seen) == requests
    assert "from the cache" in second.notes[0]
    assert hub.url in second.notes[0]


def test_a_cached_list_does_not_import_huggingface_hub(hub: ThreadingHTTPServer) -> None:
    list_files(hub.url, REPO, COMMIT, None)
    code = (
        "import sys\nfrom bigiron.hub.tree import list_files, select\n"
        f"tree = list_files({hub.url!r}, {REPO!r}, {COMMIT!r}, None)\n"
        "print(select(tree, 'Q2').total_bytes, 'huggingface_hub' in sys.modules)"
    )
    src = Path(__file__).resolve().parents[2] / "src"
    ran = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env={"PYTHONPATH": str(src), **_cache_env()}
    )
    assert ran.stdout == "3006 False\n", ran.stderr


def _cache_env() -> dict[str, str]:
    import os

    return {name: os.environ[name] for name in ("XDG_CACHE_HOME", "PATH")}


def test_refresh_asks_again(hub: ThreadingHTTPServer) -> None:
    list_files(hub.url, REPO, COMMIT, None)
    requests = len(hub.seen)
    assert list_files(hub.url, REPO, COMMIT, None, refresh=True).notes == ()
    assert len(hub.seen) == 2 * requests


def test_a_broken_cache_entry_is_fetched_again(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    list_files(hub.url, REPO, COMMIT, None)
    (entry,) = tmp_path.glob("bigiron/hub/trees/*/*.json")
    entry.write_text('{"files": [')
    assert list_files(hub.url, REPO, COMMIT, None).notes == ()


def test_a_branch_is_refused_with_the_commit_it_points_to(hub: ThreadingHTTPServer) -> None:
    with pytest.raises(Refused) as caught:
        list_files(hub.url, REPO, "main", None)
    assert COMMIT in caught.value.what
    assert caught.value.hint == f"set model_revision: {COMMIT}"


def test_a_branch_while_the_hub_is_down_names_cached_commits(hub: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    list_files(hub.url, REPO, COMMIT, None)
    monkeypatch.setattr("time.sleep", lambda _: None)
    hub.down = True
    with pytest.raises(Refused, match="cannot be asked") as caught:
        list_files(hub.url, REPO, "main", None)
    assert COMMIT in str(caught.value.hint)


def test_the_commit_of_a_branch_is_told_and_remembered_while_the_hub_is_down(
    hub: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    hub.down = True
    with pytest.raises(BigironError, match="cannot be reached"):
        commit_of(hub.url, REPO, "main", None)
    hub.down = False
    commit, note = commit_of(hub.url, REPO, "main", None)
    assert commit == COMMIT
    assert f"{REPO} is not pinned" in note
    hub.down = True
    commit, note = commit_of(hub.url, REPO, "main", None)
    assert commit == COMMIT
    assert "is down" in note
    assert time.strftime("%Y-%m-%d") in note
    with pytest.raises(BigironError, match="cannot be reached"):
        commit_of(hub.url, REPO, "other-branch", None)


def test_hub_down_uses_what_another_endpoint_gave_and_says_so(hub: ThreadingHTTPServer) -> None:
    list_files(hub.url, REPO, COMMIT, None)
    tree = list_files("http://127.0.0.1:1", REPO, COMMIT, None)
    assert len(tree.files) == len(LISTING) - 1
    assert "http://127.0.0.1:1 is down" in tree.notes[0]


@pytest.mark.parametrize("how", ["refused", "503"])
def test_hub_down_with_nothing_cached(hub: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    hub.down = True
    with pytest.raises(BigironError, match="cannot be reached") as caught:
        list_files("http://127.0.0.1:1" if how == "refused" else hub.url, REPO, COMMIT, None)
    assert caught.value.exit_code == 1
    assert sum(waited) <= 3
    assert len(hub.seen) == (0 if how == "refused" else 3)


@pytest.mark.parametrize(
    ("repo", "revision", "token", "kind", "words"),
    [
        ("lab/none", COMMIT, None, UsageError, "no such repository on"),
        (REPO, OTHER, None, UsageError, "no such revision"),
        ("lab/gated", COMMIT, None, Refused, "is gated and there is no token"),
        ("lab/gated", COMMIT, TOKEN, Refused, "the token has no access"),
        ("lab/forbidden", COMMIT, TOKEN, Refused, "forbids access"),
        (REPO, COMMIT, "Invalid" + TOKEN, Refused, "rejected the token"),
        (REPO, COMMIT, f"two\nlines{TOKEN}", UsageError, "line break"),
        ("lab/escape", COMMIT, None, Refused, "outside the repository"),
        ("lab/html", COMMIT, None, BigironError, "could not be used"),
        ("not a repo", COMMIT, None, UsageError, "not a repository name"),
        ("lab/..", COMMIT, None, UsageError, "not a repository name"),
        (REPO, " ", None, UsageError, "no revision"),
    ],
)
def test_each_failure_is_one_sentence_without_the_token(
    hub: ThreadingHTTPServer, repo: str, revision: str, token: str | None, kind: type[BigironError], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        list_files(hub.url, repo, revision, token)
    assert TOKEN not in f"{caught.value!r}{caught.value.hint}{caught.value.__cause__!r}"
    assert "\n" not in str(caught.value)


def test_an_endpoint_that_is_no_address(hub: ThreadingHTTPServer) -> None:
    with pytest.raises(UsageError, match="not an http"):
        list_files("ftp://x", REPO, COMMIT, None)


def test_the_token_is_sent_but_a_saved_one_is_not(hub: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_saved")
    list_files(hub.url, REPO, COMMIT, None)
    assert {header for _, header in hub.seen} == {None}
    list_files(hub.url, REPO, COMMIT, TOKEN, refresh=True)
    assert hub.seen[-1][1] == f"Bearer {TOKEN}"


def test_q2_is_never_ud_q2_and_projectors_are_no_models(hub: ThreadingHTTPServer) -> None:
    tree = list_files(hub.url, REPO, COMMIT, None)
    assert set(quants(tree)) == {"Q2", "Q4", "UD-Q2_K_XL"}
    chosen = select(tree, "q2")
    assert [file.path for file in chosen.files] == [f"Q2/Kimi-Q2-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert chosen.total_bytes == 1001 + 1002 + 1003
    assert chosen.entry == "Q2/Kimi-Q2-00001-of-00003.gguf"


def test_an_unknown_quant_lists_those_that_exist(hub: ThreadingHTTPServer) -> None:
    with pytest.raises(UsageError, match="no quant 'Q2_K_XL'") as caught:
        select(list_files(hub.url, REPO, COMMIT, None), "Q2_K_XL")
    assert "UD-Q2_K_XL (0.0 GB)" in str(caught.value.hint)


def _tree(*paths: str, sha: str | None = SHA) -> RepoTree:
    return RepoTree("http://hub", REPO, COMMIT, tuple(RepoFile(path, 100, sha) for path in paths))


def test_refusals_of_select() -> None:
    with pytest.raises(Refused, match="no GGUF"):
        select(_tree("model.safetensors", "mmproj.gguf"), "Q2_K")
    with pytest.raises(Refused, match=r"1 of 2 shards are missing \(m-Q2_K-00002-of-00002.gguf\)"):
        select(_tree("m-Q2_K-00001-of-00002.gguf"), "Q2_K")
    with pytest.raises(Refused, match="no SHA-256"):
        select(_tree("m-Q2_K.gguf", sha=None), "Q2_K")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("gemma-3-270m-it-Q4_K_M.gguf", "Q4_K_M"),
        ("model.iq4_xs.gguf", "iq4_xs"),
        ("BF16/Kimi-K2-BF16-00001-of-00001.gguf", "BF16"),
        ("smol-IQ1_KT/Kimi-smol-IQ1_KT-00001-of-00001.gguf", "smol-IQ1_KT"),
        ("moonshotai_Kimi-K2.6-IQ2_XXS/moonshotai_Kimi-K2.6-IQ2_XXS-00001-of-00001.gguf", "IQ2_XXS"),
        ("UD-TQ1_0/K-UD-TQ1_0-00001-of-00001.gguf", "UD-TQ1_0"),
        ("gpt-oss-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("Q2/part-00001-of-00001.gguf", "Q2"),
        ("plain.gguf", "plain"),
    ],
)
def test_the_quant_in_a_name(path: str, name: str) -> None:
    assert list(group([RepoFile(path, 1, SHA)])) == [name]


def test_two_models_with_one_quant_are_told_apart() -> None:
    tree = _tree("Model-A-Q4_K_M.gguf", "Model-B-Q4_K_M.gguf", "Model-A-Q8_0.gguf")
    assert set(quants(tree)) == {"Model-A-Q4_K_M", "Model-B-Q4_K_M", "Q8_0"}
    with pytest.raises(UsageError, match="names 2 models"):
        select(tree, "Q4_K_M")
    assert select(tree, "model-b-q4_k_m").entry == "Model-B-Q4_K_M.gguf"


def test_a_complete_set_beats_a_broken_one() -> None:
    tree = _tree("Q8_0/a-00001-of-00002.gguf", "Q8_0/a-00001-of-00001.gguf")
    assert select(tree, "Q8_0").entry == "Q8_0/a-00001-of-00001.gguf"
