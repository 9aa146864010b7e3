"""ROCm: HIP's compiler and libraries for the AMD GPUs at hand, from AMD's repository or from the distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bigiron.errors import Refused
from bigiron.machine.backends import AUTO, usable
from bigiron.machine.description import Gpu
from bigiron.parts import llama_cpp
from bigiron.parts.part import HOST, Facts, Planned, Reason, Resource, Space, Watched
from bigiron.plan import devices, rocm, sources
from bigiron.plan.apt import Apt, Pin, Repository
from bigiron.plan.build_options import Access, Toolchain
from bigiron.plan.rocm import AMD, DISTRIBUTION, Chosen, Source
from bigiron.units import GIB

STAGE = HOST
BACKEND = "hip"
VENDOR = "1002"
KFD, RENDER = "/dev/kfd", "/dev/dri/renderD*"
UNNAMED, OLD_HEADERS = "rocm-core", "libamdhip64-dev"
"""AMD's package without the version in its name, which has the files of the one with it; the distribution's HIP, which clang finds before AMD's."""
PACKAGES_BYTES = 5 * GIB
"""Debian's packages of ROCm 6.4 and what they need take 4.3 GiB (counted on 2026-12-03) before the downloads; AMD's were not counted."""
GPU_TARGETS_SINCE = 7000
"""A build that knows GPU_TARGETS (llama.cpp pull requests #16642 and #16803, October 2025). CMake's own name is known to the ones before."""
BY_HAND = "llama_cpp_backend: cpu or vulkan leaves ROCm alone"


def watch(wish: Mapping[str, Any]) -> Watched:
    """Everything where HIP was asked for by name; else only hosts with such a GPU are asked (`watch_for_gpus`)."""
    return _watched(wish) if BACKEND in (wish["llama_cpp_backend"], *wish["llama_cpp_more_backends"]) else {}


def watch_for_gpus(wish: Mapping[str, Any]) -> dict[str, Watched]:
    return {VENDOR: _watched(wish)} if wish["llama_cpp_backend"] == AUTO else {}


def _watched(wish: Mapping[str, Any]) -> Watched:
    packages, folders = rocm.anything(wish["rocm_version"])
    return {
        "package": [UNNAMED, OLD_HEADERS, *packages],
        "directory": folders,
        "device": [KFD, RENDER],
        "group": ["render", "video"],
        "boot": [],
        "apt": ["rocm"],
    }


def _folder(found: Source) -> str:
    return found.compiler.rpartition("/")[0]


def _source(facts: Facts) -> Source | None:
    return rocm.source(facts.wish["rocm_source"], facts.wish["rocm_version"], rocm.platform(facts.machine.os))


def _chosen(facts: Facts, found: Source) -> Chosen:
    wish = facts.wish
    return rocm.choose(_gpus(facts), found, more=wish["rocm_targets"], forced=wish["rocm_gfx_override"])


def _gpus(facts: Facts) -> tuple[Gpu, ...]:
    """The AMD GPUs to compile for: those that compute, or, where HIP is built in beside another backend, those that are there."""
    mine = facts.backend.gpus if facts.backend.main.name == BACKEND else tuple(filter(usable, facts.machine.gpus))
    return tuple(gpu for gpu in mine if gpu.vendor_id == "1002")


def toolchain(facts: Facts) -> Toolchain:
    found = _source(facts)
    if found is None:
        return Toolchain(BACKEND, "")
    chosen = _chosen(facts, found)
    name = _option(facts)
    return Toolchain(
        BACKEND,
        _version(facts, found),
        options={"CMAKE_HIP_COMPILER": found.compiler, name: ";".join(chosen.targets)},
        environment=_environment(found),
        library_path=(f"{found.root}/lib",) if found.name == AMD else (),
        compilers=("HIP",),
        access=_access(facts, chosen),
        widens=() if chosen.problems else (name,),
    )


def _option(facts: Facts) -> str:
    return "GPU_TARGETS" if sources.read(facts.wish).build_number >= GPU_TARGETS_SINCE else "CMAKE_HIP_ARCHITECTURES"


def _built_for(facts: Facts) -> str:
    """The targets of the release, which may serve other hosts' GPUs too."""
    return facts.release.identity.options[_option(facts)]


def _environment(found: Source) -> dict[str, str]:
    """Everything, so that neither another /opt/rocm nor a hipconfig in the PATH decides."""
    libraries = {"HIP_DEVICE_LIB_PATH": found.device_libs} if found.device_libs else {}
    return {"ROCM_PATH": found.root, "HIP_PATH": found.root, "HIP_PLATFORM": "amd", **libraries}


