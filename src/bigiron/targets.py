"""Which hosts a command is about, and what is known of the lab's own before any connection.

Reading never builds: only a command that brings hosts to their plan boots those of the lab.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from bigiron.errors import UsageError
from bigiron.fleet import inventory as inventories
from bigiron.fleet.inventory import Target
from bigiron.lab import lab
from bigiron.paths import PROJECT

LAB = PROJECT / "inventory" / "lab"


def select(host: str, group: str, inventory: str, *, boot: Callable[[str], None] | None = None) -> list[Target]:
    """The hosts that ``host`` and ``group`` name in ``inventory``.

    Lab hosts that are down are brought up when ``boot`` is given (it is told what happens), else marked as `Target.down`. Raises UsageError
    when nothing is named or a name is unknown, and with ``boot`` what :func:`bigiron.lab.lab.up` raises.
    """
    if not host and not group:
        raise UsageError("no host was named", hint="--host lab01, or --group lab; ./inv hosts lists them")
    found = inventories.load(inventory).select(host or None, group or None)
    if not any(Path(source).resolve() == LAB for source in inventory.split(",")):
        return found
    names = [one.name for one in found]
    if boot is None:
        down = lab.down_errors(names)
        return [replace(one, down=down.get(one.name)) for one in found]
    if lab.ensure_for(names, boot, releases(found)):
        found = inventories.load(inventory).select(host or None, group or None)  # now it says how they are reached
    return found


def some(host: str, group: str, inventory: str) -> list[Target]:
    """As `select`, for commands that can do without hosts: none when none is named."""
    return select(host, group, inventory) if host or group else []


def of_lab(host: str) -> tuple[list[str] | None, dict[str, str]]:
    """The lab hosts that ``host`` (a pattern) names, None for an empty one, and which Debian release inventory/lab wants for which.

    Raises UsageError for a name that is not in it.
    """
    hosts = inventories.load(str(LAB))
    return [one.name for one in hosts.select(host)] if host else None, releases(hosts.hosts.values())


def releases(hosts: Iterable[Target]) -> dict[str, str]:
    """What ``hosts`` say in ``lab_release``, by name; those that are silent are left out."""
    return {one.name: one.vars["lab_release"] for one in hosts if "lab_release" in one.vars}
