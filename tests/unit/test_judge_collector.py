"""What runs on the host: it reads, it does not judge, and no secret leaves it."""

from __future__ import annotations

import ast
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bigiron import judge
from bigiron.errors import Unreachable
from bigiron.fleet.connection import Connection
from bigiron.judge import collect
from bigiron.judge.collector import basics, installed, running, serving

PACKAGE = Path(judge.__file__).parents[1]
SOURCES = sorted((PACKAGE / "judge" / "collector").glob("*.py"))
KEY = "k" * 24


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "main.key"
    path.write_text(f"# a comment\n\n{KEY}\n", encoding="utf-8")
    return str(path)


class Server(http.server.BaseHTTPRequestHandler):
    """llama-server's answers: /health for everybody, the rest with the key."""

    def answer(self) -> None:
        status, body = 200, {"status": "ok"}
        if self.path != "/health" and self.headers.get("Authorization") != f"Bearer {KEY}":
            status = 401
        elif self.path == "/props":
            body = {"model_path": "/m.gguf", "secret_thing": KEY}
        elif self.path == "/v1/models":
            body = {"data": [{"id": "m"}]}
        elif self.path == "/completion":
            body = {"content": "red", "tokens_predicted": 3, "timings": {"prompt_per_second": 5.0, "predicted_per_second": 2.0}}
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = answer  # noqa: N815

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def place() -> Iterator[list[Any]]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield ["127.0.0.1", server.server_port]
        server.shutdown()
        thread.join()


def test_it_asks_the_server_without_with_a_wrong_and_with_the_key(place: list[Any], key_file: str) -> None:
    found = serving.serving({"place": place, "key_file": key_file})
    assert found["health"]["status"] == 200
    assert set(found["open"].values()) == {401}
    assert found["wrong_key"] == 401
    assert found["props"] == {"status": 200, "model_path": "/m.gguf", "ids": []}
    assert found["models"]["ids"] == ["m"]
    assert KEY not in json.dumps(found)


def test_a_timed_completion(place: list[Any], key_file: str) -> None:
    request = {"place": place, "key_file": key_file, "prompt": "x", "n_predict": 3, "timeout_s": 5}
    found = serving.completion(request)
    assert (found["status"], found["tokens"], found["prefill_tps"], found["generation_tps"]) == (200, 3, 5.0, 2.0)


def test_silence_is_told_from_a_refusal(key_file: str) -> None:
    assert serving.serving({"place": ["127.0.0.1", 1], "key_file": key_file})["health"]["silent"] is True


def test_the_key_is_found_wherever_it_leaked(tmp_path: Path, key_file: str) -> None:
    (tmp_path / "open").mkdir()
    leaked = tmp_path / "open" / "notes.txt"
    leaked.write_text(f"key={KEY}", encoding="utf-8")
    program = [sys.executable, "-c", "print('up', flush=True); input()", KEY]
    child = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "LEAK": KEY})
    assert child.stdout is not None
    child.stdout.readline()  # only now is its argument list in place
    try:
        request = {"key_file": key_file, "scan": [str(tmp_path / "open")], "config_dir": "/etc/bigiron"}
        found = serving.secrets(request, {"rc": 0, "out": f"started with {KEY}\n"}, {"ExecStart": f"x {KEY}"})
    finally:
        child.communicate(b"\n")
    assert found["files"] == [str(leaked)]
    assert any(entry.startswith(f"{child.pid} ") for entry in found["arguments"])
    assert any(entry.startswith(f"{child.pid} ") for entry in found["environments"])
    assert (found["journal"], found["show"]) == (True, True)
    assert KEY not in json.dumps(found)


def test_an_empty_journal_proves_nothing(key_file: str) -> None:
    request = {"key_file": key_file, "scan": [], "config_dir": "/etc/bigiron"}
    assert "error" in serving.secrets(request, {"rc": 0, "out": ""}, {"A": "b"})["journal"]