def _version(facts: Facts, found: Source) -> str:
    if found.name == AMD:
        return f"{found.version} (AMD)"
    have = facts.observed["packages"]
    there = [f"{name} {have[name]}" for name in found.build if isinstance(have.get(name), str)]
    return ", ".join(there) if len(there) == len(found.build) else ""


def _access(facts: Facts, chosen: Chosen) -> Access:
    return Access(
        ("kfd", "dri/renderD*"),
        ("/dev/kfd", "char-drm"),
        ("amdgpu",),
        devices.owners({"devices": {}, **facts.observed}, (KFD, RENDER)).groups,
        {"HSA_OVERRIDE_GFX_VERSION": chosen.override} if chosen.override else {},
        # libhsakmt takes memory for its queues that is written and executed (allocate_exec_aligned_memory_cpu in queues.c)
        writable_code=True,
    )


def packages(facts: Facts) -> tuple[str, ...]:
    found = _source(facts) if facts.toolchain(BACKEND) else None
    return (*found.runtime, *(found.build if facts.release.built_here else ())) if found else ()


def apt(facts: Facts) -> Apt:
    found, place = _source(facts), rocm.platform(facts.machine.os)
    if facts.toolchain(BACKEND) is None or found is None or place is None or found.name != AMD:
        return Apt()
    wish = facts.wish
    repository = Repository(
        "rocm",
        f"{wish['rocm_repository_url'].rstrip('/')}/{found.version}",
        (place.suite,),
        tuple(wish["rocm_key_fingerprints"]),
        ("main",),
        key_url=wish["rocm_key_url"],
        architectures=("amd64",),
    )
    # AMD's own rule, for our packages alone; it fails before anything is installed where the repository lacks one
    return Apt((repository,), (Pin("rocm", packages(facts), "release o=repo.radeon.com", 600),))


def plan(facts: Facts, _so_far: Planned) -> Planned:
    if facts.toolchain(BACKEND) is None:
        return Planned({"rocm_root": "", "rocm_compiler": "", "rocm_cards": [], "rocm_kernels": []})
    found = _source(facts)
    if found is None:
        return Planned(refusals=[_no_source(facts)])
    place, chosen = rocm.platform(facts.machine.os), _chosen(facts, found)
    if place is None or place.manager != "apt":
        return Planned(refusals=[Refused("ROCm is installed with apt only in this version", hint=BY_HAND)])
    refusals = [Refused(what, hint=f"{hint}; nothing was changed") for what, hint in chosen.problems]
    refusals += [*_arch(facts, found), *_in_the_way(facts, found), *_driver(facts)]
    kernel = rocm.kernel_problem(facts.machine.kernel, found, place)
    findings = _next_kernel(facts, found)
    if kernel and facts.wish["rocm_any_kernel"]:
        findings.append(f"{kernel}; rocm_any_kernel says to go on")
    elif kernel:
        hint = "boot one of those, choose another rocm_version, or set rocm_any_kernel: true to try it; nothing was changed"
        refusals.append(Refused(kernel, hint=hint))
    if found.name == AMD and place.supported and (rest := [gfx for gfx in chosen.cards if gfx not in place.supported]):
        findings.append(
            f"AMD supports ROCm on {place.name} for {', '.join(place.supported)}; {', '.join(rest)} may work, and is not supported"
        )
    where = llama_cpp.PREFIX if found.name == AMD else "/usr"
    missing = set(packages(facts)) - set(facts.observed["packages"])
    return Planned(
        {
            "rocm_root": found.root,
            "rocm_compiler": found.compiler if facts.release.built_here else "",
            "rocm_cards": list(chosen.cards),
            "rocm_kernels": [] if facts.wish["rocm_any_kernel"] or found.name != AMD else rocm.kernels(found, place),
        },
        # what has the role look, once the packages are there
        [Resource("directory", _folder(found) if facts.release.built_here else found.root, "rocm")],
        [
            Reason("ROCm", f"{found.version} from {'AMD' if found.name == AMD else place.name}", _why(facts, found)),
            Reason("GPU target", _built_for(facts) or "none", chosen.why),
        ],
        refusals,
        findings,
        space=[Space(where, "ROCm", PACKAGES_BYTES)] if missing else [],
    )


def _why(facts: Facts, found: Source) -> str:
    if facts.wish["rocm_source"] != "auto":
        return "rocm_source says so"
    return "AMD has a repository for this system" if found.name == AMD else "AMD has no repository for this system"


