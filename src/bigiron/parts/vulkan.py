"""Vulkan: loader, shader compiler, and the one driver that is meant for the GPUs at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bigiron.errors import Refused
from bigiron.machine.backends import AUTO, MESA, SOFTWARE, named
from bigiron.parts import cuda
from bigiron.parts.part import HOST, Facts, Planned, Reason, Watched
from bigiron.plan import devices
from bigiron.plan.build_options import Access, Toolchain

STAGE = HOST
BACKEND = "vulkan"
BUILD = ("glslc", "libvulkan-dev", "spirv-headers")
"""Of Debian and Ubuntu; ggml-vulkan's CMakeLists.txt needs all three."""
LOADER, DRIVERS = "libvulkan1", "mesa-vulkan-drivers"
PACKAGES = (*BUILD, LOADER, DRIVERS)
NVIDIA = "10de"
RENDER = "/dev/dri/renderD*"
WATCHED: Watched = {"device": [RENDER, "/dev/nvidia*"], "group": ["render", "video"]}
CACHES = ("MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH")
"""Where Mesa and NVIDIA's driver keep compiled shaders (Mesa's envvars.rst; NVIDIA's README, OpenGL environment variables)."""
MANIFESTS: Mapping[str, str] = {"1002": "*radeon*", "8086": "*intel*", NVIDIA: "*nvidia*", MESA: "*lvp*"}
"""By vendor, the driver's manifest in /usr/share/vulkan/icd.d (the loader's VK_LOADER_DRIVERS_SELECT, 1.3.234 and later)."""


def watch(wish: Mapping[str, Any]) -> Watched:
    """The nodes where Vulkan was asked for by name; else only hosts with a GPU that it is chosen for are asked (`watch_for_gpus`)."""
    return WATCHED if BACKEND in (wish["llama_cpp_backend"], *wish["llama_cpp_more_backends"]) else {}


def watch_for_gpus(wish: Mapping[str, Any]) -> dict[str, Watched]:
    return {named(BACKEND).vendors[0]: WATCHED} if wish["llama_cpp_backend"] == AUTO else {}


def toolchain(facts: Facts) -> Toolchain:
    have = facts.observed["packages"]
    versions = [str(have[name]) for name in BUILD if isinstance(have.get(name), str)]
    version = ", ".join(f"{name} {have[name]}" for name in BUILD) if len(versions) == len(BUILD) else ""
    return Toolchain(BACKEND, version, access=_access(facts))


def _access(facts: Facts) -> Access:
    gpus = facts.backend.gpus
    vendors = {gpu.vendor_id for gpu in gpus}
    select = {"VK_LOADER_DRIVERS_SELECT": ",".join(dict.fromkeys(MANIFESTS[gpu.vendor_id] for gpu in gpus))}
    if any(gpu.driver == SOFTWARE for gpu in gpus):
        # llama.cpp passes over devices of type CPU unless they are named; LLVM compiles the shaders in the process
        return Access(environment={**select, "GGML_VK_VISIBLE_DEVICES": "0"}, writable_code=True, cache=CACHES)
    nodes, allow = [RENDER.removeprefix("/dev/")], ["char-drm"]
    if NVIDIA in vendors:
        nodes += cuda.NODES
        allow.append("char-nvidia*")
    found = devices.owners(facts.observed, (f"/dev/{each}" for each in nodes)) if "devices" in facts.observed else None
    groups = found.groups if found else ()
    return Access(tuple(nodes), tuple(allow), groups=groups, environment=select, cache=CACHES)


def packages(facts: Facts) -> tuple[str, ...]:
    if facts.toolchain(BACKEND) is None:
        return ()
    # NVIDIA's Vulkan driver comes with its own
    drivers = (DRIVERS,) if any(gpu.vendor_id != NVIDIA for gpu in facts.backend.gpus) else ()
    return (LOADER, *drivers, *(BUILD if facts.release.built_here else ()))


def plan(facts: Facts, _so_far: Planned) -> Planned:
    mine = facts.toolchain(BACKEND)
    if mine is None:
        return Planned({"vulkan_drivers": []})
    drivers = mine.access.environment["VK_LOADER_DRIVERS_SELECT"]
    why = "the only ones the service loads: llvmpipe, which computes on the CPU, is never taken by accident"
    if "*lvp*" in drivers:
        why = "llama_cpp_software_gpu_mib asks for a driver that computes on the CPU"
    refusals = []
    if any(gpu.vendor_id == NVIDIA and gpu.driver != "nvidia" for gpu in facts.backend.gpus):
        what = "Vulkan on an NVIDIA GPU needs NVIDIA's own driver, which is not loaded"
        refusals.append(Refused(what, hint="install it, then run this again; nothing was changed"))
    if mine.access.devices and "devices" in facts.observed:
        problems = devices.owners(facts.observed, (RENDER,)).problems
        refusals += [
            Refused(each, hint="the driver's udev rules give the nodes to render: udevadm trigger, or reboot")
            for each in problems
        ]
    return Planned({"vulkan_drivers": drivers.split(",")}, reasons=[Reason("Vulkan drivers", drivers, why)], refusals=refusals)


def lock(facts: Facts, variables: Mapping[str, Any]) -> dict[str, Any]:
    mine = facts.toolchain(BACKEND)
    return {"vulkan": {"built with": mine.version, "drivers": variables["vulkan_drivers"]}} if mine else {}
