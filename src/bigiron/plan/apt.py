"""What a part needs of apt besides packages: repositories, pins and holds, as data; role base makes it so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from bigiron.errors import Refused
from bigiron.onhost import aptsources


@dataclass(frozen=True)
class Repository:
    """A third-party repository: ``name`` (lower case, digits, dashes) is part of its file names.

    ``key`` is its OpenPGP key as ASCII text; without it the host fetches ``key_url``. Either must hold the keys named by ``fingerprints`` (hex)
    and no other. ``architectures`` empty: the host's own.
    """

    name: str
    uri: str
    suites: tuple[str, ...]
    fingerprints: tuple[str, ...]
    components: tuple[str, ...] = ()
    key: str = ""
    key_url: str = ""
    architectures: tuple[str, ...] = ()

    def refusal(self) -> Refused | None:
        """What is wrong with it, as far as it can be told before the host is touched."""
        if not self.key and not self.key_url:
            return Refused(f"repository {self.name} has neither a key nor a place to fetch it from")
        problem = aptsources.wrong_key(asdict(self), self.key.encode()) if self.key else ""
        return Refused(problem, hint="check the key against its owner's page") if problem else None


@dataclass(frozen=True)
class Pin:
    """Keeps ``packages`` (names or globs) at ``pin`` (``version 570.*``, ``origin HOST``, ``release o=NAME``), apt_preferences(5).

    A pin that matches nothing fails the run before anything is installed: package names change with the branch of a driver.
    """

    name: str
    packages: tuple[str, ...]
    pin: str
    priority: int = 1001


@dataclass(frozen=True)
class Apt:
    """All of it. ``holds`` are packages that stay at the version which the plan or the pin gave them, whoever upgrades the host."""

    repositories: tuple[Repository, ...] = ()
    pins: tuple[Pin, ...] = ()
    holds: tuple[str, ...] = ()

    @classmethod
    def together(cls, all_of_them: Iterable[Apt]) -> Apt:
        """What several parts need, each thing once."""
        each = list(all_of_them)
        return cls(
            tuple(dict.fromkeys(one for apt in each for one in apt.repositories)),
            tuple(dict.fromkeys(one for apt in each for one in apt.pins)),
            tuple(dict.fromkeys(one for apt in each for one in apt.holds)),
        )

    def variables(self) -> dict[str, Any]:
        """The variables of role base; none where nothing is needed, so that nothing changes for others."""
        given = {
            "base_repositories": [_plain(one) for one in self.repositories],
            "base_pins": [_plain(one) for one in self.pins],
            "base_held_packages": list(self.holds),
        }
        return given if any(given.values()) else {}


def _plain(one: Repository | Pin) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(one).items()}
