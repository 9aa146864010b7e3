"""How the judge looks at a host: testinfra, one SSH connection, the modules of `onhost` piped into Python there.

Nothing of it shows in an argument list on either side but ``python3``: program, request and sudo password travel on stdin.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from testinfra.backend.base import BaseBackend, CommandResult
from testinfra.backend.local import LocalBackend
from testinfra.backend.ssh import SshBackend
from testinfra.host import Host

from bigiron.errors import BigironError, Unreachable
from bigiron.fleet.connection import Connection

ONHOST = Path(__file__).with_name("onhost")
PARTS = ("basics", "installed", "serving", "running", "main")
"""The modules of `onhost` in an order in which each imports earlier ones only."""
MARK = "BIGIRON-FACTS "
_PROGRAM = """import json, sys, types
package = sys.modules["onhost"] = types.ModuleType("onhost")
package.__path__ = []
for name, text in json.loads({parts!r}):
    module = sys.modules["onhost." + name] = types.ModuleType("onhost." + name)
    module.__package__ = "onhost"
    exec(compile(text, name, "exec"), module.__dict__)
sys.stdout.write({mark!r} + json.dumps(sys.modules["onhost.main"].main(json.loads({request!r}))) + "\\n")
"""
_UNPRIVILEGED = """if [ "$(id -u)" = 0 ] || ! {sudo} -n -u {user} true 2>/dev/null; then exec {python} -I -S -; fi
exec {sudo} -n -u {user} {python} -I -S -"""


def program(request: Mapping[str, Any]) -> str:
    """The text that Python on the host runs: the modules of `onhost`, made in memory, and one call."""
    parts = [(name, (ONHOST / f"{name}.py").read_text(encoding="utf-8")) for name in PARTS]
    return _PROGRAM.format(parts=json.dumps(parts), mark=MARK, request=json.dumps(request))


class _Fed(BaseBackend):  # type: ignore[misc]  # testinfra ships no types
    """A testinfra backend whose commands get ``feed`` on stdin (testinfra itself closes stdin)."""

    feed: bytes = b""
    extra_env: Mapping[str, str] = {}

    def run_local(self, command: str, *args: str) -> CommandResult:
        line = self.quote(command, *args)
        done = subprocess.run(
            line, shell=True, input=self.feed, capture_output=True, check=False, env={**os.environ, **self.extra_env}
        )
        return self.result(done.returncode, line.encode(), done.stdout, done.stderr)


class _FedSsh(_Fed, SshBackend):  # type: ignore[misc]
    NAME = "ssh"


class _FedLocal(_Fed, LocalBackend):  # type: ignore[misc]
    NAME = "local"


class Eyes:
    """An open look at one host; `opened` makes one."""

    def __init__(self, connection: Connection, backend: _Fed) -> None:
        self.connection = connection
        self.backend = backend
        self.host = Host(backend)

    def run(self, command: str, feed: bytes = b"") -> CommandResult:
        """Run ``command`` by testinfra. Raises Unreachable when ssh itself fails."""
        self.backend.feed = feed
        try:
            return self.host.run(command)
        except RuntimeError as error:
            out = error.args[0]
            said = [line.strip() for line in out.stderr_bytes.decode("utf-8", "replace").splitlines() if line.strip()]
            raise Unreachable(
                said[-1] if said else "ssh ended without a word",
                where=self.connection.name,
                hint=f"try: ssh {shlex.join([*self.connection.ssh_args, self.connection.host])} true",
            ) from None

    def collect(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The collector's answer to ``request``, as root where this connection may become it. Raises BigironError."""
        command, prefix = self._command()
        answer = self.run(command, prefix + program(request).encode())
        for line in reversed(answer.stdout_bytes.decode("ascii", "replace").splitlines()):
            if line.startswith(MARK):
                return dict(json.loads(line[len(MARK) :]))
        said = answer.stderr_bytes.decode("utf-8", "replace").strip().splitlines() or ["no output"]
        raise BigironError(
            f"the judge's script failed there ({answer.rc}): {said[-1]}",
            where=self.connection.name,
            hint="the host needs python3 (3.9 or later) and a shell that stays silent",
        )

    def _command(self) -> tuple[str, bytes]:
        """The command that reads the program on stdin, and what must precede it there: the sudo password, if sudo asks."""
        connection = self.connection
        python = shlex.quote(connection.python or "python3")
        if not connection.become:
            return f"exec {python} -I -S -", b""
        sudo, user = shlex.quote(connection.become_exe), shlex.quote(connection.become_user)
        plain = _UNPRIVILEGED.format(sudo=sudo, user=user, python=python)
        if connection.become_password is None:
            return plain, b""
        # Asked on its own first: with the script behind it, sudo would take the script's lines for further attempts.
        password = (connection.become_password() + "\n").encode()
        asked = self.run(
            f'[ "$(id -u)" = 0 ] || {sudo} -n -u {user} true 2>/dev/null || {sudo} -k -S -p "" -u {user} true', password
        )
        if asked.rc != 0:
            raise Unreachable(
                "sudo refused the password (one attempt was made)", where=connection.name, hint="check ansible_become_password"
            )
        needed = self.run(f'[ "$(id -u)" = 0 ] || {sudo} -n -u {user} true 2>/dev/null').rc != 0
        if not needed:
            return plain, b""
        return f'exec {sudo} -k -S -p "" -u {user} {python} -I -S -', password


@contextlib.contextmanager
def opened(connection: Connection) -> Iterator[Eyes]:
    """Look at a host over one connection, which is closed at the end. Its control socket lives in a private folder."""
    if connection.kind == "local":
        yield Eyes(connection, _FedLocal())
        return
    folder = Path(tempfile.mkdtemp(prefix="bi-", dir=None if len(tempfile.gettempdir()) < 50 else "/tmp"))
    control = folder / "ssh"  # a socket's path may have 108 bytes, and ssh adds 17 while it opens it
    options = [
        "-o",
        "ControlMaster=auto",
        "-o",
        f"ControlPath={control}",
        "-o",
        "ControlPersist=60",
        "-o",
        "ServerAliveInterval=15",
    ]
    env = {}
    if connection.password is None:
        options += ["-o", "BatchMode=yes"]
    else:
        askpass = folder / "askpass"
        askpass.write_text("#!/bin/sh\nprintf '%s\\n' \"$BIGIRON_ASKPASS\"\n", encoding="utf-8")
        askpass.chmod(0o700)
        options += ["-o", "NumberOfPasswordPrompts=1"]
        env = {"SSH_ASKPASS": str(askpass), "SSH_ASKPASS_REQUIRE": "force", "BIGIRON_ASKPASS": connection.password()}
    name = f"[{connection.host}]" if ":" in connection.host else connection.host
    backend = _FedSsh(name, ssh_extra_args=shlex.join([*options, *connection.ssh_args]), controlpersist=60)
    backend.extra_env = env
    try:
        yield Eyes(connection, backend)
    finally:
        if control.exists():
            subprocess.run(
                ["ssh", "-o", f"ControlPath={control}", "-O", "exit", connection.host],
                check=False,
                capture_output=True,
                timeout=10,
            )
        shutil.rmtree(folder, ignore_errors=True)
