"""A running command with three streams, on a host (SSH channel) or here (child process), read the same way."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import paramiko

_CHUNK = 65536


class Wire(Protocol):
    """Bytes in, two streams of bytes out, an exit status."""

    def send(self, data: bytes, *, last: bool = False) -> None:
        """Write to standard input, and close it after the ``last`` bytes. A command that no longer listens is no error here."""

    def read(self, deadline: float) -> tuple[bytes, bytes] | None:
        """The next (stdout, stderr) bytes; None at the end of both. Raises TimeoutError after ``deadline`` (monotonic)."""

    def status(self) -> int:
        """The exit status once both streams ended; -1 when the connection died first."""

    def close(self) -> None:
        """Stop listening to the command."""


class ChannelWire:
    """A command on an SSH channel."""

    def __init__(self, channel: paramiko.Channel, command: str, timeout_s: float) -> None:
        self._channel = channel
        channel.settimeout(timeout_s)
        channel.exec_command(command)

    def send(self, data: bytes, *, last: bool = False) -> None:
        """See Wire."""
        with contextlib.suppress(OSError):
            self._channel.sendall(data)
            if last:
                self._channel.shutdown_write()

    def read(self, deadline: float) -> tuple[bytes, bytes] | None:
        """See Wire."""
        channel = self._channel
        while True:
            ended = channel.eof_received or channel.closed  # before the buffers are looked at: nothing comes after it
            out = channel.recv(_CHUNK) if channel.recv_ready() else b""
            err = channel.recv_stderr(_CHUNK) if channel.recv_stderr_ready() else b""
            if out or err:
                return out, err
            if ended:
                return None
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            select.select([channel], [], [], left)

    def status(self) -> int:
        """See Wire."""
        if not self._channel.status_event.wait(5):
            return -1
        return self._channel.exit_status

    def close(self) -> None:
        """See Wire."""
        self._channel.close()


class ProcessWire:
    """A command on this machine."""

    def __init__(self, command: str) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._input, self._out, self._err = (stream.fileno() for stream in streams if stream is not None)
        os.set_blocking(self._input, False)
        self._open = {self._out, self._err}
        self._pending = bytearray()
        self._last = False

    def send(self, data: bytes, *, last: bool = False) -> None:
        """See Wire. The bytes go out while :meth:`read` waits, so a command that does not read cannot block us."""
        self._pending += data
        self._last = self._last or last

    def read(self, deadline: float) -> tuple[bytes, bytes] | None:
        """See Wire."""
        while self._open:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            writing = [self._input] if self._pending or self._last else []
            readable, writable, _ = select.select(list(self._open), writing, [], left)
            if writable:
                self._write()
            got = {fd: os.read(fd, _CHUNK) for fd in readable}
            self._open -= {fd for fd, data in got.items() if not data}
            if any(got.values()):
                return got.get(self._out, b""), got.get(self._err, b"")
        return None

    def _write(self) -> None:
        try:
            if self._pending:
                del self._pending[: os.write(self._input, self._pending[:_CHUNK])]
        except BrokenPipeError:
            self._pending.clear()
        if self._last and not self._pending and self._process.stdin:
            self._last = False
            self._process.stdin.close()

    def status(self) -> int:
        """See Wire."""
        return self._process.wait()

    def close(self) -> None:
        """See Wire."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        if self._process.poll() is None:
            with contextlib.suppress(
                ProcessLookupError, PermissionError
            ):  # a sudo child belongs to root; it sees its pipes close
                self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
