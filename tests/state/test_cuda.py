"""CUDA: the toolkit is the pinned one and its programs start, the driver drives the GPUs, and they are set as asked."""

import re

from bigiron.judge.checks import check

UNIT = "bigiron-gpu.service"
DRIVER = "/proc/driver/nvidia/version"
FIELDS = {"persistence": "persistence_mode", "power_watts": "power.limit", "ecc": "ecc.mode.pending"}


def unpacked(plan):
    return plan.get("cuda_wheels") or []


def compiles(plan):
    return any(each["name"] == "nvidia-cuda-nvcc" for each in unpacked(plan))


def gpus(plan):
    return plan.get("cuda_gpus") or 0


def settings(plan):
    return plan.get("cuda_settings") or {}


def look(plan):
    """What the collector is to look at on the host."""
    root = plan.get("cuda_toolkit_path")
    commands = {}
    if compiles(plan):
        commands["nvcc"] = [f"{root}/bin/nvcc", "--version"]
    if unpacked(plan):
        commands["cublas"] = ["ldd", f"{root}/lib/libcublas.so.13"]
    if gpus(plan) and settings(plan):
        query = ",".join(FIELDS[name] for name in settings(plan))
        commands["gpus"] = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    return {"commands": commands, **({"texts": [DRIVER], "units": [UNIT]} if gpus(plan) else {})}


@check("cuda.compiler", when=compiles)
def test_the_compiler_is_the_pinned_one(plan, found, note):
    version = re.search(r"V(\d+\.\d+\.\d+)", found["commands"]["nvcc"]["out"])
    note(f"nvcc is {version.group(1) if version else 'of no version'}")
    assert version
    assert plan["cuda_toolkit_path"].endswith(f"/cuda-{version.group(1)}")


@check("cuda.libraries", when=unpacked)
def test_its_libraries_find_each_other(plan, found, note):
    said = found["commands"]["cublas"]["out"]
    missing = re.findall(r"(\S+) => not found", said)
    note(f"missing: {', '.join(missing) or 'none'}")
    # the folder is not on the loader's own path: the release brings it (RPATH), so its neighbours may be missing here
    assert not [name for name in missing if not re.match(r"libcu(blas|blasLt|dart)\.", name)]
    assert "libc.so" in said


@check("cuda.driver", "on {host}: modprobe nvidia; dmesg says why it does not load", when=gpus)
def test_nvidias_driver_is_loaded(found, note):
    assert not found.absent("texts", DRIVER), "NVIDIA's driver is not loaded"
    note(found["texts"][DRIVER].splitlines()[0])


@check("cuda.nodes", "on {host}: systemctl status " + UNIT, when=gpus)
def test_the_unit_that_makes_the_nodes_ran(found, note):
    unit = found["units"][UNIT]
    note(f"{UNIT} is {unit['ActiveState']}, {unit['UnitFileState']}")
    assert (unit["ActiveState"], unit["UnitFileState"]) == ("active", "enabled")


@check("cuda.settings", when=lambda plan: gpus(plan) and settings(plan))
def test_every_gpu_is_set_as_asked(plan, found, note):
    lines = [line.split(", ") for line in found["commands"]["gpus"]["out"].splitlines()]
    note(f"{', '.join(FIELDS[name] for name in settings(plan))}: {lines}")
    assert len(lines) == gpus(plan)
    for line in lines:
        for value, have in zip(settings(plan).values(), line, strict=True):
            if "N/A" not in have:
                assert (have == ("Enabled" if value else "Disabled")) if isinstance(value, bool) else float(have) == value
