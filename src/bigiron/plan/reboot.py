"""Why a reboot is pending, and whether a module can be built for the kernel that runs: from what kind `boot` observed.

Each answer is a sentence for `Planned.reboot` (or a refusal), "" when there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bigiron.onhost.kinds.boot import SYSTEM, order
from bigiron.units import count

NAMED = 4
"""Packages of a list that are named in a sentence."""


def required(boot: Mapping[str, Any]) -> str:
    """The system asks for it (/run/reboot-required)."""
    packages = boot[SYSTEM].get("required")
    if packages is None:
        return ""
    if not packages:
        return "the system asks for a reboot (/run/reboot-required)"
    more = f" and {count(len(packages) - NAMED, 'more package')}" if len(packages) > NAMED else ""
    return f"the system asks for a reboot (/run/reboot-required) since {', '.join(packages[:NAMED])}{more} changed"


def newer_kernel(boot: Mapping[str, Any]) -> str:
    """A newer kernel is installed than the one that runs; one of the host's own making that is newer than both is left alone."""
    system = boot[SYSTEM]
    if not system["newest"] or order(system["newest"]) <= order(system["kernel"]):
        return ""
    return f"kernel {system['kernel']} runs, {system['newest']} is installed and boots next"


def other_module(boot: Mapping[str, Any], module: str, installed: str) -> str:
    """``module`` is loaded in another version than the ``installed`` one (a package's version: epoch and revision do not count)."""
    loaded = boot.get(module, {}).get("version", "")
    upstream = installed.rpartition(":")[2].partition("-")[0]
    if not loaded or not upstream or loaded == upstream:
        return ""
    return f"version mismatch: the loaded module {module} is {loaded}, the installed software {upstream}"


def no_headers(boot: Mapping[str, Any]) -> str:
    """A module cannot be built for the running kernel, or would be missing after the next boot; with what to do."""
    system = boot[SYSTEM]
    lacking = [each for each in dict.fromkeys((system["kernel"], system["newest"])) if each and each not in system["headers"]]
    if not lacking:
        return ""
    there = f"there are headers for {', '.join(system['headers'])} only" if system["headers"] else "there are none at all"
    install = f"install {' and '.join(f'linux-headers-{each}' for each in lacking)}"
    if lacking == [system["kernel"]] and system["newest"] in system["headers"]:
        install = f"reboot into {system['newest']}, or {install}"
    return f"no headers for kernel {' and '.join(lacking)}, {there}: {install}"
