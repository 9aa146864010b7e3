"""Reading a host: files below a root, and programs that run in the background; what cannot be read says why.

`Tree` reads below a root, so that a fixture of another machine is read like the real one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import select
import signal
import subprocess
import threading
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV)
# sysfs answers with these where hardware has nothing to say (speed of a link that is down, a sleeping drive)
SILENT = (errno.EINVAL, errno.EIO, errno.EOPNOTSUPP, errno.EAGAIN, errno.ENODATA)


class Output(NamedTuple):
    """How a program ended: 124 means it ran too long and was killed, 127 that it could not be started."""

    rc: int
    out: str
    err: str


Start = Callable[[Sequence[str]], Callable[[], Output]]
"""Starts a program and returns the function that waits for it; tests replace it."""


def start(argv: Sequence[str], timeout_s: float = 15.0) -> Callable[[], Output]:
    """Start ``argv`` in the background, in the C locale and without input. The returned function waits, never raises."""
    environment = {**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}
    environment["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin:/sbin:/bin"
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment)
    except OSError as error:
        failed = Output(127, "", f"{argv[0]}: {error.strerror}")
        return lambda: failed

    def wait() -> Output:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return Output(124, "", f"{argv[0]} did not answer within {timeout_s:.0f} s")
        return Output(process.returncode, out.decode(errors="replace"), err.decode(errors="replace").strip())

    return wait


def end_with_connection() -> None:
    """From now on, end this process and its group (compilers among it) when nobody can read its output any more.

    sshd closes the pipe behind a command whose connection is gone; without this a long step would go on for nobody, and be in the
    way of the next run.
    """

    def watch() -> None:
        poller = select.poll()
        poller.register(1, 0)  # no event but an error or a hang-up
        poller.poll()
        os.killpg(os.getpgrp(), signal.SIGTERM)

    threading.Thread(target=watch, name="connection", daemon=True).start()


class Tree:
    """Files below ``root``. What is absent reads as None or empty; why the rest could not be read is in ``unreadable``."""

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")
        self.unreadable: Dict[str, str] = {}

    @property
    def is_here(self) -> bool:
        """Whether this is the running system itself, so that asking the kernel directly tells about it."""
        return not self.root

    def path(self, name: str) -> str:
        return self.root + name

    def blame(self, name: str, error: OSError) -> None:
        if error.errno not in ABSENT and error.errno not in SILENT:
            self.unreadable[name] = error.strerror or str(error)

    def data(self, name: str, limit: int = -1) -> Optional[bytes]:
        """The bytes of a file, at most ``limit``; None when absent or unreadable."""
        try:
            with Path(self.root + name).open("rb", buffering=0) as file:
                return file.read(limit)
        except OSError as error:
            self.blame(name, error)
            return None

    def text(self, name: str, limit: int = -1) -> str:
        """The text of a file, stripped; "" when absent or unreadable."""
        return (self.data(name, limit) or b"").decode(errors="replace").strip().strip("\0")

    def number(self, name: str) -> Optional[int]:
        """A file that holds one whole number (decimal, or hex with 0x)."""
        try:
            return int(self.text(name), 0)
        except ValueError:
            return None

    def names(self, name: str) -> List[str]:
        """Sorted names in a directory."""
        try:
            with os.scandir(self.root + name) as entries:
                return sorted(entry.name for entry in entries)
        except OSError as error:
            self.blame(name, error)
            return []

    def exists(self, name: str) -> bool:
        return Path(self.root + name).exists()

    def link(self, name: str) -> Optional[str]:
        """Where a symbolic link points; None when it is none, or unreadable."""
        try:
            return str(Path(self.root + name).readlink())
        except OSError as error:
            self.blame(name, error)
            return None


def fields(text: str) -> Dict[str, str]:
    """``name: value`` lines as a mapping (cpuinfo, meminfo, status)."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def sha256_of(path: Path, report: Optional[Callable[[int], None]] = None) -> str:
    """The SHA-256 of a file in hex; ``report`` gets the bytes read so far."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
            done += len(block)
            if report:
                report(done)
    return digest.hexdigest()
