"""Does an installed llama.cpp reach the GPUs it was planned for, as the service user would? If not: which of five things is wrong.

Standard library only: this file also runs on hosts.
"""

from __future__ import annotations

import glob
import grp
import os
import pwd
import re
from pathlib import Path
from typing import Any, Dict, List, Optional

from ..errors import BigironError
from . import release
from .system import Tree

MISMATCH = re.compile(
    r"driver/library version mismatch|API mismatch|version is insufficient for CUDA runtime|RM version mismatch", re.IGNORECASE
)
"""The driver in the kernel is older than the libraries: NVIDIA's NVML and CUDA say so in these words."""


def prove(folder: Path, user: str, gpu: Dict[str, Any], tree: Optional[Tree] = None) -> List[str]:
    """The devices that the release in ``folder`` lists for ``user``, such as ``["CUDA0: NVIDIA L4 (22478 MiB)"]``.

    ``gpu`` is the role's ``llama_cpp_gpu``. Raises BigironError when fewer than its ``count`` devices of its kind answer.
    """
    account = pwd.getpwnam(user)
    tree = tree or Tree()
    answer = release.run_as(
        account,
        [str(folder / "bin" / "llama-server"), "--list-devices"],
        environment=gpu.get("environment") or {},
        groups=gpu.get("groups") or [],
    )
    said = answer.stdout + answer.stderr
    found = re.findall(rf"^\s*({re.escape(gpu['device'])}\d+: .*)$", said, re.MULTILINE)
    if len(found) < gpu["count"]:
        what, hint = why(gpu, said, [path.name for path in folder.rglob("libggml-*.so")], account, tree)
        raise BigironError(f"{len(found)} of {gpu['count']} GPUs answer to llama.cpp: {what}", where=str(folder), hint=hint)
    return found


def why(gpu: Dict[str, Any], said: str, libraries: List[str], account: pwd.struct_passwd, tree: Tree) -> tuple[str, str]:
    """``(what, hint)``: the first of the five that holds. ``said`` is what ``--list-devices`` printed."""
    if not any(name == f"libggml-{gpu['library']}.so" for name in libraries):
        return f"no backend: this build has no libggml-{gpu['library']}.so", "./inv builds.explain says what it was built with"
    loaded = [name for name in gpu.get("modules") or [] if tree.exists(f"/sys/module/{name}")]
    nodes = [node for pattern in gpu.get("nodes") or [] for node in sorted(glob.glob(tree.path(pattern)))]  # noqa: PTH207
    if gpu.get("modules") and not loaded:
        wanted = " or ".join(gpu["modules"])
        return (
            f"no driver: the kernel module {wanted} is not loaded",
            f"modprobe {gpu['modules'][0]}; dmesg says why it does not load",
        )
    if not nodes:
        return (
            f"no device node: nothing matches {', '.join(gpu.get('nodes') or [])}",
            "nvidia-modprobe (NVIDIA) or udev makes it; is the GPU on the bus (lspci)?",
        )
    mismatch = MISMATCH.search(said)
    if mismatch:
        return (
            f"driver and library do not match: {mismatch.group(0)}",
            "the driver's packages were upgraded under a running kernel: reboot",
        )
    closed = [node for node in nodes if not _opens(node, account, gpu.get("groups") or [])]
    if closed:
        return (
            f"not visible to {account.pw_name}: {', '.join(closed)}",
            f"its group must be one of {account.pw_name}'s: ls -l {closed[0]}",
        )
    return (
        f"the server says: {' '.join(said.split())[-300:]}",
        "the driver's own tool (nvidia-smi, rocminfo, vulkaninfo) says more",
    )


def _opens(node: str, account: pwd.struct_passwd, groups: List[str]) -> bool:
    """Whether ``account`` with ``groups`` may read and write the node, by owner, group and mode."""
    try:
        status = Path(node).stat()
    except OSError:
        return False
    mine = {
        *os.getgrouplist(account.pw_name, account.pw_gid),
        *(each.gr_gid for each in grp.getgrall() if each.gr_name in groups),
    }
    needed = 0o600 if status.st_uid == account.pw_uid else 0o060 if status.st_gid in mine else 0o006
    return status.st_mode & needed == needed or account.pw_uid == 0
