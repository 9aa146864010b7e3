"""How a long step on a host says how far it is: one small JSON file that the controller polls.

Standard library only: this file also runs on hosts.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Optional

RUN_DIR = Path("/run/bigiron")


class Progress:
    """Writes ``<folder>/<role>.json`` atomically, at most twice a second.

    A progress file is a courtesy: a failure to write one never fails the step it describes.
    """

    def __init__(self, role: str, folder: Optional[Path] = RUN_DIR) -> None:
        self.role = role
        self.path = folder / f"{role}.json" if folder else None
        self.since = time.time()
        self._step = ""
        self._written = 0.0

    def __call__(self, step: str, done: int, total: int, unit: str = "steps") -> None:
        """Report ``done`` of ``total`` (``unit`` is ``"bytes"`` or ``"steps"``) of ``step``."""
        now = time.time()
        if step != self._step:
            self._step, self.since = step, now
        elif now - self._written < 0.5:
            return
        self._written = now
        if self.path is None:
            return
        document = {"role": self.role, "step": step, "done": done, "total": total, "unit": unit, "since": self.since}
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_atomic(self.path, json.dumps(document))

    def close(self) -> None:
        """Remove the file: nothing is going on any more."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()


def write_atomic(path: Path, content: str, mode: int = 0o644) -> None:
    """Replace ``path`` so that a reader sees the old or the new content, whatever the umask is."""
    handle, temporary = tempfile.mkstemp(dir=str(path.parent), prefix=f".{path.name}.")
    try:
        os.fchmod(handle, mode)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(content)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
