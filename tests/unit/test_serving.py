"""Waiting for a service and timing a completion, against stub servers of this process and canned systemd answers."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bigiron.errors import BigironError
from bigiron.onhost import serving, symptoms
from bigiron.onhost.system import Output

UNIT = "llama-server-main.service"
KEY = "correct-horse-battery"


class Llama:
    """A stub of llama-server: ``health`` answers in turn (the last stays), /v1/models is 200 at once, POST needs a key."""

    def __init__(self, health: list[int], completion: tuple[int, Any] | None = None) -> None:
        self.health = health
        self.completion = completion
        self.seen: list[dict[str, Any]] = []
        self.authorizations: list[str | None] = []


COMPLETION = {
    "content": " Paris",
    "model": "gemma",
    "tokens_predicted": 8,
    "timings": {"prompt_n": 5, "prompt_per_second": 123.456, "predicted_n": 8, "predicted_per_second": 9.5},
}


@contextmanager
def running(llama: Llama) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def send(self, status: int, body: Any) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            if self.path != "/health":
                self.send(200, {"data": []})
                return
            status = llama.health.pop(0) if len(llama.health) > 1 else llama.health[0]
            self.send(status, {"status": "ok"} if status == 200 else {"error": {"message": "Loading model"}})

        def do_POST(self) -> None:
            llama.authorizations.append(self.headers["Authorization"])
            llama.seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if self.headers["Authorization"] != f"Bearer {KEY}":
                self.send(401, {"error": {"message": "Invalid API Key"}})
            else:
                self.send(*(llama.completion or (200, COMPLETION)))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def state(**properties: object) -> dict[str, object]:
    return {
        "Id": UNIT, "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "Result": "success",
        "MainPID": os.getpid(), "NRestarts": 0, "ExecMainStatus": 0, "ExecMainCode": 0, "Job": 0, **properties,
    }  # fmt: skip


def systemd(*states: dict[str, object], journal: str = "") -> Callable[..., Callable[[], Output]]:
    """A `system.Start` that shows ``states`` in turn (the last one stays) and a journal."""
    left = list(states)

    def begin(argv):
        if argv[0] == "journalctl":
            return lambda: Output(0, journal, "")
        now = left.pop(0) if len(left) > 1 else left[0]
        return lambda: Output(0, "".join(f"{name}={value}\n" for name, value in now.items()), "")

    return begin


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def wait(port: int, begin: Any, timeout_s: float = 60, **more: Any) -> serving.Ready:
    clock = Clock()
    return serving.wait_ready(UNIT, port, timeout_s=timeout_s, begin=begin, clock=clock, sleep=clock.sleep, **more)


def test_ready_only_after_loading():
    seen: list[serving.Waiting] = []
    with running(Llama([503, 503, 503, 200])) as port:
        ready = wait(port, systemd(state()), progress=seen.append)
    assert ready == (os.getpid(), 1.5)
    assert [each.detail for each in seen] == ["/health says 503: Loading model"] * 3
    assert all(each.resident_bytes > 0 for each in seen)


def test_a_unit_that_is_still_starting_is_waited_for():
    starting = state(ActiveState="activating", SubState="start-pre", MainPID=0)
    queued = state(ActiveState="inactive", SubState="dead", MainPID=0, Job=77)
    with running(Llama([200])) as port:
        assert wait(port, systemd(queued, starting, state())).seconds == 1.0


def test_timeout_says_what_it_was_waiting_for():
    with running(Llama([503])) as port, pytest.raises(BigironError) as caught:
        wait(port, systemd(state()), timeout_s=30)
    assert str(caught.value) == f"{UNIT}: not ready after 30 s: /health says 503: Loading model"


def test_another_program_on_the_port_is_named_and_never_ready():
    child = os.posix_spawn("/bin/sleep", ["sleep", "30"], os.environ)
    try:
        with running(Llama([200])) as port, pytest.raises(BigironError) as caught:
            wait(port, systemd(state(MainPID=child)))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert f"port {port} is held by python" in caught.value.what
    assert f"pid {os.getpid()}" in caught.value.what


@pytest.mark.parametrize(
    ("dead", "sentence"),
    [
        ({"ActiveState": "failed", "Result": "exit-code", "ExecMainCode": 1, "ExecMainStatus": 203}, "203/EXEC"),
        ({"ActiveState": "failed", "Result": "exit-code", "ExecMainCode": 1, "ExecMainStatus": 216}, "216/GROUP"),
        ({"ActiveState": "failed", "Result": "exit-code", "ExecMainCode": 1, "ExecMainStatus": 217}, "217/USER"),
        ({"ActiveState": "failed", "Result": "exit-code", "ExecMainCode": 1, "ExecMainStatus": 243}, "243/CREDENTIALS"),
        ({"ActiveState": "failed", "Result": "exit-code", "ExecMainCode": 1, "ExecMainStatus": 1}, "exit code 1"),
        ({"ActiveState": "failed", "Result": "oom-kill", "ExecMainCode": 2, "ExecMainStatus": 9}, "(oom-kill)"),
        ({"ActiveState": "failed", "Result": "core-dump", "ExecMainCode": 3, "ExecMainStatus": 4}, "CPU features"),
        ({"ActiveState": "failed", "Result": "signal", "ExecMainCode": 2, "ExecMainStatus": 9}, "signal 9"),
        ({"ActiveState": "failed", "Result": "signal", "ExecMainCode": 2, "ExecMainStatus": 15}, "signal 15"),
        ({"ActiveState": "failed", "Result": "resources"}, "environment file"),
        ({"ActiveState": "failed", "Result": "exit-code"}, "before or after its start failed"),
        ({"ActiveState": "failed", "Result": "start-limit-hit", "ExecMainCode": 1, "ExecMainStatus": 203}, "203/EXEC"),
        ({"ActiveState": "failed", "Result": "start-limit-hit"}, "start limit hit: it died so often"),
        (
            {"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": 1, "NRestarts": 5, "StartLimitBurst": 5},
            "1; start limit hit",
        ),
        ({"ActiveState": "activating", "SubState": "auto-restart", "Result": "exit-code", "ExecMainStatus": 1}, "exit code 1"),
        ({"NRestarts": 1, "MainPID": 4242, "ExecMainStatus": 0}, "ended by itself"),
        (
            {"ActiveState": "inactive", "ConditionResult": "no", "ConditionTimestampMonotonic": 7},
            "a condition of the unit does not hold",
        ),
        (
            {"ActiveState": "inactive", "AssertResult": "no", "AssertTimestampMonotonic": 7},
            "a condition of the unit does not hold",
        ),
        ({"ActiveState": "inactive", "MainPID": 0}, "ended by itself"),
        ({"LoadState": "bad-setting", "ActiveState": "inactive"}, "cannot use the unit"),
    ],
)
def test_death_ends_the_wait_at_once_with_a_plain_sentence(dead, sentence):
    clock = Clock()
    begin = systemd(state(), state(**{"MainPID": 0, **dead}), journal="error loading model: bad magic\n")
    with running(Llama([503])) as port, pytest.raises(BigironError) as caught:
        serving.wait_ready(UNIT, port, timeout_s=600, begin=begin, clock=clock, sleep=clock.sleep)
    assert sentence in caught.value.what
    assert "bad magic" in caught.value.what
    assert clock.now == serving.INTERVAL_S


def test_last_log_lines_are_of_the_run_that_died():
    calls = []
    begin = systemd(state(InvocationID="aa"), state(MainPID=4242, NRestarts=1, InvocationID="bb", ExecMainStatus=1))

    def keep(argv):
        calls.append(argv)
        return begin(argv)

    with running(Llama([503])) as port, pytest.raises(BigironError):
        wait(port, keep)
    assert [argument for argument in calls[-1] if "ID=" in argument or argument == "+"] == [
        "_SYSTEMD_INVOCATION_ID=aa", "+", "INVOCATION_ID=aa", "+", "_SYSTEMD_INVOCATION_ID=bb", "+", "INVOCATION_ID=bb",
    ]  # fmt: skip


def test_an_earlier_restart_is_no_death():
    with running(Llama([200])) as port:
        assert wait(port, systemd(state(NRestarts=3))).pid == os.getpid()


def test_not_running_at_all():
    with pytest.raises(BigironError, match="it is not running, and nothing is starting it"):
        wait(1, systemd(state(ActiveState="inactive", SubState="dead", MainPID=0, ConditionResult="no", AssertResult="no")))


def test_a_unit_that_systemd_gave_up_says_how_to_reset_it():
    with pytest.raises(BigironError) as caught:
        wait(1, systemd(state(ActiveState="failed", Result="start-limit-hit", MainPID=0)))
    assert caught.value.hint == f"fix the cause, then systemctl reset-failed {UNIT}"


def test_no_such_unit():
    with pytest.raises(BigironError, match="no such unit"):
        wait(1, systemd(state(LoadState="not-found", ActiveState="inactive")))


def test_last_log_lines_hold_no_secret():
    journal = (
        f"llama-server --api-key {KEY}\nAuthorization: Bearer abcdef.123\nLLAMA_API_KEY=other-key x\n"
        f"token hf_abcdefghijklmnopqrstuv\nkey is {KEY}!\n--api-key-file /etc/bigiron/credentials/main.key\n"
    )
    begin = systemd(state(ActiveState="failed", Result="exit-code", ExecMainStatus=1, MainPID=0), journal=journal)
    with pytest.raises(BigironError) as caught:
        wait(1, begin, secrets=(KEY,))
    for secret in (KEY, "abcdef.123", "other-key", "hf_abc"):
        assert secret not in caught.value.what
    assert "--api-key-file /etc/bigiron/credentials/main.key" in caught.value.what


@pytest.mark.parametrize(
    "text", ["--api-key=s3cret x", '"--api-key", "s3cret"', "LLAMA_API_KEY: s3cret", "HF_TOKEN='s3cret'", "Bearer s3cret"]
)
def test_secret_shapes(text):
    assert "s3cret" not in symptoms.without_secrets(text)


def test_text_without_secrets_is_kept():
    text = "main: server is listening on http://127.0.0.1:8080, api-key file read, sk-short"
    assert symptoms.without_secrets(text, ("", KEY)) == text


def key_file(folder: Path, text: str = f"# made here\n\n{KEY}\nother\n") -> str:
    path = folder / "main.key"
    path.write_text(text)
    return str(path)


def request(port: int, path: str, **more: object) -> dict[str, Any]:
    return {"port": port, "host": "127.0.0.1", "key_file": path, "prompt": "Hi", "n_predict": 8, "timeout_s": 5, **more}


def test_one_timed_completion(tmp_path):
    llama = Llama([200])
    with running(llama) as port:
        answer = serving.main(request(port, key_file(tmp_path)))
    assert answer == {
        "ok": True, "content": " Paris", "prefill_tps": 123.46, "generation_tps": 9.5,
        "prompt_tokens": 5, "generated_tokens": 8, "model": "gemma",
    }  # fmt: skip
    assert llama.authorizations == [f"Bearer {KEY}"]
    assert (llama.seen[0]["prompt"], llama.seen[0]["n_predict"], llama.seen[0]["cache_prompt"]) == ("Hi", 8, False)


@pytest.mark.parametrize(
    ("completion", "error"),
    [
        ((500, {"error": {"message": f"boom {KEY}"}}), "status 500: boom ***"),
        ((503, {}), "status 503: the model is still loading"),
        ((200, b"<html>"), "the answer is no completion of llama-server"),
        ((200, []), "the answer is no completion of llama-server"),
    ],
)
def test_a_failed_completion_is_a_sentence_without_the_key(tmp_path, completion, error):
    with running(Llama([200], completion)) as port:
        answer = serving.main(request(port, key_file(tmp_path)))
    assert (answer["ok"], answer["error"]) == (False, error)
    assert KEY not in json.dumps(answer)


def test_a_wrong_key_is_said(tmp_path):
    with running(Llama([200])) as port:
        assert serving.main(request(port, key_file(tmp_path, "wrong\n")))["error"] == "status 401: the server refuses the key"


def test_nobody_there(tmp_path):
    with running(Llama([200])) as port:
        pass
    assert serving.main(request(port, key_file(tmp_path)))["error"] == "no completion: connection refused"


@pytest.mark.parametrize(
    ("text", "problem"), [("", "no usable"), ("# only\n", "no usable"), ("a\rb\x01c\n", None), ("schl\u00fcssel", "no usable")]
)
def test_bad_key_files(tmp_path, text, problem):
    path = key_file(tmp_path, text)
    if problem is None:
        assert serving.read_key(path) == "a"
        return
    with pytest.raises(BigironError, match=problem):
        serving.read_key(path)


def test_missing_key_file(tmp_path):
    answer = serving.main(request(1, str(tmp_path / "none")))
    assert answer["error"] == "the API key cannot be read: No such file or directory"


def test_the_key_is_not_sent_to_another_process(tmp_path, monkeypatch):
    llama = Llama([200])
    child = os.posix_spawn("/bin/sleep", ["sleep", "30"], os.environ)
    monkeypatch.setattr(
        serving.wait_ready, "__kwdefaults__", {**serving.wait_ready.__kwdefaults__, "begin": systemd(state(MainPID=child))}
    )
    try:
        with running(llama) as port:
            answer = serving.main(request(port, key_file(tmp_path), unit=UNIT))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert not answer["ok"]
    assert "is held by" in answer["error"]
    assert llama.authorizations == []
