"""ROCm: which card is which gfx target, which release computes on it and as what, and what each platform has.

What differs from one distribution to the next is data in ``roles/rocm/vars``, one file a platform.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from bigiron.machine.description import Gpu, OperatingSystem
from bigiron.paths import PROJECT

AMD, DISTRIBUTION = "amd", "distribution"
MINIMUM = (6, 1)
"""llama.cpp's ggml-hip refuses an older HIP (ggml/src/ggml-hip/CMakeLists.txt, b11434)."""
VARS = PROJECT / "roles" / "rocm" / "vars"

_IDS = {
    "gfx900": "6860 6861 6862 6863 6864 6867 6868 6869 686a 686b 686c 687f",
    "gfx906": "66a0 66a1 66a2 66a3 66a7 66af",
    "gfx908": "7388 738c 738e",
    "gfx90a": "7408 740c 740f 7410",
    "gfx942": "74a0 74a1 74a2 74a5 74a8 74a9 74b5 74b6 74b9 74bd",
    "gfx950": "75a0 75a3 75b0 75b3",
    "gfx1010": "7310 7312 7318 7319 731a 731b 731e 731f",
    "gfx1011": "7360 7362",
    "gfx1012": "7340 7341 7347 734f",
    "gfx1030": "73a0 73a1 73a2 73a3 73a5 73ab 73ae 73af 73bf",
    "gfx1031": "73c3 73ce 73df",
    "gfx1032": "73e0 73e1 73e3 73ef 73ff",
    "gfx1034": "7421 7422 7423 7424 743f",
    "gfx1100": "7448 7449 744a 744b 744c 745e",
    "gfx1101": "7460 7461 7470 747e",
    "gfx1102": "7480 7483 7489 7499",
    "gfx1103": "15bf 15c8 1900 1901",
    "gfx1150": "150e",
    "gfx1151": "1586",
    "gfx1200": "7590",
    "gfx1201": "7550 7551",
}
CARDS: Mapping[str, str] = {device: gfx for gfx, ids in _IDS.items() for device in ids.split()}
"""By PCI device id (pci.ids), the target that AMD's tables give that GPU (install-on-linux, system requirements)."""


@dataclass(frozen=True)
class Target:
    """``since`` and ``until``: the first and last ROCm whose rocBLAS has kernels of it; ``stand_in``: whose instructions it runs where it has none."""

    since: tuple[int, int] = (99, 0)
    until: tuple[int, int] = (99, 0)
    stand_in: str = ""


TARGETS: Mapping[str, Target] = {
    "gfx900": Target((5, 0), (5, 7)),
    "gfx906": Target((5, 0), (6, 3)),
    "gfx908": Target((5, 0)),
    "gfx90a": Target((5, 0)),
    "gfx942": Target((6, 0)),
    "gfx950": Target((7, 0)),
    "gfx1010": Target((5, 0)),
    "gfx1011": Target(stand_in="gfx1010"),
    "gfx1012": Target((5, 0)),
    "gfx1030": Target((5, 0)),
    "gfx1031": Target(stand_in="gfx1030"),
    "gfx1032": Target(stand_in="gfx1030"),
    "gfx1034": Target(stand_in="gfx1030"),
    "gfx1100": Target((5, 6)),
    "gfx1101": Target((5, 6)),
    "gfx1102": Target((5, 6)),
    "gfx1103": Target((7, 1), stand_in="gfx1100"),
    "gfx1150": Target((7, 0), stand_in="gfx1100"),
    "gfx1151": Target((6, 3), stand_in="gfx1100"),
    "gfx1200": Target((6, 3)),
    "gfx1201": Target((6, 3)),
}
"""rocBLAS's CMakeLists.txt (TARGET_LIST_ROCM_*); the ends of gfx900 and gfx906 from AMD's system requirements, which call them unsupported since."""


@dataclass(frozen=True)
class Platform:
    """What one distribution has.

    ``suite``: of AMD's apt repository; ``kernels``: by ROCm release, the kernels that AMD supports there; ``supported``: the targets that AMD
    supports there, none where all; ``packaged``: the HIP that the distribution packages, with its ``clang``, the folder of its device
    libraries, its packages of the ``runtime`` and, where they were counted, the ``targets`` of its rocBLAS.
    """

    name: str
    manager: str = "apt"
    suite: str = ""
    kernels: Mapping[str, Sequence[str]] | None = None
    supported: Sequence[str] = ()
    packaged: str = ""
    clang: str = ""
    device_libs: str = ""
    runtime: Sequence[str] = ()
    targets: Sequence[str] = ()


