"""The files behind an inventory: which they are, whether their meaning can be kept, and what Ansible reads in them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigiron.errors import BigironError, UsageError
from bigiron.fleet.environment import ANSIBLE_CFG, clean_env
from bigiron.paths import PROJECT

FORMAT = "bigiron-inventory-2"  # change it when what the cache holds changes
VAULT_HEADER = b"$ANSIBLE_VAULT"
PLAYBOOKS = PROJECT / "playbooks"
# Ansible skips these in an inventory folder itself; `locks` is ours (ansible.cfg ignores it), and changes after every run
_SKIPPED = ("locks", ".git", "__pycache__")
_PLUGIN = re.compile(rb"^\s*['\"]?plugin['\"]?\s*:", re.MULTILINE)


@dataclass(frozen=True)
class Sources:
    """Every file that has a say in an inventory. ``key`` names their content; ``cacheable``: content is all there is."""

    paths: tuple[str, ...]
    files: tuple[Path, ...]
    vaulted: tuple[Path, ...]
    key: str
    cacheable: bool

    @property
    def name(self) -> str:
        """The inventory as a person would name it."""
        return ",".join(self.paths)

    @property
    def folder(self) -> Path:
        """Ansible's ``inventory_dir``, of the first source."""
        path = Path(self.paths[0])
        return path if path.is_dir() else path.parent


def locate(path: str) -> tuple[str, ...]:
    """Absolute inventory paths, from the working folder or else from the project; ``"a,b"`` may be several, or a list of hosts.

    Raises UsageError when there is nothing.
    """
    parts = [part for part in path.split(",") if part]
    found = [_existing(part) for part in parts]
    if parts and all(found):
        return tuple(str(one) for one in found)
    if "," in path and not any(found) and not any("/" in part for part in parts):
        return (path,)
    missing = next((part for part, one in zip(parts, found, strict=True) if one is None), path)
    raise UsageError(
        f"there is no inventory {missing!r}",
        where=str(Path.cwd()),
        hint="give --inventory FILE or FOLDER; inventory/example is one to copy",
    )


def _existing(part: str) -> Path | None:
    candidates = (base / Path(part).expanduser() for base in (Path.cwd(), PROJECT))
    return next((path.resolve() for path in candidates if path.exists()), None)


def scan(paths: tuple[str, ...]) -> Sources:
    """Read the files of a located inventory. A few milliseconds."""
    roots = [Path(path) for path in paths if "," not in path]
    files = sorted({file for root in roots for file in _walk(root)})
    beside = {root.parent for root in roots if root.is_file()} | {PLAYBOOKS}
    extra = sorted({file for folder in beside for name in ("group_vars", "host_vars") for file in _walk(folder / name)})
    digest = hashlib.sha256()
    settings = sorted((k, v) for k, v in os.environ.items() if k.startswith("ANSIBLE_"))
    for word in (*paths, ansible_version(), FORMAT, json.dumps(settings)):
        digest.update(word.encode("utf-8", "surrogateescape") + b"\0")
    cacheable, vaulted = True, []
    for file in [*files, *extra, *([ANSIBLE_CFG] if ANSIBLE_CFG.exists() else [])]:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror}", where=str(file)) from None
        digest.update(str(file).encode("utf-8", "surrogateescape") + b"\0" + hashlib.sha256(content).digest())
        if file == ANSIBLE_CFG:
            continue
        if content.startswith(VAULT_HEADER):
            vaulted.append(file)
        cacheable = cacheable and not _changes(file, content)
    return Sources(paths, (*files, *extra), tuple(vaulted), digest.hexdigest(), cacheable)


def _changes(file: Path, content: bytes) -> bool:
    """True when what a file says can change while its bytes do not: a script, a plugin's configuration, an encrypted file."""
    if content.startswith(VAULT_HEADER):
        return True
    if {"group_vars", "host_vars"} & set(file.parts):
        return False
    return bool(_PLUGIN.search(content)) or (content.startswith(b"#!") and os.access(file, os.X_OK))


def ansible_version() -> str:
    """ansible-core's version, from the name of its metadata folder: reading the metadata costs more than all of the rest."""
    folder = Path(sysconfig.get_path("purelib"))
    return next((entry.name for entry in folder.glob("ansible_core-*.dist-info")), "")


