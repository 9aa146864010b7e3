"""Ports, socket owners and health against real sockets of this process, and against planted /proc trees."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bigiron.onhost import net, processes
from bigiron.onhost.kinds import port as port_kind
from bigiron.onhost.kinds import service
from bigiron.onhost.reader import Reader
from bigiron.onhost.system import Output, Tree
from fixtures.hostroot import Programs, look, plant


@contextmanager
def server(answer: Callable[[socket.socket], None], address: str = "127.0.0.1") -> Iterator[int]:
    """A listener of this process whose connections go to ``answer``; gives its port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    channel, _ = listener.accept()
                except OSError:
                    return
                with channel:
                    answer(channel)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def say(data: bytes) -> Callable[[socket.socket], None]:
    def answer(channel: socket.socket) -> None:
        channel.recv(4096)
        channel.sendall(data)

    return answer


OK = b'HTTP/1.1 200 OK\r\n\r\n{"status":"ok"}'
LOADING = b'HTTP/1.1 503 X\r\n\r\n{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (OK, (200, "")),
        (LOADING, (503, "Loading model")),
        (b"HTTP/1.0 404 Not Found\r\n\r\nnope", (404, "nope")),
        (b"SSH-2.0-OpenSSH\r\n", (None, "what answers does not speak HTTP")),
        (b"", (None, "no answer within 2 s")),
    ],
)
def test_http_get(data, answer):
    with server(say(data)) as port:
        assert net.http_get("127.0.0.1", port, "/health") == answer


def test_http_get_gives_up_on_silence():
    over = threading.Event()
    with server(lambda _channel: over.wait()) as port:
        assert net.http_get("127.0.0.1", port, "/health", 0.1) == (None, "no answer within 0 s")
        over.set()


def test_http_get_gives_up_on_trickle(monkeypatch):
    sent = []
    over = threading.Event()

    def trickle(channel: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while len(sent) < 500:
                channel.sendall(b"H")
                sent.append(1)
                time.sleep(0.01)
        over.set()

    clock = itertools.count(step=0.1)  # a tenth of a second passes with every piece
    monkeypatch.setattr(net.time, "monotonic", lambda: next(clock))
    with server(trickle) as port:
        assert net.http_get("127.0.0.1", port, "/health", 0.3).status is None
        monkeypatch.undo()
        assert over.wait(60)
    assert len(sent) < 500


def test_http_get_says_refused():
    with server(say(OK)) as port:
        pass
    assert net.http_get("127.0.0.1", port, "/") == (None, "connection refused")


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1"])
def test_a_port_of_this_process(address):
    with server(say(OK), address) as port:
        found = port_kind.observe(Reader(), [port])()
        assert net.http_get(address, port, "/health").status == 200
    entry = found[str(port)]
    assert (entry["pid"], entry["address"]) == (os.getpid(), address)
    assert entry["program"].startswith("python")
    assert "error" not in entry


def test_free_ports_have_no_key():
    with server(say(OK)) as port:
        pass
    assert port_kind.observe(Reader(), [port])() == {}


def test_health_and_listener_of_a_unit(monkeypatch):
    shown = "\n\n".join(
        f"Id={name}.service\nLoadState=loaded\nMainPID={pid}" for name, pid in (("a", os.getpid()), ("b", 1), ("c", 0))
    )
    with server(say(LOADING)) as port, server(say(OK)) as other:
        names = {
            "a.service": {"host": "0.0.0.0", "port": port, "depends_on": []},
            "b.service": {"host": "127.0.0.1", "port": other, "depends_on": []},
            "c.service": {"host": "127.0.0.1", "port": 1, "depends_on": []},
            "gone.service": {"host": "127.0.0.1", "port": other, "depends_on": []},
        }
        reader = Reader(begin=Programs(systemctl=Output(0, shown, "")))
        monkeypatch.setattr(reader.tree, "exists", lambda _name: True)
        found = service.observe(reader, names)()
    assert (found["a.service"]["health"], found["a.service"]["health_detail"], found["a.service"]["listening"]) == (
        503,
        "Loading model",
        True,
    )
    assert (found["b.service"]["health"], found["b.service"]["listening"]) == (200, False)
    assert set(found) == {"a.service", "b.service", "c.service"}
    assert found["c.service"]["health_detail"] == "nobody listens on port 1"
    assert reader.service_pids == [os.getpid(), 1]


SHOW = """Id=llama-server-main.service
FragmentPath=/etc/systemd/system/llama-server-main.service
LoadState=loaded
ActiveState=active
SubState=running
UnitFileState=enabled
NeedDaemonReload=yes
MainPID=12
Result=success
NRestarts=3
ExecMainStatus=0
DropInPaths=/a/b.conf /c/d.conf
StartLimitBurst=5
StartLimitIntervalUSec=10min

Id=llama-server-old.service
LoadState=not-found
ActiveState=inactive
SubState=dead

Id=llama-server-gone.service
LoadState=not-found
ActiveState=active
SubState=running
MainPID=13
"""


UNIT = "/etc/systemd/system/llama-server-main.service"
WATCH = {"llama-server-main.service": {"host": "127.0.0.1", "port": 1, "depends_on": ["/etc/new", "/etc/old", "/etc/absent"]}}


def test_services_from_one_call(tmp_path):
    plant(tmp_path, {UNIT[1:]: "[Service]\nExecStart=/x\n", "run/systemd/system/x": "", "proc/stat": "btime 1000\n"})
    plant(tmp_path, {"proc/12/stat": f"12 (a (b) c) {' '.join(['S', *['0'] * 18, '500'])} 0 0\n", "proc/13/comm": "x"})
    plant(
        tmp_path,
        {"etc/new": "", "etc/old": "", "proc/12/cmdline": "/bin/llama-server\0--port\0008080\0--api-key\0secret-word\0"},
    )
    os.utime(tmp_path / "etc/new", (2000, 2000))
    os.utime(tmp_path / "etc/old", (900, 900))
    (tmp_path / "proc/12/exe").symlink_to("/opt/bigiron/releases/abc/bin/llama-server")
    plant(tmp_path, {"a/b.conf": "[Service]\nExecStart=\nExecStart=/y --api-key secret-word\n"})
    programs = Programs(systemctl=Output(0, SHOW, ""))
    found = look(tmp_path, programs, service=WATCH)
    assert "secret-word" not in str(found)
    services = found["services"]
    assert len(programs.calls) == 1
    assert programs.calls[0][-1] == "llama-server-main.service"
    assert set(services) == {"llama-server-main.service", "llama-server-gone.service"}
    main = services["llama-server-main.service"]
    assert (main["MainPID"], main["NRestarts"], main["NeedDaemonReload"], main["StartLimitBurst"]) == (12, 3, True, 5)
    assert main["DropInPaths"] == ["/a/b.conf", "/c/d.conf"]
    assert main["overrides"] == [["/a/b.conf", "ExecStart"]]
    assert main["exe"] == "/opt/bigiron/releases/abc/bin/llama-server"
    assert main["argv"] == ["/bin/llama-server", "--port", "8080", "--api-key", "***"]
    assert main["started"] == pytest.approx(1000 + 501 / os.sysconf("SC_CLK_TCK"))
    assert main["changed_since"] == ["/etc/new"]
    assert (main["health"], main["listening"], main["health_detail"]) == (None, False, "nobody listens on port 1")


def test_systemd_that_does_not_answer_is_an_error(tmp_path):
    plant(tmp_path, {"run/systemd/system/x": ""})
    programs = Programs(systemctl=Output(1, "", "Failed to connect to bus: Host is down"))
    assert look(tmp_path, programs, service=WATCH)["services"] == {
        "llama-server-main.service": {"error": "Failed to connect to bus: Host is down"}
    }


def test_started_is_close_to_the_truth():
    before = time.time()
    pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ)
    after = time.time()
    try:
        assert before - 0.05 <= processes.started(Tree(), pid) <= after + 0.05  # ticks of the kernel are 0.01 s
        mark = Path(f"/proc/{pid}/exe").readlink().name
        assert processes.program(Tree(), pid) == mark
        assert processes.resident_bytes(Tree(), pid) > 0
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert processes.started(Tree(), pid) is None
    assert processes.resident_bytes(Tree(), pid) == 0


