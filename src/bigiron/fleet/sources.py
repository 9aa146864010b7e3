"""The files behind an inventory: what they are, whether their meaning can be kept, and what ``ansible-inventory`` reads in them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bigiron.errors import BigironError, UsageError
from bigiron.fleet.environment import ANSIBLE_CFG, clean_env
from bigiron.paths import PROJECT

VAULT_HEADER = b"$ANSIBLE_VAULT"
PLAYBOOKS = PROJECT / "playbooks"
# Ansible skips these in an inventory folder itself; `locks` is ours (ansible.cfg ignores it), and changes after every run
_SKIPPED = ("locks", ".git", "__pycache__")
_CHANGING = re.compile(rb"\b(lookup|query|q)\s*\(|\bnow\s*\(|\benv\s*\(|ansible_date_time")
_PLUGIN = re.compile(rb"^\s*['\"]?plugin['\"]?\s*:", re.MULTILINE)


@dataclass(frozen=True)
class Sources:
    """Every file that has a say in an inventory. ``key`` names their content; ``cacheable`` is False where content is not all."""

    path: str
    files: tuple[Path, ...]
    vaulted: tuple[Path, ...]
    key: str
    cacheable: bool

    @property
    def folder(self) -> Path:
        """Ansible's ``inventory_dir``."""
        path = Path(self.path)
        return path if path.is_dir() else path.parent


def locate(path: str) -> str:
    """An absolute inventory path, taken from the working folder or else from the project; ``"a,b,"`` lists pass through.

    Raises UsageError when there is nothing.
    """
    if "," in path:
        return path
    for base in (Path.cwd(), PROJECT):
        candidate = base / Path(path).expanduser()
        if candidate.exists():
            return str(candidate.resolve())
    raise UsageError(
        f"there is no inventory {path}", where=str(Path.cwd()), hint="give --inventory FILE or FOLDER; inventory/example is one to copy"
    )


def scan(path: str) -> Sources:
    """Read the files of a located inventory. A few milliseconds."""
    roots = [] if "," in path else [Path(path)]
    files = sorted({file for root in roots for file in _walk(root)})
    beside = {root.parent for root in roots if root.is_file()} | {PLAYBOOKS}
    extra = sorted({file for folder in beside for name in ("group_vars", "host_vars") for file in _walk(folder / name)})
    digest = hashlib.sha256()
    settings = sorted((k, v) for k, v in os.environ.items() if k.startswith("ANSIBLE_"))
    for word in (path, version("ansible-core"), version_of_this_format(), json.dumps(settings)):
        digest.update(word.encode("utf-8", "surrogateescape") + b"\0")
    cacheable, vaulted = True, []
    for file in [*files, *extra, *([ANSIBLE_CFG] if ANSIBLE_CFG.exists() else [])]:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror}", where=str(file)) from None
        digest.update(str(file).encode("utf-8", "surrogateescape") + b"\0" + hashlib.sha256(content).digest())
        if content.startswith(VAULT_HEADER):
            vaulted.append(file)
            cacheable = False
        elif file in extra or "group_vars" in file.parts or "host_vars" in file.parts:
            cacheable = cacheable and not _CHANGING.search(content)
        elif file != ANSIBLE_CFG:
            script = bool(file.stat().st_mode & 0o111) and content.startswith(b"#!")
            cacheable = cacheable and not (script or _PLUGIN.search(content) or _CHANGING.search(content))
    return Sources(path, tuple([*files, *extra]), tuple(vaulted), digest.hexdigest(), cacheable)


def version_of_this_format() -> str:
    """Changes when what is kept in the cache changes."""
    return "bigiron-inventory-1"


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
    done = _ansible_inventory(sources.path)
    if done.returncode != 0 and sources.vaulted and "vault" in done.stderr.lower():
        with tempfile.TemporaryDirectory(prefix="bigiron-") as folder:
            done = _ansible_inventory(_without(sources, Path(folder)))
        hidden = ", ".join(map(str, sources.vaulted))
        warnings = [f"{hidden}: cannot be decrypted; continuing without it"]
    else:
        warnings = []
    if done.returncode != 0:
        raise UsageError(_complaint(done.stderr), where=sources.path, hint="ansible-inventory -i PATH --list shows more")
    try:
        parsed: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise BigironError(f"ansible-inventory printed something that is not JSON: {error}", where=sources.path) from None
    if not parsed.get("_meta", {}).get("hostvars") and not _any_host(parsed):
        raise UsageError("the inventory has no hosts", where=sources.path, hint="inventory/example is one to copy")
    for host in _hosts(parsed):
        parsed["_meta"]["hostvars"].setdefault(host, {})
    return parsed, warnings + [line.removeprefix("[WARNING]: ") for line in done.stderr.splitlines() if line.startswith("[WARNING]: ")]


def _hosts(parsed: dict[str, Any]) -> list[str]:
    return [host for name, group in parsed.items() if name != "_meta" for host in group.get("hosts", [])]


def _any_host(parsed: dict[str, Any]) -> bool:
    return bool(_hosts(parsed))


def _ansible_inventory(path: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(Path(sys.executable).parent / "ansible-inventory"), "-i", path, "--list", "--playbook-dir", str(PLAYBOOKS)]
    return subprocess.run(
        argv, env=clean_env(), cwd=PROJECT, stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", check=False
    )


def _without(sources: Sources, folder: Path) -> str:
    """The same inventory as links in ``folder``, vaulted files left out."""
    root = Path(sources.path)
    base = root if root.is_dir() else root.parent
    for file in sources.files:
        if file in sources.vaulted or not file.is_relative_to(base):
            continue
        link = folder / file.relative_to(base)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    return str(folder if root.is_dir() else folder / root.name)


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
        raise BigironError(f"the inventory's values cannot be resolved: {last}", where=sources.path)
    answer = json.loads(done.stdout)
    if "failed" in answer:
        raise BigironError(f"the vault password cannot be used: {answer['failed']}", where=sources.path)
    hosts: dict[str, dict[str, dict[str, Any]]] = answer["hosts"]
    return hosts
