"""How the verifier reaches a host: testinfra's own backends, one SSH connection, the modules of `collector` piped into Python.

Nothing of it shows in an argument list on either side: program, request and sudo password travel on stdin. A person's own
tests get their ``host`` over the same connection.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from testinfra.backend.base import BaseBackend, CommandResult
from testinfra.backend.local import LocalBackend
from testinfra.backend.ssh import SshBackend
from testinfra.host import Host

from bigiron.errors import BigironError, Unreachable
from bigiron.fleet import hostprogram
from bigiron.fleet.connection import Connection

COLLECT = "bigiron.judge.collector.main:main"
_ROOT_ALREADY = '[ "$(id -u)" = 0 ]'


class _Fed(BaseBackend):  # type: ignore[misc]  # testinfra ships no types
    """A testinfra backend whose commands get ``feed()`` on stdin (testinfra itself closes stdin).

    The command is started before ``feed`` is called, so that connecting and deciding what to ask go on side by side.
    """

    feed: Callable[[], bytes] = bytes
    extra_env: Mapping[str, str] = {}
    wrap: Callable[[str], str] | None = None
    """Set for a person's tests: makes a command run as the user that the inventory becomes."""

    def get_command(self, command: str, *args: str) -> str:
        line = str(super().get_command(command, *args))
        return self.wrap(line) if self.wrap else line

    def run_local(self, command: str, *args: str) -> CommandResult:
        line = self.quote(command, *args)
        pipe = subprocess.PIPE
        environment = {**os.environ, **self.extra_env}
        with subprocess.Popen(["/bin/sh", "-c", line], stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as child:
            try:
                out, err = child.communicate(self.feed())
            except BaseException:
                child.kill()
                raise
        return self.result(child.returncode, line.encode(), out, err)


class _FedSsh(_Fed, SshBackend):  # type: ignore[misc]
    NAME = "ssh"


class _FedLocal(_Fed, LocalBackend):  # type: ignore[misc]
    NAME = "local"


class Reached:
    """A host that can be talked to; `opened` makes one."""

    def __init__(self, connection: Connection, backend: _Fed) -> None:
        self.connection = connection
        self.backend = backend
        self._host = Host(backend)

    def run(self, command: str, feed: Callable[[], bytes] = bytes) -> CommandResult:
        """Run ``command`` by testinfra. Raises Unreachable when ssh itself fails."""
        self.backend.feed = feed
        try:
            return self._host.run(command)
        except RuntimeError as error:
            out = error.args[0]
            said = [line.strip() for line in out.stderr_bytes.decode("utf-8", "replace").splitlines() if line.strip()]
            raise Unreachable(
                said[-1] if said else "ssh ended without a word",
                where=self.connection.name,
                hint=f"try: ssh {shlex.join([*self.connection.ssh_args, self.connection.host])} true",
            ) from None

    def collect(self, request: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The collector's answer to ``request``, as root where this connection may become it. Raises BigironError."""
        marker = f"BIGIRON-{secrets.token_hex(8)}"
        wrap, prefix = self._becoming()
        command = wrap(hostprogram.shell_script(marker, self.connection.python))
        program = hostprogram.build(COLLECT)
        answer = self.run(command, lambda: prefix + hostprogram.payload(program, dict(request()), marker))
        facts = hostprogram.parse(answer.stdout_bytes, marker, self.connection.name)
        if facts is None:
            said = answer.stderr_bytes.decode("utf-8", "replace").strip().splitlines() or ["no output"]
            raise BigironError(
                f"the collector did not run there (exit {answer.rc}): {said[-1]}",
                where=self.connection.name,
                hint="the host needs python3 (3.9 or later) and a shell that stays silent",
            )
        return facts

    def for_tests(self) -> Host:
        """Testinfra's ``host`` over this connection, as root where it may become it."""
        wrap, prefix = self._becoming()
        self.backend.wrap, self.backend.feed = wrap, lambda: prefix
        self.backend.get_pytest_id = lambda: self.connection.name
        return self._host

    def _becoming(self) -> tuple[Callable[[str], str], bytes]:
        """What makes a shell command run as root, and what it must read first: the sudo password, if sudo asks for one."""
        connection = self.connection
        self.backend.wrap = None
        if not connection.become:
            return lambda script: f"exec {_shell(script)}", b""
        sudo, user = shlex.quote(connection.become_exe), shlex.quote(connection.become_user)
        free = f"{_ROOT_ALREADY} || {sudo} -n -u {user} true 2>/dev/null"

        def unasked(script: str) -> str:
            """As root where that takes no password, else as who we are: what only root may read then stays open."""
            plain = _shell(script)
            cannot = f"{_ROOT_ALREADY} || ! {sudo} -n -u {user} true 2>/dev/null"
            return f"if {cannot}; then exec {plain}; fi; exec {sudo} -n -u {user} {plain}"

        if connection.become_password is None:
            return unasked, b""
        # Asked on its own first: with the script behind it, sudo would take the script's lines for further attempts.
        password = (connection.become_password() + "\n").encode()
        asked = self.run(f'{free} || {sudo} -k -S -p "" -u {user} true', lambda: password)
        if asked.rc != 0:
            raise Unreachable(
                "sudo refused the password (one attempt was made)", where=connection.name, hint="check ansible_become_password"
            )
        if self.run(free).rc == 0:
            return unasked, b""
        return lambda script: f'exec {sudo} -k -S -p "" -u {user} {_shell(script)}', password


def _shell(script: str) -> str:
    return f"/bin/sh -c {shlex.quote(script)}"


@contextlib.contextmanager
def opened(connection: Connection) -> Iterator[Reached]:
    """One connection to a host, closed at the end. Its control socket lives in a private folder."""
    if connection.kind == "local":
        yield Reached(connection, _FedLocal())
        return
    folder = Path(tempfile.mkdtemp(prefix="bi-", dir=None if len(tempfile.gettempdir()) < 50 else "/tmp"))  # noqa: S108
    control = folder / "ssh"  # a socket's path may have 108 bytes, and ssh adds 17 while it opens it
    settings = ["ControlMaster=auto", f"ControlPath={control}", "ControlPersist=60", "ServerAliveInterval=15"]
    env = {}
    if connection.password is None:
        settings.append("BatchMode=yes")
    else:
        askpass = folder / "askpass"
        askpass.write_text("#!/bin/sh\nprintf '%s\\n' \"$BIGIRON_ASKPASS\"\n", encoding="utf-8")
        askpass.chmod(0o700)
        settings.append("NumberOfPasswordPrompts=1")
        env = {"SSH_ASKPASS": str(askpass), "SSH_ASKPASS_REQUIRE": "force", "BIGIRON_ASKPASS": connection.password()}
    name = f"[{connection.host}]" if ":" in connection.host else connection.host
    options = [word for setting in settings for word in ("-o", setting)]
    backend = _FedSsh(name, ssh_extra_args=shlex.join([*options, *connection.ssh_args]), controlpersist=60)
    backend.extra_env = env
    try:
        yield Reached(connection, backend)
    finally:
        if control.exists():
            leave = ["ssh", "-o", f"ControlPath={control}", "-O", "exit", connection.host]
            subprocess.run(leave, check=False, capture_output=True, timeout=10)
        shutil.rmtree(folder, ignore_errors=True)
