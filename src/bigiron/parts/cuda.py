"""CUDA: the toolkit that llama.cpp is built with, NVIDIA's driver where it is missing, and the GPUs' settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from bigiron.errors import Refused
from bigiron.machine import nvidia
from bigiron.machine.backends import usable
from bigiron.machine.description import Gpu
from bigiron.onhost.kinds import nvidia as kind
from bigiron.onhost.kinds.nvidia import SETTINGS
from bigiron.onhost.kinds.package import HELD
from bigiron.parts.part import HOST, Facts, Planned, Reason, Resource, Space, Watched, file_resource
from bigiron.plan import cuda, devices, reboot
from bigiron.plan.apt import Apt, Pin, Repository
from bigiron.plan.build_options import Access, Toolchain
from bigiron.plan.cuda import AUTO, NVIDIA, PYPI, Chosen, Driver
from bigiron.render import render
from bigiron.units import GIB, count

STAGE = HOST
BACKEND = "cuda"
KEEP = "keep"
UNIT = "bigiron-gpu.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
ENABLED = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
ARCHITECTURES = "CMAKE_CUDA_ARCHITECTURES"
BLACKLIST = "/etc/modprobe.d/bigiron-nouveau.conf"
NODES = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm")
COMPILERS = tuple(f"g++-{major}" for major in range(9, 17))
BUILD_BYTES = GIB
"""Objects and library of ggml-cuda for one architecture, rounded up (b11434)."""


def watch(wish: Mapping[str, Any]) -> Watched:
    """Everything where CUDA was asked for by name; else only hosts with such a GPU are asked (`watch_for_gpus`)."""
    return _watched(wish) if BACKEND in (wish["llama_cpp_backend"], *wish["llama_cpp_more_backends"]) else {}


def watch_for_gpus(wish: Mapping[str, Any]) -> dict[str, Watched]:
    return {nvidia.VENDOR: _watched(wish)} if wish["llama_cpp_backend"] == AUTO else {}


def _watched(wish: Mapping[str, Any]) -> Watched:
    drivers = {
        name
        for row in nvidia.DISTRIBUTIONS.values()
        for source in (NVIDIA, cuda.DISTRIBUTION)
        for module in (nvidia.OPEN, nvidia.CLOSED)
        for name in cuda.driver_packages(source, wish["cuda_driver_branch"], module, row)
    }
    return {
        "nvidia": [SETTINGS] if _settings(wish) else [],
        "boot": ["nvidia", "nouveau"],
        "package": [*COMPILERS, *cuda.packages(wish), *sorted(drivers)],
        "toolkit": [f"{cuda.TOOLKITS}/cuda-{nvidia.PYPI_VERSION}"],
        "device": ["/dev/nvidia*"],
        "file": [UNIT_PATH, BLACKLIST],
        "link": [ENABLED],
        "apt": ["cuda"],
    }


def gpus(facts: Facts) -> list[Gpu]:
    return [gpu for gpu in facts.machine.gpus if gpu.vendor_id == nvidia.VENDOR and usable(gpu)]


def _chosen(facts: Facts) -> Chosen:
    return cuda.choose(facts.machine, gpus(facts), facts.wish)


def _seen(facts: Facts) -> Mapping[str, Any]:
    seen: Mapping[str, Any] = facts.observed.get("nvidia", {})
    return seen


def toolchain(facts: Facts) -> Toolchain:
    chosen = _chosen(facts)
    toolkit = chosen.toolkit
    there = (
        toolkit.version if toolkit.source == PYPI else _seen(facts).get("nvcc", {}).get(toolkit.compiler, {}).get("version", "")
    )
    options = {
        ARCHITECTURES: ";".join(chosen.architectures),
        "CUDAToolkit_ROOT": toolkit.root,
        "CMAKE_CUDA_COMPILER": toolkit.compiler,
        "CMAKE_CUDA_HOST_COMPILER": f"/usr/bin/g++-{chosen.compiler}",
        **({} if toolkit.stubs else {"GGML_CUDA_NO_VMM": "ON"}),
    }
    known = nvidia.toolkit(toolkit.version)
    return Toolchain(
        BACKEND,
        f"{there} ({toolkit.source})" if there else "",
        options,
        library_path=toolkit.libraries,
        compilers=("CUDA",),
        access=_access(facts),
        drivers={"nvidia": ".".join(map(str, known.driver))} if known else {},
        widens=() if facts.wish["cuda_architectures"] or chosen.refusals else (ARCHITECTURES,),
    )


def _access(facts: Facts) -> Access:
    """The driver makes its nodes when somebody asks (nvidia-modprobe), which a hardened service may not do: a unit does it before."""
    found = devices.owners(facts.observed, (f"/dev/{each}" for each in NODES)) if "devices" in facts.observed else None
    return Access(
        NODES,
        ("char-nvidia*",),
        ("nvidia",),
        groups=found.groups if found else (),
        # the plan numbers GPUs as the bus does; by default CUDA puts the fastest first
        environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        after=("nvidia-persistenced.service", UNIT),
    )


def _driver(facts: Facts) -> Driver | None:
    """The driver that bigiron installs or installed here; None where there is no GPU, or the driver is somebody else's."""
    wish, mine = facts.wish, gpus(facts)
    if not mine or wish["cuda_driver"] == KEEP:
        return None
    found = cuda.driver(facts.machine, mine, wish, _chosen(facts))
    packaged = any(isinstance(facts.observed["packages"].get(each), str) for each in found.packages)
    theirs = "library" in _seen(facts) or "driver" in _seen(facts)
    return None if wish["cuda_driver"] == AUTO and theirs and not packaged else found