def test_a_process_started_after_a_write_is_not_older_than_the_file(tmp_path):
    for _ in range(20):
        file = tmp_path / "unit"
        file.write_text("x")
        pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ)
        try:
            assert processes.started(Tree(), pid) >= file.stat().st_mtime
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000   999        0 777 1 0000
   1: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000   999        0 778 1 0000
   2: 00000000:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 779 1 0000
   3: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 777 1 0000
"""
TCP6 = """  sl  local_address                         remote_address                        st
   0: 0000000000000000FFFF00000100007F:1F92 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 780 1
"""


@pytest.mark.skipif(os.sys.byteorder != "little", reason="the table is of a little-endian machine")
def test_ports_in_a_planted_tree(tmp_path):
    for name, text in {
        "net/tcp": TCP,
        "net/tcp6": TCP6,
        "12/comm": "llama-server\n",
        "12/cgroup": "0::/system.slice/llama-server-main.service\n",
        "13/cgroup": "5:memory:/x\n1:name=systemd:/user.slice/user-0.slice/user@0.service/app.slice/mine.service/sub\n",
        "14/cgroup": "0::/\n",
    }.items():
        path = tmp_path / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "proc/12/fd").mkdir()
    (tmp_path / "proc/12/fd/3").symlink_to("socket:[777]")
    tree = Tree(str(tmp_path))
    found = look(tmp_path, port=[8080, 8081, 8082])["ports"]
    mine = {"pid": 12, "program": "llama-server", "unit": "llama-server-main.service"}
    unseen = {
        "pid": None,
        "program": None,
        "unit": None,
        "error": "somebody listens, but this user may not see whose process it is",
    }
    assert found["8080"] == {**mine, "address": "127.0.0.1"}
    assert found["8081"] == {**unseen, "address": "0.0.0.0", "also": [{**mine, "address": "127.0.0.1"}]}
    assert found["8082"]["address"] == "::ffff:127.0.0.1"
    assert processes.unit_of(tree, 13) == "mine.service"
    assert processes.unit_of(tree, 14) is None
