"""Whether a release can run on a machine: C library, CPU, kernel drivers, GPU architectures, by the identity in its manifest.

Standard library only: this file also runs on hosts.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any, Collection, Dict, List, Mapping, Optional, Tuple

from ..errors import BigironError
from .system import Start, Tree, start

KFD = "/sys/class/kfd/kfd/topology/nodes"
GFX_OPTIONS = ("GPU_TARGETS", "AMDGPU_TARGETS", "CMAKE_HIP_ARCHITECTURES")
_CUDA = r"(\d+)(\d)([af]?)(-real|-virtual)?"


def libc_version() -> str:
    """``"glibc 2.36"``, or ``"unknown"`` where the C library does not say (musl)."""
    with contextlib.suppress(ValueError, OSError):
        return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    return "unknown"


def cpu_flags() -> list[str]:
    """The kernel's flags of this CPU (x86 ``flags``, ARM ``Features``), sorted."""
    with contextlib.suppress(OSError):
        match = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        return sorted(match.group(1).split()) if match else []
    return []


def unfit(identity: Mapping[str, Any], flags: Collection[str], libc: str) -> List[str]:
    """Why a release of ``identity`` cannot run on a machine with these CPU ``flags`` and this ``libc``; empty when it can.

    A CPU without an instruction of the baseline kills the program (llama.cpp#8734). A program linked against a newer glibc does not start
    on an older one; the other way round is what glibc promises. A libc that does not say what it is runs no glibc program for sure.
    """
    found = []
    missing = sorted(set(identity.get("cpu_baseline") or []) - set(flags))
    if missing:
        found.append(f"the release needs CPU features that this machine lacks: {', '.join(missing)}")
    needed = _glibc(str(identity.get("libc") or ""))
    if needed and (_glibc(libc) or (0,)) < needed:
        found.append(
            f"the release was linked against {identity['libc']}, which is newer than this machine's C library ({libc})"
        )
    return found


def _glibc(text: str) -> Tuple[int, ...]:
    match = re.fullmatch(r"glibc (\d+)\.(\d+).*", text)
    return (int(match[1]), int(match[2])) if match else ()


def old_drivers(identity: Mapping[str, Any], loaded: Mapping[str, str]) -> List[str]:
    """The kernel modules, of those ``loaded`` (version by name), that are older than the release needs; an unknown version is none."""
    return [
        f"the release needs the {name} driver {least} or newer, and this machine has {loaded[name]}"
        for name, least in sorted((identity.get("drivers") or {}).items())
        if loaded.get(name) and _numbers(loaded[name]) < _numbers(least)
    ]


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version))


def wrong_gpus(identity: Mapping[str, Any], gpus: Mapping[str, List[str]], planned: int) -> List[str]:
    """Whether fewer than ``planned`` of the ``gpus`` (``{"cuda": ["8.9"], "hip": ["gfx1100"]}``) can run the code that was compiled.

    A GPU beside those that are planned (one built into the CPU, say) is no problem; where the release or the machine does not say, none is seen.
    """
    options: Mapping[str, str] = identity.get("options") or {}
    found = []
    compiled = {
        "cuda": _list(options.get("CMAKE_CUDA_ARCHITECTURES", "")),
        "hip": [each for name in GFX_OPTIONS for each in _list(options.get(name, ""))],
    }
    for kind, able in (("cuda", _runs_cuda), ("hip", _runs_gfx)):
        there = gpus.get(kind) or []
        fitting = [gpu for gpu in there if any(able(each, gpu) for each in compiled[kind])]
        if compiled[kind] and there and len(fitting) < planned:
            wanted = ", ".join(dict.fromkeys(gpu for gpu in there if gpu not in fitting)) or ", ".join(there)
            found.append(f"the release was compiled for {', '.join(compiled[kind])}, and this machine's GPU is {wanted}")
    return found


def _list(text: str) -> List[str]:
    return [each.strip() for each in re.split(r"[;,]", text) if each.strip()]


def _runs_cuda(compiled: str, gpu: str) -> bool:
    """CUDA's rules: machine code for the same major and a lower minor, PTX for everything newer, ``a`` for that one only, ``f`` for its family."""
    match = re.fullmatch(_CUDA, compiled)
    if not match:
        return True  # all, all-major: whatever the toolkit knows
    code = int(match.group(1)), int(match.group(2))
    here = _numbers(gpu)[:2]
    if match.group(3) == "a":
        return here == code
    if match.group(3) == "f" or match.group(4) == "-real":
        return here[0] == code[0] and here >= code
    return here >= code


def _runs_gfx(compiled: str, gpu: str) -> bool:
    name = compiled.partition(":")[0]
    if name.endswith("-generic"):  # gfx11-generic, gfx10-3-generic: LLVM's AMDGPU usage, generic processors
        return gpu.startswith(name[: -len("-generic")].replace("-", ""))
    return name == gpu


def loaded_drivers(names: Collection[str], tree: Tree) -> Dict[str, str]:
    """The versions of kernel modules that say theirs (those of the kernel itself do not)."""
    found = {name: tree.text(f"/sys/module/{name}/version") for name in names}
    return {name: version for name, version in found.items() if version}


def gpus_here(environment: Mapping[str, str], tree: Tree, begin: Start) -> Dict[str, List[str]]:
    """What the drivers say of the GPUs: compute capabilities and gfx names, the latter as ``environment`` overrides them for ROCm."""
    found: Dict[str, List[str]] = {}
    if tree.exists("/proc/driver/nvidia/version"):
        answer = begin(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])()
        # anything but N.N is a message, with exit code 0 too (llama.cpp#18430)
        found["cuda"] = [line.strip() for line in answer.out.splitlines() if re.fullmatch(r"\s*\d+\.\d\s*", line)]
    override = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", environment.get("HSA_OVERRIDE_GFX_VERSION", ""))
    for node in tree.names(KFD):
        about = {
            words[0]: words[1]
            for words in map(str.split, tree.text(f"{KFD}/{node}/properties").splitlines())
            if len(words) == 2
        }
        target = int(about.get("gfx_target_version", "0") if about.get("gfx_target_version", "0").isdigit() else 0)
        if target:
            version = override.groups() if override else (target // 10000, target // 100 % 100, target % 100)
            major, minor, step = map(int, version)
            found.setdefault("hip", []).append(f"gfx{major}{minor:x}{step:x}")
    return found


def check(identity: Mapping[str, Any], gpu: Mapping[str, Any], tree: Optional[Tree] = None, begin: Start = start) -> None:
    """Refuse a release that cannot run on this machine, before it is installed; ``gpu`` is the role's ``llama_cpp_gpu``."""
    tree = tree or Tree()
    found = unfit(identity, cpu_flags(), libc_version())
    if gpu:
        found += old_drivers(identity, loaded_drivers(list(identity.get("drivers") or {}), tree))
        found += wrong_gpus(identity, gpus_here(gpu.get("environment") or {}, tree, begin), int(gpu.get("count") or 0))
    for problem in found:
        raise BigironError(problem, hint="build on this host: set llama_cpp_archive to nothing")