def test_the_key_is_taken_out_of_every_fact(key_file: str) -> None:
    found = serving.redacted({"show": {"Environment": f"LLAMA_API_KEY={KEY}"}, "list": [KEY]}, key_file)
    assert found == {"show": {"Environment": "LLAMA_API_KEY=(a secret)"}, "list": ["(a secret)"]}


def test_another_secret_in_the_arguments_is_masked_too() -> None:
    words = ["llama-server", "--api-key", "other", "--hf-token=abc", "--port", "1"]
    assert serving.masked(words) == [
        "llama-server",
        "--api-key",
        "(a secret)",
        "--hf-token=(a secret)",
        "--port",
        "1",
    ]


@pytest.mark.parametrize(
    ("first", "answer", "words"),
    [
        ("bash\n", {}, "systemd is not PID 1 here, it is bash"),
        ("systemd\n", {"rc": 0, "out": "Running in chroot, ignoring command 'show'\n"}, "chroot"),
        (
            "systemd\n",
            {"rc": 1, "out": "System has not been booted with systemd as init system (PID 1).\n"},
            "has not been booted",
        ),
        ("systemd\n", {"error": "systemctl is not installed"}, "not installed"),
    ],
)
def test_systemctl_that_cannot_tell(monkeypatch: pytest.MonkeyPatch, first: str, answer: dict[str, Any], words: str) -> None:
    monkeypatch.setattr(running, "read_text", lambda path: first)
    monkeypatch.setattr(running, "run", lambda argv: answer)
    assert words in running.show("x.service")["error"]


def test_repeated_properties_keep_all_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "read_text", lambda path: "systemd\n")
    monkeypatch.setattr(running, "run", lambda argv: {"rc": 0, "out": "LoadState=loaded\nDeviceAllow=a r\nDeviceAllow=b r\n"})
    assert running.show("x.service") == {"LoadState": "loaded", "DeviceAllow": "a r\nb r"}


def test_what_a_drop_in_sets_is_told_without_values(tmp_path: Path) -> None:
    drop_in = tmp_path / "x.conf"
    drop_in.write_text("# c\n[Service]\nExecStart=\nExecStart=/bin/x \\\n  A=1\nEnvironment=K=secret\n[Unit]\nAfter=a\n")
    found = running.drop_ins(f"{drop_in} /nowhere/y.conf")
    assert found[str(drop_in)] == ["Service.Environment", "Service.ExecStart", "Unit.After"]
    assert found["/nowhere/y.conf"]["missing"] is True


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("argv[]=/bin/x --api-key sk-1 --port 1 ; x", "argv[]=/bin/x --api-key (a secret) --port 1 ; x"),
        ("--hf-token=abc --api-key-file /f", "--hf-token=(a secret) --api-key-file /f"),
        ("LANG=C HF_TOKEN=abc MY_PASSWORD=x A=b", "LANG=C HF_TOKEN=(a secret) MY_PASSWORD=(a secret) A=b"),
    ],
)
def test_secrets_in_what_systemctl_prints_are_masked(text: str, shown: str) -> None:
    assert serving.masked_text(text) == shown


def test_addresses_as_the_kernel_writes_them() -> None:
    address_of = running.address_of
    word = "0100007F" if sys.byteorder == "little" else "7F000001"
    assert address_of(word) == "127.0.0.1"
    assert address_of("0" * 32) == "::"


def test_a_listener_and_its_owner_are_found() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        found = running.listeners(os.getpid(), server.server_port)
        mine = [entry for entry in found["sockets"] if entry["port"] == server.server_port]
        assert [entry["address"] for entry in mine] == ["127.0.0.1"]
        assert mine[0]["inode"] in running.sockets_of(os.getpid())


def test_a_folder_that_cannot_be_read_is_no_empty_folder(tmp_path: Path) -> None:
    assert basics.guarded(installed.leftovers, str(tmp_path / "absent"))["missing"] is True
    (tmp_path / "Q4").mkdir()
    (tmp_path / "Q4" / "a.gguf.part").touch()
    assert installed.leftovers(str(tmp_path)) == ["Q4/a.gguf.part"]


