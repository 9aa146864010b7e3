"""SSH keys of the lab: one client key, and per host a key made before it boots, so that ``known_hosts`` is exact at once."""

from __future__ import annotations

from pathlib import Path

from bigiron import paths
from bigiron.lab import state, tools


def ensure_key(path: Path, comment: str) -> str:
    """An ed25519 key pair at ``path``; returns the public half. Made beside and renamed: never half a pair."""
    public = path.with_name(path.name + ".pub")
    if not path.exists() or not public.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".new-{path.name}")
        for stale in (new, new.with_name(new.name + ".pub")):
            stale.unlink(missing_ok=True)
        tools.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(new)])
        new.with_name(new.name + ".pub").replace(public)
        new.replace(path)
    return public.read_text(encoding="ascii")


def client_key() -> str:
    """The public half of the key that opens every lab host."""
    return ensure_key(state.CLIENT_KEY, f"bigiron lab {state.KEY}")


def host_key(host: str) -> str:
    """The public half of the host's own key."""
    return ensure_key(state.HOSTS / host / "ssh_host_ed25519_key", host)


def known_hosts(hosts: dict[str, str]) -> str:
    """The known_hosts lines for {name: address}."""
    return "".join(f"{name},{address} {' '.join(host_key(name).split()[:2])}\n" for name, address in sorted(hosts.items()))


def write_known_hosts(hosts: dict[str, str]) -> None:
    """Write the lab's known_hosts when it differs."""
    text = known_hosts(hosts)
    if not state.KNOWN_HOSTS.exists() or state.KNOWN_HOSTS.read_text(encoding="ascii") != text:
        paths.write_atomic(state.KNOWN_HOSTS, text, mode=0o600)