def packages(facts: Facts) -> tuple[str, ...]:
    if facts.toolchain(BACKEND) is None:
        return ()
    chosen, driver = _chosen(facts), _driver(facts)
    compiler = (f"g++-{chosen.compiler}",) if facts.release.built_here else ()
    return (*chosen.toolkit.packages, *compiler, *(driver.packages if driver else ()))


def apt(facts: Facts) -> Apt:
    if facts.toolchain(BACKEND) is None:
        return Apt()
    chosen, driver = _chosen(facts), _driver(facts)
    row = nvidia.distribution(facts.machine.os)
    architecture = nvidia.REPOSITORY_ARCHITECTURES.get(facts.machine.arch)
    repositories: tuple[Repository, ...] = ()
    if row and row.repository and architecture and NVIDIA in (chosen.toolkit.source, driver.source if driver else ""):
        uri = f"{str(facts.wish['cuda_repository_url']).rstrip('/')}/{row.repository}/{architecture}/"
        file, fingerprint = row.key
        repositories = (Repository("cuda", uri, ("./",), (fingerprint,), key_url=f"{uri}{file}"),)
    pins: tuple[Pin, ...] = ()
    if driver:
        names = ("nvidia-*", "libnvidia-*", "cuda-drivers*", "libcuda1", "xserver-xorg-video-nvidia*")
        pins = (Pin("nvidia-driver", names, f"version {driver.branch}.*"),)
    return Apt(repositories, pins, (*chosen.toolkit.packages, *(driver.packages if driver else ())))


def plan(facts: Facts, _so_far: Planned) -> Planned:
    if facts.toolchain(BACKEND) is None:
        return Planned({"cuda_gpus": 0, "cuda_wheels": []})
    chosen, driver, mine, seen = _chosen(facts), _driver(facts), gpus(facts), _seen(facts)
    toolkit = chosen.toolkit
    wheels = [each for each in nvidia.WHEELS if each.runtime or facts.release.built_here] if toolkit.source == PYPI else []
    waits, reboots, refusals = _pending(facts, driver)
    variables = {
        "cuda_toolkit_path": toolkit.root,
        "cuda_wheels": [
            {"name": each.name, "version": each.version, "file": each.file, "sha256": each.sha256} for each in wheels
        ],
        # beside the packed releases: what is fetched once for all hosts
        "cuda_wheel_folder": str(PurePosixPath(facts.release_folder).parent / "sources"),
        "cuda_gpus": len(mine),
        "cuda_settings": _settings(facts.wish),
        "cuda_blacklist": bool(driver) and _nouveau(facts),
    }
    resources = _resources(facts, variables)
    architectures = _built_for(facts)
    why = f"builds for {', '.join(architectures)} with g++-{chosen.compiler}" if chosen.compiler else ""
    reasons = [Reason("CUDA", f"{toolkit.version} from {toolkit.source}", why)]
    if driver:
        of = "NVIDIA's repository" if driver.source == NVIDIA else "the distribution"
        names = ", ".join(dict.fromkeys(known[1].name for gpu in mine if (known := nvidia.chip(gpu.device_id))))
        reasons.append(
            Reason("driver", f"{driver.branch} from {of}", f"the {driver.module} kernel module for {names}; pinned and held")
        )
    settings = [each for each in resources if each.kind == "nvidia"]
    variables["cuda_set"] = any(list(kind.differs(each.name, each.want, seen.get(SETTINGS))) for each in settings)
    space = []
    if wheels and facts.observed.get("toolkits", {}).get(toolkit.root) is None:
        space.append(Space("/opt/bigiron", "CUDA toolkit and its wheels", 2 * nvidia.PYPI_BYTES))
    if facts.release.built_here:
        space.append(Space("/var/cache/bigiron", "CUDA objects", BUILD_BYTES * max(1, len(architectures))))
    refusals += [*chosen.refusals, *(driver.refusals if driver else ()), *_two_versions(chosen, seen)]
    findings = _findings(facts, chosen, driver)
    return Planned(variables, resources, reasons, refusals, findings, space, reboots, waits)