def test_a_program_killed_by_a_signal_keeps_its_number() -> None:
    run = basics.run
    assert run(["/bin/sh", "-c", "kill -ILL $$"])["rc"] == -4
    assert run(["/nonexistent/tool"])["missing"] is True


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_it_needs_python_3_9_and_its_library_only(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert all(name.name.partition(".")[0] in sys.stdlib_module_names for name in node.names)
        if isinstance(node, ast.ImportFrom) and not node.level:
            assert str(node.module).partition(".")[0] in sys.stdlib_module_names


def test_an_unreachable_host_is_said_in_sshs_words() -> None:
    options = ("-F", "/dev/null", "-o", "ConnectTimeout=2", "-o", "Port=1")
    with (
        collect.opened(Connection(kind="ssh", name="gone", host="127.0.0.1", ssh_args=options)) as opened,
        pytest.raises(Unreachable) as caught,
    ):
        opened.collect(dict)
    assert "refused" in caught.value.what


def test_a_persons_tests_become_root_as_the_inventory_says(tmp_path: Path) -> None:
    log = tmp_path / "log"
    sudo = tmp_path / "sudo"
    sudo.write_text(f'#!/bin/sh\necho "$1 $2 $3 $4" >> {log}\nshift 3\nexec "$@"\n')
    sudo.chmod(0o755)
    identity = tmp_path / "id"
    identity.write_text("#!/bin/sh\necho 1000\n")
    identity.chmod(0o755)
    connection = Connection(kind="local", name="here", host="localhost", become_exe=str(sudo), become_user="boss")
    with collect.opened(connection) as opened:
        opened.backend.extra_env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        host = opened.for_tests()
        assert host.check_output("echo %s", "it's me") == "it's me"
    assert log.read_text().splitlines() == ["-n -u boss true", "-n -u boss /bin/sh"]


def test_sudo_is_asked_once_with_a_wrong_password(tmp_path: Path) -> None:
    """A stub sudo that counts: one attempt, and the judge's program never reaches it as further passwords."""
    log = tmp_path / "log"
    sudo = tmp_path / "sudo"
    sudo.write_text(
        f'#!/bin/sh\ncase "$1" in -n) exit 1;; esac\ncat >> {log}\necho "sudo: 1 incorrect password attempt" >&2\nexit 1\n'
    )
    sudo.chmod(0o755)
    identity = tmp_path / "id"
    identity.write_text("#!/bin/sh\necho 1000\n")
    identity.chmod(0o755)
    connection = Connection(kind="local", name="here", host="localhost", become_exe=str(sudo), become_password=lambda: "wrong")
    with collect.opened(connection) as opened:
        opened.backend.extra_env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        with pytest.raises(Unreachable, match="sudo refused the password"):
            opened.collect(dict)
    assert log.read_text() == "wrong\n"


def imported(path: Path) -> set[str]:
    """The bigiron modules that a file imports, by full name."""
    package = ["bigiron", *path.relative_to(PACKAGE).parent.parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            full = ".".join([*base, *([node.module] if node.module else [])])
            found |= {full, *(f"{full}.{name.name}" for name in node.names)}
    return {name for name in found if name.startswith("bigiron")}


def test_collector_and_observer_share_no_code() -> None:
    """A blind spot of one must not be a blind spot of the other."""
    onhost = sorted((PACKAGE / "onhost").glob("**/*.py"))
    assert SOURCES
    assert onhost
    assert {name for path in SOURCES for name in imported(path) if not name.startswith("bigiron.judge.collector")} == set()
    assert {name for path in onhost for name in imported(path) if name.startswith("bigiron.judge")} == set()
    assert any(imported(path) for path in SOURCES)
    assert any(imported(path) for path in onhost)