def _walk(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    found = []
    for folder, names, files in os.walk(root, followlinks=True):
        names[:] = [name for name in names if name not in _SKIPPED]
        found += [Path(folder, name) for name in files]
    return found


def listing(sources: Sources) -> tuple[dict[str, Any], list[str]]:
    """``ansible-inventory --list`` as parsed JSON, and its warnings. Raises UsageError naming the file that is wrong.

    Files that are vault-encrypted as a whole, without a password to open them, are left out and reported as a warning: the
    commands that need none of their values must still work.
    """
    done = _ansible_inventory(sources.paths)
    if done.returncode != 0 and sources.vaulted and "vault" in done.stderr.lower():
        with tempfile.TemporaryDirectory(prefix="bigiron-") as folder:
            done = _ansible_inventory(_without(sources, Path(folder)))
        hidden = ", ".join(map(str, sources.vaulted))
        warnings = [f"{hidden}: cannot be decrypted; continuing without it"]
    else:
        warnings = []
    if done.returncode != 0:
        raise UsageError(_complaint(done.stderr), where=sources.name, hint="ansible-inventory -i PATH --list shows more")
    try:
        parsed: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise BigironError(f"ansible-inventory printed something that is not JSON: {error}", where=sources.name) from None
    hosts = [host for name, group in parsed.items() if name != "_meta" for host in group.get("hosts", [])]
    if not hosts:
        raise UsageError("the inventory has no hosts", where=sources.name, hint="inventory/example is one to copy")
    for host in hosts:
        parsed["_meta"]["hostvars"].setdefault(host, {})
    said = [line.removeprefix("[WARNING]: ") for line in done.stderr.splitlines() if line.startswith("[WARNING]: ")]
    return parsed, warnings + said


def _ansible_inventory(paths: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(Path(sys.executable).parent / "ansible-inventory"), "--list", "--playbook-dir", str(PLAYBOOKS)]
    for path in paths:
        argv += ["-i", path]
    return subprocess.run(
        argv,
        env=clean_env(),
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def _without(sources: Sources, folder: Path) -> tuple[str, ...]:
    """The same inventory as links in ``folder``, vaulted files left out."""
    copies = []
    for index, path in enumerate(sources.paths):
        root = Path(path)
        base = root if root.is_dir() else root.parent
        copy = folder / str(index)
        copy.mkdir()
        for file in sources.files:
            if file not in sources.vaulted and file.is_relative_to(base):
                link = copy / file.relative_to(base)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(file)
        copies.append(str(copy if root.is_dir() else copy / root.name))
    return tuple(copies)


def _complaint(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    errors = [line.split("]: ", 1)[1] for line in lines if line.startswith("[ERROR]: ")]
    notes = [line.split("]: ", 1)[1] for line in lines if line.startswith("[WARNING]: ") and "parse" in line]
    text = "; ".join(dict.fromkeys([*errors, *notes])) or (lines[-1] if lines else "ansible-inventory failed without a word")
    return " ".join(text.split())[:600]


def resolve(
    listing_: dict[str, Any], sources: Sources, wanted: dict[str, list[str]] | None, *, secrets: bool
) -> dict[str, dict[str, dict[str, Any]]]:
    """Templates filled in by :mod:`bigiron.fleet.resolver`; host -> {"values": ..., "problems": ...}. Raises BigironError."""
    request = {
        "listing": listing_,
        "inventory_dir": str(sources.folder),
        "playbook_dir": str(PLAYBOOKS),
        "wanted": wanted,
        "secrets": secrets,
    }
    done = subprocess.run(
        [sys.executable, "-m", "bigiron.fleet.resolver"],
        input=json.dumps(request),
        env={**clean_env(), "PYTHONSAFEPATH": "1", "PYTHONPATH": str(PROJECT / "src")},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise BigironError(f"the inventory's values cannot be resolved: {last}", where=sources.name)
    answer = json.loads(done.stdout)
    if "failed" in answer:
        raise BigironError(f"the vault password cannot be used: {answer['failed']}", where=sources.name)
    hosts: dict[str, dict[str, dict[str, Any]]] = answer["hosts"]
    return hosts
