"""Which keys to try on a host, in ssh's order, remembering why each one did not work."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from bigiron.errors import Unreachable
from bigiron.fleet.connection import Secret
from bigiron.fleet.route import Route


class Login:
    """Log ``route.user`` in on a transport. Explicit key files come before the agent's other keys, the password last."""

    def __init__(self, route: Route, password: Secret | None = None) -> None:
        self._route = route
        self._password = password
        self._tried: list[str] = []
        self._encrypted: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> object:
        """Try the keys until the server accepts one (the shape Paramiko's ``auth_strategy`` wants). Raises Unreachable."""
        allowed: list[str] = []
        for name, key in self._keys():
            try:
                allowed = list(transport.auth_publickey(self._route.user, key))
            except paramiko.BadAuthenticationType as error:
                allowed = list(error.allowed_types)
                self._tried.append(f"{name} (the server takes no keys)")
                break
            except paramiko.AuthenticationException:
                self._tried.append(name)
                if not transport.is_active():
                    raise self._failure("the server closed the connection after too many tries") from None
                continue
            except paramiko.SSHException as error:
                self._tried.append(f"{name} ({error})")
                if not transport.is_active():
                    raise self._failure("the server closed the connection") from None
                continue
            if not allowed:
                return allowed
            self._tried.append(f"{name} (accepted, but the server also wants {' and '.join(allowed)})")
        if self._password is not None:
            try:
                return transport.auth_password(self._route.user, self._password())
            except paramiko.SSHException:
                self._tried.append("the password")
        raise self._failure()

    def _keys(self) -> Iterator[tuple[str, paramiko.PKey]]:
        """Configured files an agent need not help with first: a fleet with one key file never waits for an agent."""
        deferred: list[str] = []
        for file in self._route.identity_files:
            path = Path(file)
            if not path.exists():
                continue
            try:
                yield file, paramiko.PKey.from_path(path)
            except (paramiko.PasswordRequiredException, TypeError):
                deferred.append(file)
            except (paramiko.SSHException, ValueError, UnsupportedAlgorithm, OSError) as error:
                self._tried.append(f"{file} ({_reason(error)})")
        if self._route.agent is None:
            self._encrypted = deferred
            return
        agent_keys = _agent_keys()
        public = {file: _public_blob(file) for file in deferred}
        for file in deferred:
            match = next((key for key in agent_keys if key.asbytes() == public[file]), None)
            if match is None:
                self._encrypted.append(file)
            else:
                yield f"{file} (from the agent)", match
        if not self._route.identities_only:
            for key in agent_keys:
                if key.asbytes() not in public.values():
                    yield f"agent key {key.fingerprint}", key

    def _failure(self, why: str = "") -> Unreachable:
        tried = ", ".join(self._tried) or "none"
        what = f"{self._route.address} does not let {self._route.user} in; keys tried: {tried}"
        if why:
            what += f"; {why}"
        if self._encrypted:
            what += f"; {', '.join(self._encrypted)} is protected by a passphrase and no agent holds it"
            hint = f"ssh-add {self._encrypted[0]}"
        else:
            hint = (
                "set ansible_user and ansible_ssh_private_key_file, or add the public key to ~/.ssh/authorized_keys on the host"
            )
        return Unreachable(what, where=self._route.label, hint=hint)


def _agent_keys() -> list[paramiko.AgentKey]:
    try:
        agent = paramiko.Agent()
        return list(agent.get_keys())
    except (paramiko.SSHException, OSError):
        return []


def _public_blob(file: str) -> bytes | None:
    try:
        return base64.b64decode(Path(file + ".pub").read_text(encoding="utf-8").split()[1])
    except (OSError, IndexError, binascii.Error):
        return None


def _reason(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return f"cannot be read: {text.splitlines()[0]}"
