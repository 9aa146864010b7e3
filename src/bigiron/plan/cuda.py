"""Which CUDA toolkit, architectures, host compiler and driver go together on a host; refused before anything is installed.

Every answer is from the table in `bigiron.machine.nvidia` and from what was observed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bigiron.errors import Refused
from bigiron.machine import nvidia
from bigiron.machine.description import Gpu, Machine
from bigiron.machine.nvidia import CLOSED, OPEN, Distribution, Generation, numbers

PYPI, NVIDIA, DISTRIBUTION = "pypi", "nvidia", "distribution"
AUTO = "auto"
TOOLKITS = "/opt/bigiron/toolkits"
NEW_TOOLKIT, OLD_TOOLKIT = "13.0", "12.9"
"""Of NVIDIA's repository; the old one is the last that builds for Maxwell, Pascal and Volta."""
_DISTRIBUTION_PACKAGES = ("nvidia-cuda-toolkit",)
_NOTHING = "nothing was installed"


@dataclass(frozen=True)
class Toolkit:
    """One toolkit on one host. ``stubs``: it has a libcuda to link with; ``libraries`` are folders the loader does not know by itself."""

    source: str
    version: str
    root: str
    packages: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    stubs: bool = True

    @property
    def compiler(self) -> str:
        return f"{self.root}/bin/nvcc"


@dataclass(frozen=True)
class Chosen:
    """What the build gets; ``refusals`` say why it cannot be built. ``compiler`` is the major of g++, 0 where there is none that fits."""

    toolkit: Toolkit
    architectures: tuple[str, ...]
    compiler: int
    refusals: tuple[Refused, ...] = field(default=())


def packages(wish: Mapping[str, Any]) -> list[str]:
    """Every toolkit package that `choose` may want, whatever the host is."""
    lines = dict.fromkeys((str(wish["cuda_toolkit_version"]) or NEW_TOOLKIT, NEW_TOOLKIT, OLD_TOOLKIT))
    return [*_DISTRIBUTION_PACKAGES, *(name for line in lines for name in _nvidia_packages(line))]


def _nvidia_packages(version: str) -> tuple[str, ...]:
    line = "-".join(version.split(".")[:2])
    return tuple(f"{name}-{line}" for name in ("cuda-nvcc", "cuda-cudart-dev", "libcublas-dev", "cuda-driver-dev"))


def choose(machine: Machine, gpus: Sequence[Gpu], wish: Mapping[str, Any]) -> Chosen:
    """The toolkit as asked, or the first source that builds for these GPUs; with all reasons against it where there is none."""
    row = nvidia.distribution(machine.os)
    asked = str(wish["cuda_toolkit_source"])
    sources = (PYPI, NVIDIA, DISTRIBUTION) if asked == AUTO else (asked,)
    tried = [_judged(machine, gpus, wish, _toolkit(source, machine, row, wish, gpus), row) for source in sources]
    return next((each for each in tried if not each.refusals), tried[0])


def _toolkit(source: str, machine: Machine, row: Distribution | None, wish: Mapping[str, Any], gpus: Sequence[Gpu]) -> Toolkit:
    asked = str(wish["cuda_toolkit_version"])
    if source == PYPI:
        root = f"{TOOLKITS}/cuda-{nvidia.PYPI_VERSION}"
        version = nvidia.PYPI_VERSION if machine.arch in nvidia.ARCHITECTURES_OF_WHEELS else ""
        return Toolkit(PYPI, version, root, libraries=(f"{root}/lib",), stubs=False)
    if source == NVIDIA:
        old = any((known := nvidia.chip(gpu.device_id)) and known[1].last_branch for gpu in gpus)
        version = asked or (OLD_TOOLKIT if old else NEW_TOOLKIT)
        there = row is not None and row.repository and machine.arch in nvidia.REPOSITORY_ARCHITECTURES
        root = f"/usr/local/cuda-{'.'.join(version.split('.')[:2])}"
        return Toolkit(NVIDIA, version if there else "", root, _nvidia_packages(version), (f"{root}/lib64",))
    return Toolkit(DISTRIBUTION, row.toolkit if row else "", "/usr", _DISTRIBUTION_PACKAGES)


