"""What this boot runs, and what the next one would: kernels, their headers, loaded modules, and the system's own wish for a reboot."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, Tuple, Union

from ..reader import Reader
from .package import STATUS

SECTION = "boot"
SYSTEM = "system"
"""The entry of the boot itself, beside those of the modules."""
BOOT_ID = "/proc/sys/kernel/random/boot_id"
REQUIRED = "/run/reboot-required"


def observe(reader: Reader, names: Iterable[str]) -> Dict[str, Any]:
    """``names`` are kernel modules. A loaded one has ``{"version"}``, "" when it tells none; one that is not loaded has no entry.

    ``system``: ``{"id", "kernel", "newest", "installed", "headers"}`` and, when the system asks for a reboot, ``"required"``: the packages that do.
    ``newest`` is the newest installed kernel of the running one's flavour (any flavour, when there is none of it), "" without any, as in
    a container. Kernels are installed when their image is there: what DKMS left under /lib/modules does not boot.
    """
    tree = reader.tree
    running = tree.text("/proc/sys/kernel/osrelease")
    modules = tree.names("/lib/modules")
    images = {name.partition("-")[2] for name in tree.names("/boot") if name.startswith("vmlinuz-")} | _packaged(reader)
    installed = sorted((name for name in modules if name in images), key=order)
    alike = [name for name in installed if flavour(name) == flavour(running)] or installed
    system: Dict[str, Any] = {
        "id": tree.text(BOOT_ID),
        "kernel": running,
        "newest": alike[-1] if alike else "",
        "installed": installed,
        "headers": [name for name in modules if _has_headers(reader, name)],
    }
    if tree.exists(REQUIRED):
        system["required"] = sorted(set(tree.text(f"{REQUIRED}.pkgs").split()))
    found = {}
    for name in names:
        folder = f"/sys/module/{name.replace('-', '_')}"
        # what is built into the kernel has a folder too, for its parameters
        if tree.exists(f"{folder}/initstate") or tree.exists(f"{folder}/version"):
            found[name] = {"version": tree.text(f"{folder}/version")}
    return {SYSTEM: system, **found}


def _packaged(reader: Reader) -> set[str]:
    """The releases of the installed packages linux-image-RELEASE."""
    text = (reader.tree.data(STATUS) or b"").decode(errors="replace")
    pattern = r"^Package: linux-image-(?:unsigned-)?(\d\S+)\nStatus: \w+ ok installed$"
    return set(re.findall(pattern, text, re.MULTILINE))


def _has_headers(reader: Reader, release: str) -> bool:
    tree = reader.tree
    return tree.exists(f"/lib/modules/{release}/build/Makefile") or tree.exists(f"/usr/src/linux-headers-{release}/Makefile")


def flavour(release: str) -> str:
    """``6.1.0-28-amd64`` -> ``amd64``: Debian and Ubuntu put it last; "" where there is none."""
    return re.sub(r"^[\d.+~-]*(rc\d+)?[\d.+~-]*", "", release)


def order(release: str) -> List[Tuple[int, Union[int, str]]]:
    """Sorts releases by their numbers: 6.1.0-9 before 6.1.0-10."""
    words = re.findall(r"\d+|[a-z]+", release)
    return [(1, int(word)) if word.isdigit() else (0, word) for word in words]
