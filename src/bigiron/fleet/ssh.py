"""Talking to hosts: one connection per host, one program per question, many hosts at once."""

from __future__ import annotations

import contextlib
import getpass
import importlib
import os
import queue
import secrets
import shlex
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from bigiron.errors import BigironError, Unreachable
from bigiron.fleet import hostprogram, sudo
from bigiron.fleet.inventory import Target
from bigiron.fleet.route import Route, resolve
from bigiron.fleet.wire import ChannelWire, ProcessWire, Wire

if TYPE_CHECKING:
    from bigiron.fleet.dial import Line

T = TypeVar("T")
_LIVE: weakref.WeakSet[Session] = weakref.WeakSet()  # so that run_many can close what its threads have open


@dataclass(frozen=True)
class Completed:
    """What a command did: exit status and its output as text (undecodable bytes replaced)."""

    status: int
    stdout: str
    stderr: str


class Session:
    """One host's connection, opened on first use; a context manager. ``local`` hosts are run as child processes."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.connection = target.connection
        self._route: Route | None = None
        self._line: Line | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._wires: set[Wire] = set()
        self.thread = threading.current_thread()
        _LIVE.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def user(self) -> str:
        """Who we are on the host, before becoming anyone."""
        if self.connection.kind == "local":
            return getpass.getuser() if os.geteuid() else "root"
        return self._resolved().user

    def open(self) -> None:
        """Connect now. Raises Unreachable, or UsageError for options that ssh does not accept."""
        if self.connection.kind == "local" or self._line is not None:
            return
        loader = threading.Thread(target=importlib.import_module, args=("bigiron.fleet.dial",), daemon=True)
        loader.start()  # Paramiko's import and `ssh -G` cost about the same; side by side they cost one
        route = self._resolved()
        loader.join()
        from bigiron.fleet.dial import dial

        line = dial(route, self.connection.password)
        with self._lock:
            self._line = line
            closed = self._closed
        if closed:
            line.close()
            raise Unreachable("the connection was closed", where=self.target.name)

    def close(self) -> None:
        """Close the connection and whatever still runs over it; safe from another thread."""
        with self._lock:
            self._closed = True
            line, self._line = self._line, None
            wires = list(self._wires)
        for wire in wires:
            with contextlib.suppress(Exception):
                wire.close()
        if line is not None:
            line.close()

    def run_program(
        self, entry: str, request: dict[str, Any], *, modules: tuple[str, ...] = (), become: bool = True, timeout_s: float = 120
    ) -> dict[str, Any]:
        """Run ``entry`` (``"bigiron.onhost.observe:main"``) on the host with ``request``; return its answer.

        Raises what the entry raised (BigironError and its kinds); Unreachable when it did not start (network, sudo, Python).
        """
        marker = f"BIGIRON-{secrets.token_hex(8)}"
        data = hostprogram.payload(hostprogram.build(entry, modules), request, marker)
        script = hostprogram.shell_script(marker, self.connection.python)
        out, err, status = self._converse(script, data, marker, become=become, timeout_s=timeout_s)
        answer = hostprogram.parse(out, marker, self.target.name)
        if answer is None:
            raise self._no_answer(out, err, status, marker, become=become)
        return answer

    def run(self, argv: Iterable[str], *, data: bytes = b"", become: bool = False, timeout_s: float = 30) -> Completed:
        """Run one command under ``LC_ALL=C``. A non-zero status is the caller's to judge; Unreachable when not run."""
        status, out, err = self._run(argv, data, become=become, timeout_s=timeout_s)
        return Completed(status, out.decode("utf-8", "replace"), err)

    def read_file(self, path: str, *, timeout_s: float = 15) -> bytes | None:
        """The bytes of a small public file; None when it is not there. Raises BigironError when it cannot be read."""
        status, out, err = self._run(["cat", "--", path], b"", become=False, timeout_s=timeout_s)
        if status == 0:
            return out
        if "No such file" in err:
            return None
        raise BigironError(f"cannot read {path}: {err.strip()}", where=self.target.name)

    def _run(self, argv: Iterable[str], data: bytes, *, become: bool, timeout_s: float) -> tuple[int, bytes, str]:
        marker = f"BIGIRON-{secrets.token_hex(8)}"
        script = f"echo {marker} READY; LC_ALL=C; export LC_ALL; exec {shlex.join(argv)}"
        out, err, status = self._converse(script, data, marker, become=become, timeout_s=timeout_s)
        _, ready, rest = out.partition(f"{marker} READY\n".encode())
        if not ready:
            raise self._no_answer(out, err, status, marker, become=become)
        return status, rest, err.decode("utf-8", "replace")

    def _resolved(self) -> Route:
        if self._route is None:
            self._route = resolve(self.connection)
        return self._route

    def _needs_sudo(self, become: bool) -> bool:
        return become and self.connection.become and self.user != self.connection.become_user

    def _start(self, command: str, timeout_s: float) -> Wire:
        if self._closed:
            raise Unreachable("the connection was closed", where=self.target.name)
        wire: Wire
        if self.connection.kind == "local":
            wire = ProcessWire(command)
        else:
            import paramiko

            self.open()
            line = self._line
            if line is None:
                raise Unreachable("the connection was closed", where=self.target.name)
            try:
                wire = ChannelWire(line.transport.open_session(timeout=timeout_s), command, timeout_s)
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise Unreachable(f"the host opens no session: {error}", where=self.target.name) from None
        with self._lock:
            self._wires.add(wire)
        return wire

    def _converse(self, script: str, data: bytes, marker: str, *, become: bool, timeout_s: float) -> tuple[bytes, bytes, int]:
        """Start ``script``, answer sudo at most once, hand over ``data`` on READY; (stdout, stderr, status)."""
        self.open()
        password = None
        prompt = f"{marker}-PASSWORD:"
        if self._needs_sudo(become):
            password = self.connection.become_password
            asks = prompt if password is not None else None
            script = sudo.wrap(script, exe=self.connection.become_exe, user=self.connection.become_user, prompt=asks)
        wire = self._start(f"/bin/sh -c {shlex.quote(script)}", timeout_s)
        out, err = bytearray(), bytearray()
        ready, asked = f"{marker} READY".encode(), prompt.encode()
        waiting, given = password is not None, False
        deadline = time.monotonic() + timeout_s
        try:
            if not waiting:
                wire.send(data, last=True)
            while (chunk := wire.read(deadline)) is not None:
                out += chunk[0]
                err += chunk[1]
                if waiting and ready in out:
                    waiting = False
                    wire.send(data, last=True)
                elif waiting and asked in err:
                    if given:  # closing is what keeps it at one attempt: sudo counts only the passwords that it was given
                        raise sudo.wrong_password(self.target.name, self.user, self.connection.become_user)
                    given = True
                    del err[: err.index(asked) + len(asked)]
                    wire.send((password or str)().encode("utf-8") + b"\n")
            return bytes(out), bytes(err), wire.status()
        except TimeoutError:
            raise self._too_slow(ready in out, timeout_s) from None
        finally:
            with self._lock:
                self._wires.discard(wire)
            wire.close()

    def _too_slow(self, started: bool, timeout_s: float) -> BigironError:
        if started:
            return BigironError(
                f"still not done after {timeout_s:.0f} s", where=self.target.name, hint="the host may be overloaded"
            )
        return Unreachable(f"gave no answer within {timeout_s:.0f} s", where=self.target.name)

    def _no_answer(self, out: bytes, err: bytes, status: int, marker: str, *, become: bool) -> BigironError:
        """Why a command never got going, in words."""
        name = self.target.name
        if self._closed:
            return Unreachable("the connection was closed", where=name)
        text = err.decode("utf-8", "replace")
        if self._needs_sudo(become):
            refusal = sudo.explain(text, name, self.user, self.connection.become_user, self._rules(text))
            if refusal is not None:
                return refusal
        python = self.connection.python or "python3"
        if f"{marker} OLD" in text:
            version = text.partition(f"{marker} OLD ")[2].split()[0]
            return Unreachable(
                f"{python} there is {version}; bigiron needs Python 3.9 or newer on the host",
                where=name,
                hint="set ansible_python_interpreter to a newer one",
            )
        if "Unknown option: -I" in text:
            return Unreachable(
                f"{python} there is too old; bigiron needs Python 3.9 or newer",
                where=name,
                hint="set ansible_python_interpreter to a newer one",
            )
        if status == hostprogram.NO_PYTHON:
            return Unreachable(f"{python} is not there", where=name, hint="install python3, or set ansible_python_interpreter")
        if status == -1:
            return Unreachable("the connection was lost", where=name, hint="run the same command again; it carries on")
        said = [line for line in (text or out.decode("utf-8", "replace")).splitlines() if line.strip()]
        return Unreachable(
            f"the shell of {self.user} did not run the program (exit status {status})"
            + (f": {said[-1].strip()}" if said else ""),
            where=name,
        )

    def _rules(self, stderr: str) -> str | None:
        """What ``sudo -n -l`` lists, when sudo only said that it wants a password; a probe that can fail quietly."""
        if "required" not in stderr:
            return None
        marker = f"BIGIRON-{secrets.token_hex(8)}"
        with contextlib.suppress(BigironError):
            script = f"LC_ALL=C exec {shlex.quote(self.connection.become_exe)} -n -l"
            return self._converse(script, b"", marker, become=False, timeout_s=10)[0].decode("utf-8", "replace")
        return None