def _no_source(facts: Facts) -> Refused:
    place, wish = rocm.platform(facts.machine.os), facts.wish
    needs = ".".join(map(str, rocm.MINIMUM))
    if place is None:
        shown = facts.machine.os.pretty or facts.machine.os.id
        return Refused(f"which ROCm {shown} can have is not known (roles/rocm/vars has no file for it)", hint=BY_HAND)
    if wish["rocm_source"] == AMD:
        return Refused(f"AMD's repository has no suite for {place.name}", hint=f"set rocm_source: auto; {BY_HAND}")
    hint = "set rocm_source: amd" if wish["rocm_source"] == DISTRIBUTION and place.suite else BY_HAND
    has = f"packages HIP {place.packaged}" if place.packaged else "packages no HIP"
    return Refused(f"{place.name} {has}, and llama.cpp needs {needs} or later", hint=f"{hint}; nothing was changed")


def _arch(facts: Facts, found: Source) -> list[Refused]:
    if found.name != AMD or facts.machine.arch in ("x86_64", "amd64"):
        return []
    return [Refused(f"AMD's repository is for x86-64 alone, and this machine is {facts.machine.arch}", hint=BY_HAND)]


def _in_the_way(facts: Facts, found: Source) -> list[Refused]:
    """Packages of others that clash with AMD's: dpkg would be left half configured, or old headers would be compiled."""
    have = facts.observed["packages"]
    unnamed, headers = have.get(UNNAMED), have.get(OLD_HEADERS)
    refusals = []
    if found.name == AMD and isinstance(unnamed, str) and unnamed.startswith(f"{found.version}."):
        what = f"{UNNAMED} {unnamed} is installed, and has the files of the package {UNNAMED}{found.version} that bigiron uses"
        hint = f"apt remove {UNNAMED} (and what needs it), or set another rocm_version; nothing was changed"
        refusals.append(Refused(what, hint=hint))
    if found.name == AMD and isinstance(headers, str) and facts.release.built_here:
        what = f"{OLD_HEADERS} {headers} of the distribution is installed: clang takes its headers in /usr/include for those of ROCm {found.version}"
        refusals.append(Refused(what, hint=f"apt remove {OLD_HEADERS}, or set rocm_source: distribution; nothing was changed"))
    return refusals


def _driver(facts: Facts) -> list[Refused]:
    """Why the GPUs that are to compute cannot: no driver, another one, no node, or a node that nobody may open."""
    if facts.backend.main.name != BACKEND:
        return []
    found = facts.observed.get("devices", {})
    refusals = []
    for driver in dict.fromkeys(gpu.driver for gpu in facts.backend.gpus):
        mine = ", ".join(gpu.pci for gpu in facts.backend.gpus if gpu.driver == driver)
        if driver is None:
            firmware = "firmware-amd-graphics (non-free-firmware)" if facts.machine.os.id == "debian" else "linux-firmware"
            what = f"no driver drives the AMD GPU {mine}, so there is no {KFD}"
            hint = f"dmesg | grep amdgpu says why: {firmware} may be missing, or nomodeset or a blacklist keeps amdgpu away; then reboot"
            refusals.append(Refused(what, hint=hint))
        elif driver != "amdgpu":
            use = "is kept for a virtual machine" if driver == "vfio-pci" else "cannot compute with it"
            refusals.append(
                Refused(f"the AMD GPU {mine} has the driver {driver}: it {use}", hint=f"bind it to amdgpu; {BY_HAND}")
            )
    if refusals or not facts.backend.gpus:
        return refusals
    if missing := [
        node for node, there in ((KFD, KFD in found), (RENDER, any("/renderD" in path for path in found))) if not there
    ]:
        inside = facts.machine.virtualization not in ("", "none")
        hint = "dmesg | grep kfd says why: a kernel without CONFIG_HSA_AMD, or a slot without PCIe atomics"
        if inside:
            hint = f"a container must be given them, a virtual machine the GPU itself; else {hint}"
        refusals.append(Refused(f"the driver amdgpu runs, and there is no {' and no '.join(missing)}", hint=hint))
    refusals += [
        Refused(problem, hint="the driver's udev rules give the nodes to render: udevadm trigger, or reboot")
        for problem in devices.owners({"devices": found}, (KFD, RENDER)).problems
    ]
    return refusals


def _next_kernel(facts: Facts, found: Source) -> list[str]:
    system, place = facts.observed.get("boot", {}).get("system", {}), rocm.platform(facts.machine.os)
    newest = system.get("newest") or facts.machine.kernel
    problem = rocm.kernel_problem(newest, found, place) if place and newest != facts.machine.kernel else ""
    return [f"after the next boot: {problem}"] if problem else []


def lock(facts: Facts, variables: Mapping[str, Any]) -> dict[str, Any]:
    mine, found = facts.toolchain(BACKEND), _source(facts)
    if mine is None or found is None:
        return {}
    return {"rocm": {"built with": mine.version, "root": variables["rocm_root"], "targets": _built_for(facts).split(";")}}
