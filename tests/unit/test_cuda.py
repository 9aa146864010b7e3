"""Part cuda: what is planned for which GPU, and every combination that must be refused before anything is installed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.fixtures.hostfacts import as_planned, fact, machine, virgin
from tests.fixtures.nvidia import BOOT, KERNEL, LOADED, P40, RTX_4090, RTX_5090, SEEN, T4, V100, box, facts

from bigiron import parts
from bigiron.errors import BigironError
from bigiron.machine import nvidia
from bigiron.machine.description import Machine, OperatingSystem
from bigiron.machine.tables import GPUS
from bigiron.parts import cuda
from bigiron.parts.difference import diff
from bigiron.parts.part import Planned
from bigiron.parts.planner import HostPlan, plan_hosts

DEBIAN_13 = OperatingSystem("debian", "13", "Debian 13", "trixie")
NOBLE = OperatingSystem("ubuntu", "24.04", "Ubuntu 24.04", "noble", "debian")
WHEELS = f"{cuda.cuda.TOOLKITS}/cuda-13.5.37"


def plan(host: Machine, *arguments: Any, **wish: Any) -> HostPlan:
    found = plan_hosts([facts(host, *arguments, **wish)], [])["a"]
    if isinstance(found, BigironError):
        raise found
    return found


def refused(found: HostPlan) -> str:
    return "; ".join(f"{each.what} -> {each.hint}" for each in found.planned.refusals)


def on_cpu(architectures: list[str], **wish: Any) -> HostPlan:
    """CUDA asked for on a host without a GPU."""
    return plan(machine(), llama_cpp_backend="cuda", llama_cpp_require_gpu=False, cuda_architectures=architectures, **wish)


def test_a_host_without_nvidia_plans_nothing_and_watches_nothing() -> None:
    found = plan_hosts([fact("a")], [])["a"]
    assert isinstance(found, HostPlan)
    assert not [each.id for each in found.planned.resources if each.part == "cuda"]
    assert not any("nvidia" in each for each in found.variables["base_packages"])
    assert {"nvidia", "toolkit", "apt", "boot"} & set(parts.watch(fact("a").wish)) == set()
    assert "10de" in parts.watch_for_gpus(fact("a").wish)
    assert parts.watch_for_gpus(fact("a", llama_cpp_backend="cpu").wish) == {}
    assert "nvidia" in parts.watch(fact("a", llama_cpp_backend="cuda").wish)


def test_the_build_of_a_host_without_a_gpu_is_told_its_architecture() -> None:
    found = on_cpu(["89"])
    assert refused(found) == ""
    options = found.variables["llama_cpp_options"]
    assert {name: options[name] for name in options if "CUDA" in name} == {
        "GGML_CUDA": "ON", "GGML_CUDA_NCCL": "OFF", "GGML_CUDA_NO_VMM": "ON", "CMAKE_CUDA_ARCHITECTURES": "89-real",
        "CUDAToolkit_ROOT": WHEELS, "CMAKE_CUDA_COMPILER": f"{WHEELS}/bin/nvcc", "CMAKE_CUDA_HOST_COMPILER": "/usr/bin/g++-12",
    }  # fmt: skip
    assert found.variables["llama_cpp_library_path"] == [f"{WHEELS}/lib"]
    assert found.release.identity.toolchains == {"cuda": "13.5.37 (pypi)"}
    assert found.release.identity.drivers == {"nvidia": "580.65.6"}
    assert "g++-12" in found.variables["base_packages"]
    assert any(each.startswith("no driver") for each in found.planned.findings)
    assert found.variables["llama_server_gpu"] == {}


def test_without_architecture_and_gpu_nothing_is_guessed() -> None:
    assert "cuda_architectures" in refused(on_cpu([]))


@pytest.mark.parametrize(
    ("asked", "options"),
    [(["90", "120a", "121f"], "90-real;120a-real;121f-real"), (["89", "89", "75-virtual"], "89-real;75-virtual")],
)
def test_architectures_keep_their_order_and_stand_once(asked: list[str], options: str) -> None:
    assert on_cpu(asked).variables["llama_cpp_options"]["CMAKE_CUDA_ARCHITECTURES"] == options


@pytest.mark.parametrize("wrong", ["12.1", "sm_90", "native", "No CUDA devices found", "all"])
def test_what_is_no_architecture_is_refused_with_what_would_be(wrong: str) -> None:
    with pytest.raises(BigironError) as refusal:
        on_cpu([wrong])
    assert "89 for 8.9" in (refusal.value.hint or "")


@pytest.mark.parametrize(
    ("devices", "wish", "system", "words"),
    [
        # CUDA 13 cannot build for Pascal, and auto knows a source that can
        ((P40,), {"cuda_toolkit_source": "pypi"}, {}, 'architecture 61-real -> set cuda_toolkit_source: nvidia and cuda_toolkit_version: "12.9"'),
        ((V100,), {"cuda_toolkit_source": "nvidia", "cuda_toolkit_version": "13.0"}, {}, "architecture 70-real"),
        ((RTX_5090,), {"cuda_toolkit_source": "nvidia", "cuda_toolkit_version": "12.6"}, {}, "architecture 120-real"),
        ((RTX_4090,), {"cuda_toolkit_source": "distribution", "cuda_architectures": ["75"]}, {"os": NOBLE}, ""),
        ((RTX_5090,), {"cuda_toolkit_source": "distribution"}, {}, "CUDA 11.8.89 does not build for architecture 120-real"),
        # a new C library under old headers
        ((RTX_4090,), {"cuda_toolkit_source": "nvidia", "cuda_toolkit_version": "12.8"}, {"os": DEBIAN_13, "libc": "glibc 2.41"}, "glibc 2.41"),
        # no g++ of the distribution is old enough
        ((RTX_4090,), {"cuda_toolkit_source": "nvidia", "cuda_toolkit_version": "11.8"}, {"os": DEBIAN_13}, "takes g++ up to 11"),
        ((RTX_4090,), {"cuda_toolkit_source": "nvidia", "cuda_toolkit_version": "10.2"}, {}, "older than any"),
        ((RTX_4090,), {"cuda_toolkit_version": "12.4", "cuda_toolkit_source": "pypi"}, {}, "the source pypi has 13.5.37"),
        ((RTX_4090,), {"cuda_toolkit_source": "pypi"}, {"arch": "aarch64"}, "no CUDA toolkit from pypi"),
        ((RTX_4090,), {"cuda_driver_branch": 535}, {}, "driver 535 is too old for CUDA 13.5.37, which needs 580.65.6"),
        ((P40,), {"cuda_driver_branch": 590}, {}, "590 does not know Pascal any more: 580"),
        ((RTX_5090,), {"cuda_kernel_module": "closed"}, {}, "Blackwell needs the open one"),
        ((P40,), {"cuda_kernel_module": "open"}, {}, "Pascal needs the closed one"),
        ((P40, RTX_5090), {"cuda_architectures": ["75"]}, {}, "no one kernel module drives Blackwell, Pascal together"),
        (("ffff",), {}, {}, "the architecture of 10de:ffff is not known"),
        ((RTX_4090,), {"cuda_driver": "distribution"}, {}, "no NVIDIA driver package"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(
    devices: tuple[str, ...], wish: dict[str, Any], system: dict[str, Any], words: str
) -> None:
    told = refused(plan(box(*devices, **system), **wish))
    assert words in told if words else told == ""
    assert not words or " -> " in told


def test_an_old_gpu_gets_the_last_toolkit_and_module_that_know_it() -> None:
    found = plan(box(P40))
    assert refused(found) == ""
    assert found.variables["llama_cpp_options"]["CMAKE_CUDA_COMPILER"] == "/usr/local/cuda-12.9/bin/nvcc"
    assert {"cuda-nvcc-12-9", "cuda-drivers-580"} <= set(found.variables["base_packages"])
    assert found.variables["base_repositories"][0]["uri"].endswith("/debian12/x86_64/")


def test_g_plus_plus_is_one_that_the_toolkit_takes_and_the_default_where_it_does() -> None:
    assert plan(box(RTX_4090, os=NOBLE)).variables["llama_cpp_options"]["CMAKE_CUDA_HOST_COMPILER"] == "/usr/bin/g++-13"
    old = plan(box(RTX_4090, os=NOBLE), cuda_toolkit_source="distribution")
    assert old.variables["llama_cpp_options"]["CMAKE_CUDA_HOST_COMPILER"] == "/usr/bin/g++-12"
    assert "allow-unsupported" not in str(old.variables)


@pytest.mark.parametrize(
    ("device", "system", "package"),
    [
        (RTX_4090, {}, "nvidia-open-580"), (RTX_5090, {}, "nvidia-open-580"), (T4, {"os": DEBIAN_13}, "nvidia-open-580"),
        (V100, {}, "cuda-drivers-580"), (RTX_4090, {"os": NOBLE}, "nvidia-driver-580-server-open"), (P40, {"os": NOBLE}, "nvidia-driver-580-server"),
    ],
)  # fmt: skip
def test_a_missing_driver_is_installed_pinned_and_held(device: str, system: dict[str, Any], package: str) -> None:
    found = plan(box(device, **system))
    assert refused(found) == ""
    assert package in found.variables["base_packages"]
    assert package in found.variables["base_held_packages"]
    assert found.variables["base_pins"][0]["pin"] == "version 580.*"
    assert found.planned.waits


def test_names_without_a_branch_are_kept_by_the_pin() -> None:
    found = plan(box(RTX_4090), cuda_driver_branch=590)
    assert "nvidia-open" in found.variables["base_packages"]
    assert found.variables["base_pins"][0]["pin"] == "version 590.*"


def test_a_persons_driver_is_left_alone_and_nothing_waits() -> None:
    found = plan(box(RTX_4090, driver="nvidia"), LOADED)
    assert refused(found) == ""
    assert not any("nvidia" in each for each in found.variables["base_packages"])
    assert (found.planned.waits, found.planned.reboot, found.variables.get("base_pins", [])) == ("", [], [])
    gpu = found.variables["llama_server_gpu"]
    assert (gpu["allow"], gpu["nodes"][0]) == (["char-nvidia*"], "/dev/nvidia[0-9]*")
    assert "bigiron-gpu.service" in gpu["after"]
    assert found.variables["llama_server_environment"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_loaded_driver_that_is_too_old_is_refused() -> None:
    told = refused(plan(box(RTX_4090, driver="nvidia"), {"driver": {"loaded": "535.183.01", "module": "closed"}}))
    assert "driver 535.183.01 is too old for CUDA 13.5.37" in told


def test_a_driver_under_upgraded_libraries_is_a_pending_reboot() -> None:
    seen = {"driver": {"loaded": "580.65.06", "module": "open"}, "library": "580.95.05"}
    boot = {**BOOT, "nvidia": {"version": "580.65.06"}}
    found = plan(box(RTX_4090, driver="nvidia"), seen, boot)
    assert "version mismatch" in found.planned.reboot[0]
    assert refused(found) == ""


def test_nouveau_is_kept_out_and_the_reboot_comes_after_the_driver() -> None:
    before = plan(box(RTX_4090, driver="nouveau"))
    assert cuda.BLACKLIST in [each.name for each in before.planned.resources]
    assert before.planned.reboot == []
    installed = plan(box(RTX_4090, driver="nouveau"), None, None, {"nvidia-open-580": "580.95.05-1"})
    assert "nouveau drives the GPU until the next boot" in installed.planned.reboot[0]
    theirs = plan(box(RTX_4090), {"blacklist": "/lib/modprobe.d/nvidia.conf"})
    assert cuda.BLACKLIST not in [each.name for each in theirs.planned.resources]


def test_kept_drivers_are_not_brought() -> None:
    assert "no driver: nouveau drives the GPU" in refused(plan(box(RTX_4090, driver="nouveau"), cuda_driver="keep"))
    assert "modprobe nvidia" in refused(plan(box(RTX_4090), cuda_driver="keep"))
    assert refused(plan(box(RTX_4090), cuda_driver="keep", llama_cpp_require_gpu=False)) == ""


def test_headers_of_another_kernel_stop_the_driver_only() -> None:
    boot = {"system": {**BOOT["system"], "headers": ["6.1.0-30-amd64"], "newest": "6.1.0-30-amd64"}}
    told = refused(plan(box(RTX_4090), None, boot))
    assert "reboot into 6.1.0-30-amd64" in told
    assert f"linux-headers-{KERNEL}" in told
    assert refused(plan(box(RTX_4090), None, boot, base_extra_packages=[f"linux-headers-{KERNEL}"])) == ""
    assert refused(plan(box(RTX_4090, driver="nvidia"), LOADED, boot)) == ""


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"on": True, "key": "/var/lib/dkms/mok.pub", "enrolled": False}, "mokutil --import /var/lib/dkms/mok.pub"),
        ({"on": True, "key": "/var/lib/dkms/mok.pub", "enrolled": None}, "not known to be enrolled"),
        ({"on": True, "key": "", "enrolled": None}, "no key to sign modules with"),
        ({"on": True, "key": "/var/lib/dkms/mok.pub", "enrolled": True}, ""),
        ({"on": False, "key": "", "enrolled": None}, ""),
    ],
)
def test_secure_boot_is_looked_at_before_the_driver(state: dict[str, Any], words: str) -> None:
    told = refused(plan(box(RTX_4090), {"secure_boot": state}))
    assert words in told if words else told == ""
    assert refused(plan(box(RTX_4090, driver="nvidia"), {**LOADED, "secure_boot": state})) == ""


def test_another_nvcc_is_named_and_one_with_foreign_headers_refused() -> None:
    other = {"/usr/bin/nvcc": {"version": "11.8.89", "headers": "11.8"}}
    found = plan(box(RTX_4090, driver="nvidia"), {**LOADED, "nvcc": other})
    assert refused(found) == ""
    assert any("/usr/bin/nvcc (11.8.89)" in each for each in found.planned.findings)
    linked = {"/usr/local/cuda/bin/nvcc": {"version": "13.0.88", "headers": "13.0"}}
    same = plan(box(RTX_4090, driver="nvidia"), {**LOADED, "nvcc": linked}, cuda_toolkit_source="nvidia")
    assert not any("other compilers" in each for each in same.planned.findings)
    mixed = {f"{WHEELS}/bin/nvcc": {"version": "13.5.37", "headers": "12.4"}}
    assert "is 13.5.37 and the headers beside it are 12.4" in refused(
        plan(box(RTX_4090, driver="nvidia"), {**LOADED, "nvcc": mixed})
    )


def test_settings_are_compared_live_and_ecc_waits_for_the_boot() -> None:
    live = {
        "0000:00:00.0": {"persistence_mode": False, "power.limit": 300.0, "ecc.mode.current": True, "ecc.mode.pending": False}
    }
    found = plan(
        box(RTX_4090, driver="nvidia"),
        {**LOADED, "settings": live},
        cuda_persistence="on",
        cuda_power_watts=300,
        cuda_ecc="off",
    )
    (one,) = [each for each in found.planned.resources if each.kind == "nvidia"]
    assert one.want == {"persistence_mode": True, "power.limit": 300, "ecc.mode.pending": False}
    assert found.variables["cuda_set"] is True
    problems = [each.problem for each in diff([one], {"nvidia": {"settings": live}}, {})]
    assert problems == ["persistence_mode of 0000:00:00.0 is off, not on"]
    assert any("ECC of 1 GPU" in each for each in found.planned.findings)
    unit = next(each for each in found.planned.resources if each.name == cuda.UNIT_PATH).want["text"]
    assert [line for line in unit.splitlines() if "nvidia-smi" in line] == [
        f"ExecStart=/usr/bin/nvidia-smi {words}" for words in ("-pm 1", "-pl 300", "-e 0")
    ]


def test_a_host_that_is_as_planned_differs_in_nothing() -> None:
    first = on_cpu(["89"])
    seen = {**as_planned(first), "nvidia": SEEN, "boot": BOOT, "devices": {}, "apt": {}}
    assert [each.resource for each in diff(first.planned.resources, seen, {}) if each.part == "cuda"] == [f"toolkit:{WHEELS}"]
    wheels = {each.file: each.sha256 for each in nvidia.WHEELS}
    seen["toolkits"] = {WHEELS: {"wheels": wheels, "missing": []}}
    assert [each for each in diff(first.planned.resources, seen, {}) if each.part == "cuda"] == []


def test_a_host_that_installs_a_release_gets_what_runs_it_only() -> None:
    wish = {"llama_cpp_backend": "cuda", "llama_cpp_require_gpu": False, "cuda_architectures": ["89"]}
    both = [
        facts(machine(), **wish),
        fact("b", observed={**virgin(), "nvidia": SEEN, "boot": BOOT, "apt": {}}, box=machine(), **wish),
    ]
    found = plan_hosts(both, [])
    files = {
        name: [each["name"] for each in one.variables["cuda_wheels"]]
        for name, one in found.items()
        if isinstance(one, HostPlan)
    }
    assert files["b"] == ["nvidia-cublas", "nvidia-cuda-runtime"]
    assert "nvidia-cuda-nvcc" in files["a"]


@pytest.mark.parametrize(
    ("device", "known"), [("1380", 50), ("15f8", 60), ("2080", 80), ("2335", 90), ("2901", 100), ("2e12", 121), ("0fc6", 0)]
)
def test_chips_are_told_by_their_number(device: str, known: int) -> None:
    found = nvidia.chip(device)
    assert (found[0] if found else 0) == known


def test_every_gpu_that_is_planned_for_can_be_built_for() -> None:
    ids = [each.partition(":")[2] for gpu in GPUS if gpu.vendor == "nvidia" for each in gpu.pci_ids]
    assert ids
    assert [each for each in ids if nvidia.chip(each) is None] == []


def test_the_tables_rows_are_in_order_and_wheels_are_pinned() -> None:
    assert [row.since for row in nvidia.TOOLKITS] == sorted(row.since for row in nvidia.TOOLKITS)
    lows = sorted((low, high) for low, high, _, _ in nvidia.CHIPS)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(lows))
    assert all(len(each.sha256) == 64 and each.version in each.file for each in nvidia.WHEELS)


def test_the_part_says_nothing_to_a_host_of_another_backend() -> None:
    assert cuda.plan(fact("a"), Planned()) == Planned({"cuda_gpus": 0, "cuda_wheels": []})