def run_many(targets: Iterable[Target], fn: Callable[[Target], T], *, max_workers: int = 32) -> dict[str, T | BigironError]:
    """``fn`` on each target, in parallel; host name -> result or the error of that host alone. One that is down is not tried.

    Any other exception, and Ctrl-C, closes the sessions that ``fn`` has open (so its threads end) and is raised here.
    """
    wanted = list(targets)
    todo: queue.SimpleQueue[Target] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, T | BaseException]] = queue.SimpleQueue()
    stop = threading.Event()
    for target in wanted:
        todo.put(target)

    def work() -> None:
        while not stop.is_set():
            try:
                target = todo.get_nowait()
            except queue.Empty:
                return
            result: T | BaseException
            try:
                result = target.down or fn(target)
            except BaseException as error:  # noqa: BLE001 (it is raised again in the caller's thread)
                result = error
            done.put((target.name, result))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(max_workers, len(wanted)))]
    for thread in threads:
        thread.start()
    results: dict[str, T | BigironError] = {}
    try:
        while len(results) < len(wanted):
            name, result = done.get()
            if isinstance(result, BaseException) and not isinstance(result, BigironError):
                raise result
            results[name] = result
    finally:
        stop.set()
        if len(results) < len(wanted):
            for session in [one for one in list(_LIVE) if one.thread in threads]:
                session.close()
    return {target.name: results[target.name] for target in wanted}
