"""The lab's mirror: nginx on the bridge, serving the hub's HTTP API and source archives from the cache."""

from __future__ import annotations

import contextlib
import errno
import grp
import hashlib
import pwd
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bigiron import paths
from bigiron.errors import BigironError
from bigiron.lab import seed, state, tools

Say = Callable[[str], None]
PORTS = (80, 8780, 8781, 8782)
FOLDER = state.LAB / "mirror"
MOUNT = Path(f"/run/bigiron-mirror-{state.KEY}")
"""Where nginx sees the content: its workers are not root and could not look into a private home folder, so the content is
bind-mounted here in a mount namespace that only nginx has and that ends with it."""


@dataclass(frozen=True)
class MirrorStatus:
    """``state`` is running, stopped or absent; ``url`` is None unless it runs; ``repos`` are {repository: commit of main}."""

    state: str
    url: str | None
    pid: int | None
    root: str
    repos: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return asdict(self)


def status() -> MirrorStatus:
    """What is served now."""
    from bigiron.lab import hubfiles

    current = state.load()
    record = current.mirror if current else None
    alive = record is not None and record.alive()
    folder = seed.root()
    repos = {repo: names["main"][0] for repo, names in hubfiles.published(folder).items() if "main" in names}
    return MirrorStatus(
        state="running" if alive else "stopped" if repos else "absent",
        url=current.mirror_url if current and alive else None,
        pid=record.pid if record and alive else None,
        root=str(folder),
        repos=repos,
    )


def serve(gateway: str, previous: state.Process | None, url: str, say: Say) -> tuple[state.Process, str]:
    """Seed the folder and make nginx serve it; returns (its master process, URL). A mirror that already does is left alone.

    Raises BigironError when something is missing, or no port can be had.
    """
    maps = seed.ensure(say)
    running = previous if previous is not None and previous.alive() else _master()
    port = int(url.rpartition(":")[2]) if running is not None and url.count(":") == 2 else PORTS[0]
    if running is not None and _healthy(gateway, port):
        text = _configuration(gateway, port, maps)
        if _stamp(text, maps) != _read(FOLDER / "stamp"):
            _write_configuration(text, maps)
            running.send(signal.SIGHUP)
        return running, _url(gateway, port)
    stop(running)
    port = _free_port(gateway)
    if port != PORTS[0]:
        say(f"port {PORTS[0]} on {gateway} is taken by another program; the mirror uses {port}")
    _write_configuration(_configuration(gateway, port, maps), maps)
    return _start(gateway, port), _url(gateway, port)


def stop(previous: state.Process | None) -> None:
    """Stop nginx, master and workers, by force after a bounded wait, and remove its mount point."""
    if previous is not None and previous.alive():
        previous.send(signal.SIGTERM)
        previous.wait_gone(5)
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = _ours()
        for one in left:
            one.send(number)
        for one in left:
            one.wait_gone(3)
    with contextlib.suppress(OSError):
        MOUNT.rmdir()


def _ours() -> list[state.Process]:
    """Every process that has our mount point in its mount table: this nginx and its workers, and nobody else."""
    import psutil

    return state.processes(pid for pid in psutil.pids() if f" {MOUNT} " in _read(Path(f"/proc/{pid}/mountinfo")))


def _master() -> state.Process | None:
    import psutil

    ours = _ours()
    for one in ours:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(one.pid).ppid() not in {each.pid for each in ours}:
                return one
    return None


def _start(gateway: str, port: int) -> state.Process:
    MOUNT.mkdir(mode=0o755, exist_ok=True)
    (FOLDER / "tmp").mkdir(parents=True, exist_ok=True)
    nginx = tools.find("nginx") or "nginx"
    error_log, configuration = FOLDER / "error.log", FOLDER / "nginx.conf"
    script = 'mount --bind "$1" "$2" && exec "$3" -e "$4" -c "$5"'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    command += [str(seed.root()), str(MOUNT), nginx, str(error_log), str(configuration)]
    with (FOLDER / "start.log").open("wb") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=tools.environment(),
            cwd="/",
        )
    master = state.process(child.pid)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if child.poll() is not None:
            break
        if _healthy(gateway, port):
            _children.append(child)
            if master is not None:
                return master
        time.sleep(0.02)
    stop(master)
    lines = (_read(FOLDER / "start.log") + _read(error_log)).strip().splitlines()
    raise BigironError(lines[-1] if lines else "nginx did not start", where="mirror", hint=f"see {error_log}")


_children: list[subprocess.Popen[bytes]] = []
"""Kept so that Python does not warn about, or wait for, a server that is meant to outlive us."""


def _healthy(gateway: str, port: int) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{_url(gateway, port)}/health", timeout=2) as answer:
            return bool(answer.read().decode().strip() == f"bigiron mirror {state.KEY}")
    except (urllib.error.URLError, OSError, ValueError):
        return False


def _free_port(gateway: str) -> int:
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((gateway, port))
                probe.listen(1)
                return port
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise BigironError(f"cannot listen on {gateway}:{port}: {error.strerror}", where="mirror") from None
    raise BigironError(f"ports {', '.join(map(str, PORTS))} on {gateway} are all taken", where="mirror")


def _url(gateway: str, port: int) -> str:
    return f"http://{gateway}" if port == 80 else f"http://{gateway}:{port}"


def _configuration(gateway: str, port: int, maps: Path) -> str:
    from bigiron.render import render

    user, group = _account()
    values = {"state": FOLDER, "root": MOUNT, "maps": maps, "address": gateway, "port": port, "key": state.KEY}
    return render("lab/nginx.conf", {**values, "user": user, "group": group})


def _account() -> tuple[str, str]:
    for name in ("www-data", "nginx", "nobody"):
        with contextlib.suppress(KeyError):
            return name, grp.getgrgid(pwd.getpwnam(name).pw_gid).gr_name
    raise BigironError("no account for a web server (www-data, nginx or nobody)", where="mirror")


def _write_configuration(text: str, maps: Path) -> None:
    paths.write_atomic(FOLDER / "nginx.conf", text)
    paths.write_atomic(FOLDER / "stamp", _stamp(text, maps))


def _stamp(text: str, maps: Path) -> str:
    return hashlib.sha256(text.encode() + maps.read_bytes()).hexdigest()


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