def _built_for(facts: Facts) -> list[str]:
    """The architectures of the release, which may serve other hosts' GPUs too."""
    return [each for each in facts.release.identity.options[ARCHITECTURES].split(";") if each]


def _resources(facts: Facts, variables: Mapping[str, Any]) -> list[Resource]:
    resources = []
    if variables["cuda_wheels"]:
        want = {each["file"]: each["sha256"] for each in variables["cuda_wheels"]}
        resources.append(Resource("toolkit", str(variables["cuda_toolkit_path"]), "cuda", {"wheels": want}))
    if variables["cuda_gpus"]:
        resources.append(file_resource("cuda", UNIT_PATH, render(UNIT, variables)))
        resources.append(Resource("link", ENABLED, "cuda", {"target": UNIT_PATH}))
    if variables["cuda_blacklist"]:
        resources.append(file_resource("cuda", BLACKLIST, render("bigiron-nouveau.conf", variables)))
    wanted = _settings(facts.wish)
    if wanted and "driver" in _seen(facts):
        names = {"persistence": "persistence_mode", "power_watts": "power.limit", "ecc": "ecc.mode.pending"}
        resources.append(Resource("nvidia", SETTINGS, "cuda", {names[name]: value for name, value in wanted.items()}))
    return resources


def _settings(wish: Mapping[str, Any]) -> dict[str, Any]:
    """What a person wants of every GPU; nothing of what is left as it is."""
    words = {"on": True, "off": False}
    found: dict[str, Any] = {
        name: words[wish[f"cuda_{name}"]] for name in ("persistence", "ecc") if wish[f"cuda_{name}"] != KEEP
    }
    return {**found, **({"power_watts": wish["cuda_power_watts"]} if wish["cuda_power_watts"] else {})}


def _nouveau(facts: Facts) -> bool:
    """Whether nouveau would take the GPU, or did, and nobody else keeps it out."""
    return str(_seen(facts).get("blacklist", BLACKLIST)) == BLACKLIST


def _pending(facts: Facts, driver: Driver | None) -> tuple[str, list[str], list[Refused]]:
    """What the later stages wait for, why a reboot is pending, and why the driver cannot be brought."""
    seen, mine = _seen(facts), gpus(facts)
    boot = facts.observed.get("boot")
    if not mine or not boot:
        return "", [], []
    loaded = seen.get("driver", {}).get("loaded", "")
    mismatch = reboot.other_module(boot, "nvidia", seen.get("library", "")) if loaded else ""
    reboots = [f"{mismatch}; CUDA does not start until the two are the same"] if mismatch else []
    if driver is None:
        return "", reboots, _without_driver(facts, loaded)
    installed = all(isinstance(facts.observed["packages"].get(each), str) for each in driver.packages)
    refusals = [] if installed or loaded else [*_no_headers(facts, boot), *_secure_boot(facts)]
    if loaded:
        return "", reboots, refusals
    nouveau = any(gpu.driver == "nouveau" for gpu in mine) or "nouveau" in boot
    if installed and nouveau:
        reboots.append("nouveau drives the GPU until the next boot, and keeps NVIDIA's driver out")
    elif installed:
        reboots.append("NVIDIA's driver is installed and not loaded")
    return "NVIDIA's driver is not loaded", reboots, refusals


def _without_driver(facts: Facts, loaded: str) -> list[Refused]:
    """A driver that is left alone, and is not there or too old."""
    chosen = _chosen(facts)
    known = nvidia.toolkit(chosen.toolkit.version)
    if loaded and known and nvidia.numbers(loaded) < known.driver:
        hint = "set cuda_driver: nvidia or distribution to have it replaced, or cuda_toolkit_version to an older one"
        return [cuda.too_old(chosen.toolkit.version, loaded, hint)]
    if loaded or not facts.wish["llama_cpp_require_gpu"]:
        return []
    by = next((gpu.driver for gpu in gpus(facts) if gpu.driver), None)
    what = f"no driver: {by} drives the GPU, not NVIDIA's driver" if by else "no driver: NVIDIA's driver is not loaded"
    return [
        Refused(
            what, hint="set cuda_driver: auto to have it installed; or load it (modprobe nvidia; dmesg says why it does not)"
        )
    ]


