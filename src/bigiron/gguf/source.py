"""Where the bytes of a GGUF come from, and a cursor that reads them in pieces.

Runs on hosts: standard library only. The HTTP source is in ``remote``.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Optional, Protocol

from .errors import SourceError, Truncated

CHUNK_BYTES = 1 << 20


class Source(Protocol):
    """Random access to the bytes of one file. ``frugal`` asks the cursor to fetch no more than it expects to need."""

    name: str
    size: int
    frugal: bool

    def read(self, offset: int, count: int) -> bytes:
        """``count`` bytes from ``offset``, fewer only at the end of the file."""
        ...


class FileSource:
    """A local file. The size is that of the target of a link; the name stays as it was given."""

    frugal = False

    def __init__(self, path: Path) -> None:
        """Open ``path``. Raises SourceError when it is missing, a broken link, not a file, or not readable."""
        self.name = str(path)
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise SourceError(_why(path, error), file=self.name, field="file", offset=0) from None
        status = os.fstat(self._file.fileno())
        if not stat.S_ISREG(status.st_mode):
            self._file.close()
            raise SourceError("not a regular file", file=self.name, field="file", offset=0)
        self.size = status.st_size

    def read(self, offset: int, count: int) -> bytes:
        """``count`` bytes from ``offset``, fewer at the end of the file."""
        try:
            self._file.seek(offset)
            pieces = []
            while count and (piece := self._file.read(count)):
                pieces.append(piece)
                count -= len(piece)
            return b"".join(pieces)
        except OSError as error:
            raise SourceError(f"cannot read: {error.strerror}", file=self.name, field="file", offset=offset) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> FileSource:  # noqa: PYI034 -- Self is not in the Python of every host
        """The source itself."""
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        """Close the file."""
        self.close()


class BytesSource:
    """Bytes already in memory, under a name for the messages."""

    frugal = False

    def __init__(self, data: bytes, name: str = "bytes") -> None:
        """Serve ``data``."""
        self.name = name
        self.size = len(data)
        self._data = data

    def read(self, offset: int, count: int) -> bytes:
        """``count`` bytes from ``offset``, fewer at the end."""
        return self._data[offset : offset + count]


class Cursor:
    """A place in a source, with a window of its bytes: ``window[at]`` is the byte at ``tell()``."""

    def __init__(self, source: Source, first: int) -> None:
        """Stand at byte 0; the first fetch takes ``first`` bytes."""
        self.source = source
        self.window = b""
        self.at = 0
        self._base = 0
        self._first = first

    def tell(self) -> int:
        """Bytes from the start of the file."""
        return self._base + self.at

    def remaining(self) -> int:
        """Bytes from here to the end of the file."""
        return self.source.size - self._base - self.at

    def require(self, count: int, field: str, expected: int = 0) -> None:
        """Have at least ``count`` bytes in the window from ``at`` on; ``expected`` guesses what will be wanted soon after.

        Raises:
            Truncated: the file ends earlier.

        """
        have = len(self.window) - self.at
        if have >= count:
            return
        if count > self.remaining():
            raise Truncated(
                f"needs {count} bytes and the file ends after {max(self.remaining(), 0)}",
                file=self.source.name,
                field=field,
                offset=self.tell(),
                hint="the file is incomplete (an interrupted download?) or damaged",
            )
        here = self.tell()
        if have < 0:
            self.window, have = b"", 0
        fetch_from = here + have
        if not self.source.frugal:
            want = max(count, CHUNK_BYTES)
        else:
            # A twelfth of what was useful so far keeps the waste below 1.1 times the header, and the round trips few.
            want = max(count, expected, here // 12, self._first if here == 0 else 0)
        want = min(want - have, self.source.size - fetch_from)
        piece = self.source.read(fetch_from, want)
        self.window = self.window[self.at :] + piece if have else piece
        self._base, self.at = here, 0
        if len(self.window) < count:
            raise Truncated("the file became shorter while it was read", file=self.source.name, field=field, offset=here)

    def skip(self, count: int, field: str) -> None:
        """Move on by ``count`` bytes without reading them. Raises Truncated when that leaves the file."""
        if count > self.remaining():
            raise Truncated(
                f"needs {count} bytes and the file ends after {max(self.remaining(), 0)}",
                file=self.source.name,
                field=field,
                offset=self.tell(),
                hint="the file is incomplete (an interrupted download?) or damaged",
            )
        self.at += count


def _why(path: Path, error: OSError) -> str:
    if path.is_symlink() and not path.exists():
        return f"broken link: it points to {path.readlink()}, which is not there"
    return error.strerror or str(error)