def platform(system: OperatingSystem) -> Platform | None:
    """The most specific of the files in ``roles/rocm/vars`` that fits: of the system itself, then of what it is like; None without one."""
    version = system.version_id or "sid"  # Debian's testing and unstable have no number
    for name in (system.id, *system.id_like.split()):
        for key in (f"{name}-{version}", f"{name}-{version.partition('.')[0]}", name):
            if found := _read(key):
                return found
    return None


@cache
def _read(key: str) -> Platform | None:
    path = VARS / f"{key}.yml"
    if not re.fullmatch(r"[\w.-]+", key) or not path.is_file():
        return None
    import yaml  # only a host that computes with ROCm pays for it

    given: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return Platform(**{name.removeprefix("__rocm_"): value for name, value in given.items()})


@dataclass(frozen=True)
class Source:
    """Where ROCm comes from on one host: ``root`` is its folder, ``compiler`` the absolute path of its clang++.

    ``device_libs`` is where that finds its device libraries, when it is not below ``root``: with a ROCM_PATH it looks nowhere else.
    """

    name: str
    version: str
    root: str
    compiler: str
    build: tuple[str, ...]
    runtime: tuple[str, ...]
    targets: tuple[str, ...] = ()
    device_libs: str = ""

    @property
    def release(self) -> tuple[int, int]:
        return release(self.version)


DISTRIBUTION_BUILD = ("hipcc", "libamdhip64-dev", "libhipblas-dev", "librocblas-dev")
"""Of Debian and Ubuntu: compiler with device libraries, and what ggml-hip's CMakeLists.txt looks for."""
DISTRIBUTION_RUNTIMES = ("libamdhip64-6", "libhipblas2", "librocblas4", "libamdhip64-7", "libhipblas3", "librocblas5")
DISTRIBUTION_FOLDERS = ("/usr/lib/llvm-21/bin",)
"""The runtimes and the folders of clang in all files of `VARS` together (a test compares); to read those costs every host milliseconds."""
_AMD_BUILD = ("hipcc", "rocm-llvm", "rocm-device-libs", "hip-dev", "hipblas-dev", "rocblas-dev")
_AMD_RUNTIME = ("hip-runtime-amd", "hipblas", "rocblas")


def release(version: str) -> tuple[int, int]:
    """``7.2.4`` -> ``(7, 2)``."""
    major, minor = (*version.split("."), "0")[:2]
    return int(major), int(minor)


def source(wanted: str, version: str, found: Platform | None) -> Source | None:
    """The source that is ``wanted`` (``auto``: AMD's where it has a suite for the platform, else the distribution); None where there is none.

    AMD's packages are those with the version in their name: they lie side by side in ``/opt/rocm-VERSION``, so that the release before still
    finds its libraries after an upgrade, and a new ``version`` is a new package.
    """
    if found is None:
        return None
    if wanted == AMD or (wanted == "auto" and found.suite):
        if not found.suite:
            return None
        full = ".".join((*version.split("."), "0")[:3])
        root = f"/opt/rocm-{full}"
        build, runtime = (tuple(f"{name}{full}" for name in names) for names in (_AMD_BUILD, _AMD_RUNTIME))
        return Source(AMD, version, root, f"{root}/lib/llvm/bin/clang++", build, runtime)
    if not found.packaged or release(found.packaged) < MINIMUM:
        return None
    return Source(
        DISTRIBUTION,
        found.packaged,
        "/usr",
        found.clang,
        DISTRIBUTION_BUILD,
        tuple(found.runtime),
        tuple(found.targets),
        found.device_libs,
    )


def anything(version: str) -> tuple[list[str], list[str]]:
    """The packages and the folders of every source that a host may have: what it is asked about before its system is known."""
    amd = source(AMD, version, Platform("", suite="any"))
    packages = [*DISTRIBUTION_BUILD, *DISTRIBUTION_RUNTIMES, *(amd.build + amd.runtime if amd else ())]
    return packages, ["/usr", *DISTRIBUTION_FOLDERS, *((amd.root, amd.compiler.rpartition("/")[0]) if amd else ())]


def override(gfx: str) -> str:
    """HSA_OVERRIDE_GFX_VERSION that makes a GPU run as ``gfx``: the last two digits are hexadecimal (gfx90a -> 9.0.10)."""
    digits = gfx.removeprefix("gfx")
    return f"{int(digits[:-2])}.{int(digits[-2], 16)}.{int(digits[-1], 16)}"


def overridden(version: str) -> str:
    """The target of an override: ``10.3.0`` -> ``gfx1030``."""
    major, minor, step = version.split(".")
    return f"gfx{major}{int(minor):x}{int(step):x}"


@dataclass(frozen=True)
class Chosen:
    """``targets`` to compile for, the ``override`` of the process ("" for none), the ``cards`` as they are, and what is in the way."""

    targets: tuple[str, ...]
    override: str = ""
    cards: tuple[str, ...] = ()
    why: str = ""
    problems: tuple[tuple[str, str], ...] = ()


