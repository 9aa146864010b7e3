"""Errors of the GGUF reader: each names the file, the field and the byte where the trouble starts.

Runs on hosts: standard library only.
"""

from __future__ import annotations

from typing import Optional

from ..errors import BigironError


class GgufError(BigironError):
    """A GGUF file cannot be used. ``where`` is the file; ``field`` and ``offset`` (bytes from its start) say where in it."""

    def __init__(self, what: str, *, file: str, field: str, offset: int, hint: Optional[str] = None) -> None:
        super().__init__(f"{field} at byte {offset}: {what}", where=file, hint=hint)
        self.file = file
        self.field = field
        self.offset = offset

    def to_json(self) -> dict[str, object]:
        """The error as data, with ``field`` and ``offset``."""
        return {**super().to_json(), "field": self.field, "offset": self.offset}


class NotGguf(GgufError):
    """The file does not start with the letters GGUF."""


class UnsupportedVersion(GgufError):
    """A GGUF, but of a version (0, 1, or newer than 3) that llama.cpp does not load."""


class Truncated(GgufError):
    """A count, a length or a seek points behind the end of the file."""


class Malformed(GgufError):
    """The bytes break a rule of the format (the same rules as ggml/src/gguf.cpp)."""


class UnknownType(GgufError):
    """A value type or a tensor type that is not in the tables of this program."""


class TooLarge(GgufError):
    """Legal bytes, but far more of them than any model needs: refused, so that reading stays quick and small."""


class SourceError(GgufError):
    """The bytes could not be fetched: missing file, permission, a broken link, or what the HTTP server answered."""


class SplitError(GgufError):
    """The file cannot be split, or a set of shards does not belong together."""
