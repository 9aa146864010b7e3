"""Which hosts a command is about; hosts of the lab are brought up before they are needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bigiron.errors import UsageError
from bigiron.fleet import inventory as inventories
from bigiron.fleet.inventory import Target
from bigiron.lab import lab
from bigiron.paths import PROJECT

LAB = PROJECT / "inventory" / "lab"


def targets(host: str, group: str, inventory: str, say: Callable[[str], None]) -> list[Target]:
    """The hosts that ``host`` and ``group`` name in ``inventory``.

    Raises UsageError when neither is given or a name is unknown, Refused when the lab is meant and this machine cannot have one.
    """
    if not host and not group:
        raise UsageError("no host was named", hint="--host lab01, or --group lab; ./inv hosts lists them")
    found = inventories.load(inventory).select(host or None, group or None)
    if any(Path(source).resolve() == LAB for source in inventory.split(",")):
        names = [one.name for one in found if one.name.startswith("lab")]
        if names and not lab.is_up(names):
            lab.ensure_for(names, say)
            found = inventories.load(inventory).select(host or None, group or None)
    return found
