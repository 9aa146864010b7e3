"""Where the controller keeps things: the project folder, the shared cache, this folder's own state."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import BigironError
from .units import duration

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


@contextlib.contextmanager
def locked(path: Path, busy: str, *, say: Callable[[str], None], note: str = "", timeout_s: float = 1800) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (a file, made if missing); the kernel drops it when the process dies.

    ``note`` tells others who holds it: it takes the place of ``{holder}`` in ``busy``, which is said once when another process
    holds the lock. Raises BigironError after ``timeout_s``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + timeout_s
        told = ""
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    told = busy.replace("{holder}", os.pread(handle, 4096, 0).decode(errors="replace"))
                    say(told)
                if time.monotonic() > deadline:
                    hint = "wait for it or end it, then run this again; the lock goes with its process"
                    raise BigironError(
                        f"{told}; still locked after {duration(timeout_s)}", where=str(path), hint=hint
                    ) from None
                time.sleep(0.1)
        os.ftruncate(handle, 0)
        os.pwrite(handle, note.encode(), 0)
        yield
    finally:
        os.close(handle)