def _judged(
    machine: Machine, gpus: Sequence[Gpu], wish: Mapping[str, Any], toolkit: Toolkit, row: Distribution | None
) -> Chosen:
    architectures, unknown = _architectures(gpus, wish["cuda_architectures"])
    refusals = list(unknown)
    asked = str(wish["cuda_toolkit_version"])
    known = nvidia.toolkit(toolkit.version) if toolkit.version else None
    compilers = row.compilers if row else ()
    if not toolkit.version:
        refusals.append(_no_toolkit(toolkit.source, machine))
    elif asked and numbers(toolkit.version)[: len(numbers(asked))] != numbers(asked):
        what = f"cuda_toolkit_version is {asked}, and the source {toolkit.source} has {toolkit.version}"
        refusals.append(Refused(what, hint=f"leave cuda_toolkit_version empty, or set cuda_toolkit_source: nvidia; {_NOTHING}"))
    elif known is None:
        what = f"CUDA {toolkit.version} is older than any this version of bigiron knows"
        refusals.append(Refused(what, hint=f"set cuda_toolkit_source: pypi, or nvidia with a cuda_toolkit_version; {_NOTHING}"))
    if known is None:
        return Chosen(toolkit, architectures, compilers[0] if compilers else 0, tuple(refusals))
    unable = [each for each in architectures if _number(each) not in known.architectures]
    if unable:
        refusals.append(_cannot_build(toolkit, unable))
    compiler = next((major for major in compilers if major <= known.gcc), 0)
    if not compiler:
        what = (
            f"CUDA {toolkit.version} takes g++ up to {known.gcc}, and {machine.os.pretty} packages {_plus(compilers) or 'none'}"
        )
        refusals.append(Refused(what, hint=f"take a newer toolkit (cuda_toolkit_source, cuda_toolkit_version); {_NOTHING}"))
    libc = numbers(machine.libc.rpartition(" ")[2])
    if known.glibc and libc > known.glibc and toolkit.source != DISTRIBUTION:
        newest = ".".join(map(str, known.glibc))
        what = f"the headers of CUDA {toolkit.version} do not compile with {machine.libc} (up to {newest})"
        refusals.append(Refused(what, hint=f"set cuda_toolkit_source: pypi (CUDA {nvidia.PYPI_VERSION}); {_NOTHING}"))
    return Chosen(toolkit, architectures, compiler, tuple(refusals))


def _no_toolkit(source: str, machine: Machine) -> Refused:
    where = machine.os.pretty or machine.os.id
    others = " or ".join(each for each in (PYPI, NVIDIA, DISTRIBUTION) if each != source)
    return Refused(
        f"there is no CUDA toolkit from {source} for {where} on {machine.arch}",
        hint=f"set cuda_toolkit_source: {others}, or llama_cpp_backend: cpu; {_NOTHING}",
    )


def _cannot_build(toolkit: Toolkit, unable: Sequence[str]) -> Refused:
    able = [row for row in nvidia.TOOLKITS if all(_number(each) in row.architectures for each in unable)]
    wanted = ".".join(map(str, able[-1].since)) if able else ""
    hint = f'set cuda_toolkit_source: nvidia and cuda_toolkit_version: "{wanted}"' if wanted else "correct cuda_architectures"
    return Refused(f"CUDA {toolkit.version} does not build for architecture {_plus(unable)}", hint=f"{hint}; {_NOTHING}")


def _architectures(gpus: Sequence[Gpu], asked: Iterable[str]) -> tuple[tuple[str, ...], list[Refused]]:
    """CMAKE_CUDA_ARCHITECTURES: as asked, in that order and each once, else of the GPUs. Never "native": a builder may have another GPU, or none."""
    if asked:
        return tuple(dict.fromkeys(each if "-" in each else f"{each}-real" for each in asked)), []
    found = {gpu: nvidia.chip(gpu.device_id) for gpu in gpus}
    unknown = [f"10de:{gpu.device_id}" for gpu, known in found.items() if known is None]
    if unknown or not found:
        what = f"the architecture of {_plus(unknown)} is not known" if unknown else "there is no GPU to build for"
        hint = f'set cuda_architectures: ["89"] (nvidia-smi --query-gpu=compute_cap says 8.9 for it); {_NOTHING}'
        return (), [Refused(what, hint=hint)]
    return tuple(f"{number}-real" for number in sorted({known[0] for known in found.values() if known})), []


