"""Errors a person is meant to read: what went wrong, where, and what to do next.

Standard library only: this file also runs on hosts.
"""

from __future__ import annotations

from typing import Optional

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_DIFFERENCES = 2
EXIT_UNREACHABLE = 3
EXIT_REFUSED = 4
EXIT_REBOOT = 5
EXIT_USAGE = 64


class BigironError(Exception):
    """Something failed. ``what`` is one sentence; ``where`` a host, file or field; ``hint`` the next step."""

    exit_code = EXIT_FAILED

    def __init__(self, what: str, *, where: Optional[str] = None, hint: Optional[str] = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what}"

    def to_json(self) -> dict[str, object]:
        return {
            "error": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }


class UsageError(BigironError):
    """The command line or the inventory names something that does not exist; nothing was run."""

    exit_code = EXIT_USAGE


class Refused(BigironError):
    """Going on would be unsafe or could not succeed; nothing was touched."""

    exit_code = EXIT_REFUSED


class Unreachable(BigironError):
    """A host could not be talked to (network, key, host key, sudo)."""

    exit_code = EXIT_UNREACHABLE