def _no_headers(facts: Facts, boot: Mapping[str, Any]) -> list[Refused]:
    """DKMS builds nothing without them, and says so only in its log."""
    lacking = reboot.no_headers(boot)
    brought = {str(each).partition("=")[0] for each in facts.wish["base_extra_packages"]}
    if not lacking or f"linux-headers-{boot['system']['kernel']}" in brought:
        return []
    what, _, install = lacking.rpartition(": ")
    hint = f"{install} (base_extra_packages), then run this again; the driver was not touched"
    return [Refused(f"the driver's module cannot be built: {what}", hint=hint)]


def _secure_boot(facts: Facts) -> list[Refused]:
    state = _seen(facts).get("secure_boot", {})
    if not state.get("on") or state.get("enrolled"):
        return []
    key = state.get("key")
    if key:
        how = f"mokutil --import {key}, set a password, reboot, and choose Enroll MOK on the machine's own screen"
        what = f"Secure Boot is on and the key of this host's modules ({key}) is {'not enrolled' if state['enrolled'] is False else 'not known to be enrolled'}"
    else:
        how = "make one (Debian: dkms generate_mok; Ubuntu: update-secureboot-policy --new-key), mokutil --import it, reboot, choose Enroll MOK"
        what = "Secure Boot is on and this host has no key to sign modules with"
    return [
        Refused(f"{what}: the kernel would reject the driver", hint=f"{how}; then run this again. The driver was not touched")
    ]


def _two_versions(chosen: Chosen, seen: Mapping[str, Any]) -> list[Refused]:
    """Headers and compiler of the toolkit to be used are of two versions: what compiles then fails or, worse, runs wrongly."""
    mine = seen.get("nvcc", {}).get(chosen.toolkit.compiler, {})
    version, headers = mine.get("version", ""), mine.get("headers", "")
    if not version or not headers or nvidia.numbers(version)[:2] == nvidia.numbers(headers):
        return []
    what = f"{chosen.toolkit.compiler} is {version} and the headers beside it are {headers}"
    return [Refused(what, hint="install both from one source, or set cuda_toolkit_source: pypi, which has a folder of its own")]


def _findings(facts: Facts, chosen: Chosen, driver: Driver | None) -> list[str]:
    found = []
    seen = _seen(facts)
    others = {
        path: each["version"]
        for path, each in seen.get("nvcc", {}).items()
        if path != chosen.toolkit.compiler and each["version"] and not _same(each["version"], chosen.toolkit.version)
    }
    if others:
        told = ", ".join(f"{path} ({version})" for path, version in others.items())
        found.append(
            f"other compilers of CUDA are here and not used: {told}; the build takes {chosen.toolkit.compiler} by its full path"
        )
    if not gpus(facts):
        found.append("no driver: there is no NVIDIA GPU here, so CUDA is built and finds no device on this host")
    loaded = seen.get("driver", {})
    generations = {known[1] for gpu in gpus(facts) if (known := nvidia.chip(gpu.device_id))}
    wrong = sorted(each.name for each in generations if loaded and loaded["module"] not in each.modules)
    if wrong and driver is None:
        found.append(f"the {loaded['module']} kernel module is loaded, which does not drive {', '.join(wrong)}")
    pending = [
        pci for pci, gpu in seen.get(SETTINGS, {}).items()
        if isinstance(gpu, Mapping) and None not in (gpu["ecc.mode.current"], gpu["ecc.mode.pending"]) and gpu["ecc.mode.current"] != gpu["ecc.mode.pending"]
    ]  # fmt: skip
    if pending:
        found.append(f"ECC of {count(len(pending), 'GPU')} changes with the next boot")
    return found


def _same(version: str, planned: str) -> bool:
    """Whether ``version`` is the planned one, which may be less exact ("13.0" of NVIDIA's repository)."""
    wanted = nvidia.numbers(planned)
    return nvidia.numbers(version)[: len(wanted)] == wanted


def lock(facts: Facts, variables: Mapping[str, Any]) -> dict[str, Any]:
    mine = facts.toolchain(BACKEND)
    if mine is None:
        return {}
    seen = _seen(facts)
    held = [name for name in facts.observed["packages"].get(HELD, ()) if name in packages(facts)]
    return {
        "cuda": {
            "toolkit": mine.version,
            "architectures": ";".join(_built_for(facts)),
            "wheels": {each["file"]: each["sha256"] for each in variables["cuda_wheels"]},
            "driver": seen.get("driver", {}).get("loaded", ""),
            "held": held,
        }
    }


def remove(_wish: Mapping[str, Any], _models: bool) -> dict[str, Any]:
    return {"cuda_toolkit_path": f"{cuda.TOOLKITS}/cuda-{nvidia.PYPI_VERSION}"}