def _number(architecture: str) -> int:
    match = re.match(r"\d+", architecture)
    return int(match.group()) if match else 0


def _plus(words: Iterable[object]) -> str:
    return ", ".join(map(str, words))


@dataclass(frozen=True)
class Driver:
    """``packages`` with the ``pins`` that keep them at ``branch``; none where the driver is left as it is."""

    source: str
    branch: int
    module: str
    packages: tuple[str, ...] = ()
    refusals: tuple[Refused, ...] = field(default=())


def driver_packages(source: str, branch: int, module: str, row: Distribution | None) -> tuple[str, ...]:
    """The metapackage of a driver: NVIDIA's repository names them nvidia-open and cuda-drivers, Ubuntu has its own names."""
    if source == NVIDIA:
        name = "nvidia-open" if module == OPEN else "cuda-drivers"
        return (name,) if branch >= nvidia.UNBRANCHED else (f"{name}-{branch}",)
    return tuple(name.format(branch=branch) for each, name in (row.drivers if row else ()) if each == module)


def driver(machine: Machine, gpus: Sequence[Gpu], wish: Mapping[str, Any], chosen: Chosen) -> Driver:
    """The driver to install for ``gpus``: branch, kernel module and source, or why that cannot be."""
    row = nvidia.distribution(machine.os)
    branch = wish["cuda_driver_branch"]
    module, refusals = _module(
        {known[1] for gpu in gpus if (known := nvidia.chip(gpu.device_id))}, str(wish["cuda_kernel_module"]), branch
    )
    source = str(wish["cuda_driver"])
    if source == AUTO:
        source = DISTRIBUTION if row and row.drivers else NVIDIA
    packages = driver_packages(source, branch, module, row)
    if not packages or (source == NVIDIA and not (row and row.repository)):
        what = f"there is no NVIDIA driver package of branch {branch} from {source} for {machine.os.pretty or machine.os.id}"
        refusals.append(Refused(what, hint=f"install the driver by hand and set cuda_driver: keep; {_NOTHING}"))
    needs = nvidia.toolkit(chosen.toolkit.version)
    if needs and branch < needs.driver[0]:
        refusals.append(too_old(chosen.toolkit.version, str(branch), f"set cuda_driver_branch: {needs.driver[0]} or newer"))
    return Driver(source, branch, module, packages, tuple(refusals))


def too_old(version: str, driver_version: str, hint: str) -> Refused:
    """A driver that does not run what this toolkit builds."""
    known = nvidia.toolkit(version)
    needed = ".".join(map(str, known.driver)) if known else "?"
    return Refused(
        f"driver {driver_version} is too old for CUDA {version}, which needs {needed} or newer", hint=f"{hint}; {_NOTHING}"
    )


def _module(generations: set[Generation], wanted: str, branch: int) -> tuple[str, list[Refused]]:
    """The kernel module that all of ``generations`` can have."""
    able = [each for each in (OPEN, CLOSED) if all(each in generation.modules for generation in generations)]
    refusals = []
    names = _plus(sorted(generation.name for generation in generations))
    if not able:
        what = f"no one kernel module drives {names} together: the older needs the closed one, the newer the open one"
        refusals.append(Refused(what, hint=f"put them into two machines, or leave one unused (llama_cpp_backend); {_NOTHING}"))
    elif wanted not in (AUTO, *able):
        what = f"cuda_kernel_module is {wanted}, and {names} needs the {able[0]} one"
        refusals.append(Refused(what, hint=f"set cuda_kernel_module: {able[0]}, or auto; {_NOTHING}"))
    last = min((each.last_branch for each in generations if each.last_branch), default=0)
    if last and branch > last:
        what = f"driver branch {branch} does not know {names} any more: {last} is the last that does"
        refusals.append(Refused(what, hint=f"set cuda_driver_branch: {last}; {_NOTHING}"))
    return (wanted if wanted in able else able[0] if able else CLOSED), refusals