def choose(gpus: Sequence[Gpu], found: Source, *, more: Sequence[str] = (), forced: str = "") -> Chosen:
    """What to compile for these GPUs, and as what they run: one decision for the build and for the service.

    ``more`` are targets that a person wants besides, and all there is for a card that is not in the table; ``forced`` is a person's own
    override. An override holds for every GPU of the process, so GPUs that need different ones cannot serve together.
    """
    problems: list[tuple[str, str]] = []
    runs: dict[str, str] = {}  # card -> override
    targets: dict[str, None] = {}
    cards = {gpu.pci: CARDS.get(gpu.device_id, "") for gpu in gpus}
    for pci, gfx in cards.items():
        as_gfx = overridden(forced) if forced else gfx and _computes(gfx, found)
        if as_gfx:
            targets[as_gfx] = None
            runs[pci] = override(as_gfx) if forced or as_gfx != gfx else ""
        elif gfx:
            problems.append(_too_old_or_new(pci, gfx, found))
        elif not more:
            device = next(gpu.device_id for gpu in gpus if gpu.pci == pci)
            what = f"the AMD GPU {pci} (1002:{device}) is not in the table of gfx targets"
            problems.append((what, "rocminfo names its target: set rocm_targets: [gfxNNNN], or llama_cpp_backend: vulkan"))
    if len({*runs.values()}) > 1:
        shown = ", ".join(f"{pci} {cards[pci]} runs as {runs[pci] or 'itself'}" for pci in sorted(runs))
        what = f"HSA_OVERRIDE_GFX_VERSION holds for all GPUs of a process, and these need different ones: {shown}"
        problems.append(
            (what, "set llama_cpp_backend: vulkan on this host, which computes on all of them, or take one kind out")
        )
    if not gpus and not more:
        problems.append(
            (
                "there is no AMD GPU here, and rocm_targets does not say what to compile for",
                "set rocm_targets: [gfx1100], or llama_cpp_backend: auto",
            )
        )
    value = next(iter(runs.values()), "")
    names = tuple(dict.fromkeys(gfx for gfx in cards.values() if gfx))
    why = ", ".join(names) or "no GPU here"
    if value:
        why += f"; without kernels of its own in ROCm {found.version}, so built as {overridden(value)} and run with HSA_OVERRIDE_GFX_VERSION={value}"
    if more:
        why += "; more: rocm_targets"
    return Chosen(tuple(dict.fromkeys((*targets, *more))), value, names, why, tuple(problems))


def _computes(gfx: str, found: Source) -> str:
    """As which target this one runs: itself, its stand-in, or "" for none."""
    known = TARGETS[gfx]
    return next((each for each in (gfx, known.stand_in) if each and _has(each, found)), "")


def _has(gfx: str, found: Source) -> bool:
    return gfx in found.targets if found.targets else TARGETS[gfx].since <= found.release <= TARGETS[gfx].until


def _too_old_or_new(pci: str, gfx: str, found: Source) -> tuple[str, str]:
    known = TARGETS[gfx]
    what = f"ROCm {found.version} ({found.name}) has no kernels for the GPU {pci}, {gfx}"
    if known.until < MINIMUM:
        return f"{what}, and llama.cpp needs {_dotted(MINIMUM)}", "set llama_cpp_backend: vulkan on this host"
    if found.release > known.until:
        return (
            f"{what}: the last was {_dotted(known.until)}",
            f"set rocm_version: {_dotted(known.until)}, or llama_cpp_backend: vulkan",
        )
    if found.name == DISTRIBUTION:
        return what, "set rocm_source: amd where AMD has a repository for this system, or llama_cpp_backend: vulkan"
    return f"{what}: the first is {_dotted(known.since)}", f"set rocm_version to {_dotted(known.since)} or later"


def _dotted(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"


def kernels(found: Source, place: Platform) -> list[str]:
    """The kernels that AMD supports for ``found`` on this platform, as major.minor."""
    return list((place.kernels or {}).get(_dotted(found.release), ()))


def kernel_problem(kernel: str, found: Source, place: Platform) -> str:
    """Why AMD's ``found`` is not for this kernel; "" when it is. The distribution's ROCm is made for the distribution's kernels."""
    if found.name != AMD:
        return ""
    listed = kernels(found, place)
    if not listed:
        known = ", ".join(sorted(place.kernels or {})) or "none"
        return f"which kernels ROCm {found.version} supports on {place.name} is not known (known: ROCm {known})"
    match = re.match(r"\d+\.\d+", kernel)
    if match and match.group() in listed:
        return ""
    return f"kernel {kernel} is not one that AMD supports for ROCm {found.version} on {place.name} ({', '.join(listed)})"
