"""Where the controller keeps things: the project folder, the shared cache, this folder's own state."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
STATE = PROJECT / ".bigiron"


def cache_dir(*parts: str) -> Path:
    """``$XDG_CACHE_HOME/bigiron`` or ``~/.cache/bigiron``, plus ``parts``; made if missing.

    Without a home directory (a service account, HOME unset) the project's own ``.bigiron/cache`` is used.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    home = os.environ.get("HOME", "")
    if base:
        root = Path(base) / "bigiron"
    elif home and os.access(home, os.W_OK | os.X_OK):
        root = Path(home) / ".cache" / "bigiron"
    else:
        root = STATE / "cache"
    path = root.joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


def state_dir(*parts: str) -> Path:
    """``.bigiron/`` in the project folder, plus ``parts``; made if missing."""
    path = STATE.joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


def write_atomic(path: Path, text: str, mode: int = 0o644) -> None:
    """Write ``text`` so that a reader sees the old or the new file, never half of one; safe for concurrent writers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        os.fchmod(handle, mode)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
