"""Part rocm: which ROCm, for which gfx targets, as what the GPUs run; and what is refused before anything changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from tests.fixtures.hostfacts import as_planned, fact, machine

from bigiron.errors import UsageError
from bigiron.machine.description import Gpu, OperatingSystem
from bigiron.parts import planner, rocm, watch_for_gpus
from bigiron.parts.difference import diff
from bigiron.parts.planner import HostPlan
from bigiron.plan import rocm as table
from bigiron.plan import wishes
from bigiron.plan.rocm import Platform

DEBIAN = OperatingSystem("debian", "12", "Debian 12", "bookworm")
NOBLE = OperatingSystem("ubuntu", "24.04", "Ubuntu 24.04.4 LTS", "noble", "debian")
RESOLUTE = OperatingSystem("ubuntu", "26.04", "Ubuntu 26.04 LTS", "resolute", "debian")
NODE = {"type": "character", "owner": "root", "group": "render", "mode": "0660"}
NODES = {"/dev/kfd": NODE, "/dev/dri/renderD128": NODE}
AMD = table.source("amd", "7.2.4", Platform("any", suite="noble"))
OLD = table.source("amd", "6.2.4", Platform("any", suite="noble"))


def gpu(device: str, pci: str = "0000:01:00.0", driver: str | None = "amdgpu") -> Gpu:
    return Gpu(pci, "1002", device, "AMD", driver, 48 << 30, "030000")


W7900, RX6600, MI50 = gpu("7448"), gpu("73ff", "0000:02:00.0"), gpu("66a1")


def planned(
    *gpus: Gpu,
    system: OperatingSystem = NOBLE,
    kernel: str = "6.8.0-60-generic",
    seen: Any = None,
    box: Any = None,
    **wish: Any,
) -> HostPlan:
    observed = {"devices": NODES, "groups": {"render": {"gid": 105}}, "apt": {}, "boot": {}, **(seen or {})}
    plan = planner.plan_hosts(
        [fact(observed=observed, box=machine(os=system, kernel=kernel, gpus=gpus, **(box or {})), **wish)], []
    )["a"]
    assert isinstance(plan, HostPlan), plan
    return plan


def refused(*gpus: Gpu, **how: Any) -> list[tuple[str, str]]:
    return [(each.what, str(each.hint)) for each in planned(*gpus, **how).planned.refusals]


# what a machine without such a GPU pays


def test_a_machine_that_does_not_compute_with_hip_gets_nothing() -> None:
    one = fact()
    assert rocm.watch(one.wish) == {}
    plan = planned()
    assert not [each for each in plan.planned.resources if each.part == "rocm"]
    assert "toolchains" not in plan.release.identity.to_json()
    assert not any("ROC" in each.topic or "rocm" in str(each) for each in plan.planned.reasons)
    asked = fact(llama_cpp_backend="vulkan", box=machine(gpus=(W7900,)))
    assert "1002" not in watch_for_gpus(asked.wish)
    assert rocm.watch(asked.wish) == {}


def test_a_host_with_such_a_gpu_is_asked_for_what_any_system_may_need() -> None:
    found = watch_for_gpus(fact().wish)["1002"]
    assert found["device"] == ["/dev/kfd", "/dev/dri/renderD*"]
    assert {"rocm-core", "rocblas-dev7.2.4", "hip-runtime-amd7.2.4", "librocblas-dev", "libamdhip64-7"} <= {*found["package"]}
    assert rocm.watch(fact(llama_cpp_backend="hip").wish) == found
    runtimes = {
        name for path in table.VARS.glob("*.yml") for name in yaml.safe_load(path.read_text()).get("__rocm_runtime", ())
    }
    assert runtimes == {*table.DISTRIBUTION_RUNTIMES}


# where ROCm comes from


def test_amds_repository_with_its_key_and_the_release_in_every_name() -> None:
    variables = planned(W7900).variables
    (repository,) = variables["base_repositories"]
    assert (repository["uri"], repository["suites"]) == ("https://repo.radeon.com/rocm/apt/7.2.4", ["noble"])
    assert repository["fingerprints"] == ["CA8BB4727A47B4D09B4EE8969386B48A1A693C5C"]
    assert {"hipcc7.2.4", "rocblas-dev7.2.4", "hipblas7.2.4"} <= {*variables["base_packages"]}
    (pin,) = variables["base_pins"]
    assert pin["pin"] == "release o=repo.radeon.com"
    assert all(name.endswith("7.2.4") for name in pin["packages"])


def test_the_build_names_its_compiler_its_targets_and_its_folder() -> None:
    plan = planned(W7900)
    options = plan.release.identity.options
    assert options["CMAKE_HIP_COMPILER"] == "/opt/rocm-7.2.4/lib/llvm/bin/clang++"
    assert (options["GGML_HIP"], options["GPU_TARGETS"], options["GGML_BACKEND_DL"]) == ("ON", "gfx1100", "ON")
    assert plan.release.identity.toolchains == {"hip": "7.2.4 (AMD)"}
    assert plan.variables["llama_cpp_build_environment"] == {
        "ROCM_PATH": "/opt/rocm-7.2.4",
        "HIP_PATH": "/opt/rocm-7.2.4",
        "HIP_PLATFORM": "amd",
    }
    assert plan.variables["llama_cpp_library_path"] == ["/opt/rocm-7.2.4/lib"]
    assert plan.variables["rocm_compiler"] == options["CMAKE_HIP_COMPILER"]


def test_targets_have_the_name_that_the_build_knows() -> None:
    options = planned(W7900, llama_cpp_build_number=6500).release.identity.options
    assert options["CMAKE_HIP_ARCHITECTURES"] == "gfx1100"
    assert "GPU_TARGETS" not in options


def test_a_distribution_that_packages_a_new_enough_hip_is_used_where_amd_has_no_repository() -> None:
    packages = {"hipcc": "7.1.1", "libamdhip64-dev": "7.1.0", "libhipblas-dev": "7.1.0", "librocblas-dev": "7.1.0"}
    plan = planned(W7900, system=RESOLUTE, kernel="7.0.0-1-generic", seen={"packages": packages})
    assert plan.release.identity.options["CMAKE_HIP_COMPILER"] == "/usr/lib/llvm-21/bin/clang++"
    assert plan.release.identity.toolchains["hip"].startswith("hipcc 7.1.1, libamdhip64-dev 7.1.0")
    assert "base_repositories" not in plan.variables
    # with a ROCM_PATH clang looks for them there alone, and Debian's are not there: cmake failed without it
    assert (
        plan.variables["llama_cpp_build_environment"]["HIP_DEVICE_LIB_PATH"] == "/usr/lib/llvm-21/lib/clang/21/amdgcn/bitcode"
    )
    assert {"librocblas5", "librocblas-dev"} <= {*plan.variables["base_packages"]}
    assert plan.planned.refusals == []
    assert not planned(W7900, system=RESOLUTE).release.identity.complete  # named once the packages are there


@pytest.mark.parametrize(
    ("system", "source", "words"),
    [
        (OperatingSystem("debian", "13", "Debian 13", "trixie"), "distribution", "Debian 13 packages HIP 5.7.1, and llama.cpp needs 6.1"),
        (RESOLUTE, "amd", "AMD's repository has no suite for Ubuntu 26.04"),
        (OperatingSystem("debian", "11", "Debian 11", "bullseye"), "auto", "which ROCm Debian 11 can have is not known"),
    ],
)  # fmt: skip
def test_a_system_without_a_rocm_that_will_do_is_refused(system: OperatingSystem, source: str, words: str) -> None:
    assert any(words in what for what, _ in refused(W7900, system=system, rocm_source=source))


def test_amds_repository_is_for_one_architecture() -> None:
    assert any("x86-64 alone" in what for what, _ in refused(W7900, box={"arch": "aarch64"}))


def test_the_files_of_the_platforms_are_what_they_are_called() -> None:
    for path in table.VARS.glob("*.yml"):
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert all(name.startswith("__rocm_") for name in given), path
        found = table._read(path.stem)
        assert found is not None
        assert bool(found.kernels) == bool(found.suite), path
        if found.packaged and table.release(found.packaged) >= table.MINIMUM:
            assert found.clang.startswith("/"), path
            assert found.runtime, path
            assert found.device_libs.startswith("/"), path
    rocky = table.platform(OperatingSystem("rocky", "9.6", "Rocky Linux 9.6", "", "rhel centos fedora"))
    assert rocky is not None
    assert (rocky.name, rocky.manager) == ("Enterprise Linux 9", "dnf")
    sid = table.platform(OperatingSystem("debian", "", "Debian GNU/Linux forky/sid", "forky"))
    assert sid is not None
    assert sid.packaged == "6.4.3"


@pytest.mark.parametrize(
    ("name", "value"), [("rocm_version", "latest"), ("rocm_targets", ["native"]), ("rocm_gfx_override", "10.3")]
)
def test_nothing_floats(name: str, value: Any) -> None:
    with pytest.raises(UsageError):
        wishes.read("a", {**fact().wish, "llama_server_api_key": "", "model_token": "", name: value})


# gfx targets


def test_every_card_has_a_target_and_every_stand_in_computes() -> None:
    assert {*table.CARDS.values()} == {*table.TARGETS}
    assert all(table.TARGETS[each.stand_in].since < (6, 1) for each in table.TARGETS.values() if each.stand_in)


@pytest.mark.parametrize(
    ("device", "source", "target", "override"),
    [
        ("7448", AMD, "gfx1100", ""),
        ("73ff", AMD, "gfx1030", "10.3.0"),  # gfx1032
        ("15bf", OLD, "gfx1100", "11.0.0"),  # gfx1103
        ("15bf", AMD, "gfx1103", ""),
        ("1586", AMD, "gfx1151", ""),
        ("1586", OLD, "gfx1100", "11.0.0"),
        ("740f", AMD, "gfx90a", ""),
    ],
)
def test_what_has_no_kernels_runs_as_what_has(device: str, source: table.Source, target: str, override: str) -> None:
    chosen = table.choose([gpu(device)], source)
    assert (chosen.targets, chosen.override, chosen.problems) == ((target,), override, ())


def test_an_override_is_in_the_build_and_in_the_service() -> None:
    plan = planned(RX6600)
    assert plan.release.identity.options["GPU_TARGETS"] == "gfx1030"
    assert plan.variables["llama_server_environment"]["HSA_OVERRIDE_GFX_VERSION"] == "10.3.0"
    assert plan.variables["llama_cpp_gpu"]["environment"] == {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}
    mine = planned(W7900, rocm_gfx_override="11.0.1")
    assert mine.release.identity.options["GPU_TARGETS"] == "gfx1101"
    assert mine.variables["llama_server_environment"]["HSA_OVERRIDE_GFX_VERSION"] == "11.0.1"
    assert "HSA_OVERRIDE_GFX_VERSION" not in planned(W7900).variables["llama_server_environment"]


def test_gpus_that_need_different_overrides_cannot_serve_together() -> None:
    assert any("0000:02:00.0 gfx1032 runs as 10.3.0" in what for what, _ in refused(W7900, RX6600))
    assert refused(W7900, gpu("7550", "0000:03:00.0")) == []
    assert planned(W7900, gpu("7550", "0000:03:00.0")).release.identity.options["GPU_TARGETS"] == "gfx1100;gfx1201"
    assert table.override(table.overridden("9.0.10")) == "9.0.10"


@pytest.mark.parametrize(
    ("device", "version", "words", "way_out"),
    [
        ("66a1", "7.2.4", "has no kernels for the GPU 0000:01:00.0, gfx906: the last was 6.3", "rocm_version: 6.3"),
        ("6860", "7.2.4", "and llama.cpp needs 6.1", "vulkan"),
        ("75a0", "6.4.3", "the first is 7.0", "rocm_version to 7.0 or later"),
        ("ffff", "7.2.4", "(1002:ffff) is not in the table", "rocm_targets"),
    ],
)
def test_a_gpu_that_this_rocm_cannot_serve_is_refused_with_a_way_out(
    device: str, version: str, words: str, way_out: str
) -> None:
    found = refused(gpu(device), rocm_version=version)
    assert any(words in what and way_out in hint and "nothing was changed" in hint for what, hint in found), found


def test_a_person_may_name_the_target_of_an_unknown_card() -> None:
    assert refused(gpu("ffff"), rocm_targets=["gfx1100"]) == []


def test_a_host_without_a_gpu_builds_for_what_it_is_told_to() -> None:
    builder = {"llama_cpp_backend": "hip", "llama_cpp_require_gpu": False}
    assert any("rocm_targets does not say" in what for what, _ in refused(**builder))
    plan = planned(**builder, rocm_targets=["gfx942"], seen={"devices": {}})
    assert plan.planned.refusals == []
    assert plan.release.identity.options["GPU_TARGETS"] == "gfx942"
    assert plan.variables["llama_server_gpu"] == {}


def test_hosts_with_different_gpus_share_a_release() -> None:
    seen = {"devices": NODES, "groups": {"render": {"gid": 105}}, "apt": {}, "boot": {}}
    boxes = {
        name: machine(os=NOBLE, kernel="6.8.0-60-generic", gpus=(card,)) for name, card in (("a", W7900), ("b", gpu("7550")))
    }
    found = planner.plan_hosts([replace(fact(name, observed=seen, box=box), host=name) for name, box in boxes.items()], [])
    assert [one.release.identity.options["GPU_TARGETS"] for one in found.values() if isinstance(one, HostPlan)] == [
        "gfx1100;gfx1201", "gfx1100;gfx1201",
    ]  # fmt: skip
    assert {one.release.build_from for one in found.values() if isinstance(one, HostPlan)} == {"here", "a"}


def test_beside_another_backend_it_is_built_for_the_amd_gpus_alone() -> None:
    arc = Gpu("0000:04:00.0", "8086", "e20b", "Intel", "xe", 12 << 30, "030000")
    wish = {"llama_cpp_backend": "vulkan", "llama_cpp_more_backends": ["hip"]}
    plan = planned(arc, replace(MI50, driver=None), rocm_version="6.3", rocm_any_kernel=True, **wish)
    assert plan.planned.refusals == []
    assert plan.release.identity.options["GPU_TARGETS"] == "gfx906"
    assert plan.variables["llama_server_environment"]["VK_LOADER_DRIVERS_SELECT"] == "*intel*,*radeon*"


def test_its_role_looks_once_after_the_packages_came() -> None:
    plan = planned(W7900)
    differences = [
        each.resource for each in diff(plan.planned.resources, as_planned(plan) | {"paths": {}}) if each.part == "rocm"
    ]
    assert differences == ["directory:/opt/rocm-7.2.4/lib/llvm/bin"]
    assert [each for each in diff(plan.planned.resources, as_planned(plan)) if each.part == "rocm"] == []


# kernels, packages in the way, driver and nodes


@pytest.mark.parametrize(
    ("kernel", "version", "words"),
    [
        ("6.14.0-29-generic", "7.2.4", "kernel 6.14.0-29-generic is not one that AMD supports for ROCm 7.2.4 on Ubuntu 24.04 (6.8, 6.17)"),
        ("6.80.1", "7.2.4", "kernel 6.80.1"),
        ("6.8.0-60-generic", "6.9.9", "which kernels ROCm 6.9.9 supports on Ubuntu 24.04 is not known (known: ROCm 6.4, 7.0, 7.2)"),
    ],
)  # fmt: skip
def test_a_kernel_that_amd_does_not_list_is_refused_unless_a_person_goes_on(kernel: str, version: str, words: str) -> None:
    assert any(words in what for what, _ in refused(W7900, kernel=kernel, rocm_version=version))
    plan = planned(W7900, kernel=kernel, rocm_version=version, rocm_any_kernel=True)
    assert plan.planned.refusals == []
    assert any(words in each for each in plan.planned.findings)
    assert plan.variables["rocm_kernels"] == []


def test_the_kernel_of_the_next_boot_is_told_before_it_is_booted() -> None:
    boot = {"system": {"kernel": "6.8.0-60-generic", "newest": "6.14.0-29-generic"}}
    plan = planned(W7900, seen={"boot": boot})
    assert plan.planned.refusals == []
    assert any(each.startswith("after the next boot: kernel 6.14.0-29-generic") for each in plan.planned.findings)
    assert plan.variables["rocm_kernels"] == ["6.8", "6.17"]


def test_what_amd_does_not_support_on_debian_is_told() -> None:
    assert any("gfx1100 may work" in each for each in planned(W7900, system=DEBIAN, kernel="6.1.0-28-amd64").planned.findings)
    assert planned(gpu("74a1"), system=DEBIAN, kernel="6.1.0-28-amd64").planned.findings == []


@pytest.mark.parametrize(
    ("packages", "words"),
    [
        ({"rocm-core": "7.2.4.70204-93~24.04"}, "has the files of the package rocm-core7.2.4"),
        ({"libamdhip64-dev": "5.7.1-3"}, "clang takes its headers in /usr/include"),
    ],
)
def test_packages_that_clash_with_amds_are_refused(packages: dict[str, str], words: str) -> None:
    ((what, hint),) = refused(W7900, seen={"packages": packages})
    assert words in what
    assert "apt remove" in hint
    assert refused(W7900, seen={"packages": {"rocm-core": "7.0.2.70002-1"}}) == []  # another release lies beside it


@pytest.mark.parametrize(
    ("driver", "devices", "box", "words", "way_out"),
    [
        (None, {}, {}, "no driver drives the AMD GPU 0000:01:00.0, so there is no /dev/kfd", "linux-firmware"),
        ("vfio-pci", {}, {}, "is kept for a virtual machine", "llama_cpp_backend"),
        ("radeon", {}, {}, "cannot compute with it", "amdgpu"),
        ("amdgpu", {}, {}, "there is no /dev/kfd and no /dev/dri/renderD*", "PCIe atomics"),
        ("amdgpu", {"/dev/dri/renderD128": NODE}, {"virtualization": "systemd-nspawn"}, "there is no /dev/kfd", "a container must be given them"),
        ("amdgpu", {**NODES, "/dev/kfd": {**NODE, "group": "root", "mode": "0600"}}, {}, "/dev/kfd is root:root 0600", "udevadm"),
    ],
)  # fmt: skip
def test_a_gpu_that_cannot_be_reached_is_explained(
    driver: str | None, devices: Any, box: Any, words: str, way_out: str
) -> None:
    found = refused(replace(W7900, driver=driver), seen={"devices": devices}, box=box)
    assert any(words in what and way_out in hint for what, hint in found), found


@pytest.mark.parametrize("group", ["render", "video"])
def test_the_group_is_that_of_the_node_and_the_unit_opens_the_nodes_alone(group: str) -> None:
    node = {**NODE, "group": group}
    plan = planned(W7900, seen={"devices": dict.fromkeys(NODES, node), "groups": {group: {"gid": 44}}})
    assert plan.planned.refusals == []
    assert plan.variables["base_user_groups"] == [group]
    assert plan.variables["llama_server_gpu"] == {
        "allow": ["/dev/kfd", "char-drm"],
        "nodes": ["/dev/kfd", "/dev/dri/renderD*"],
        "groups": [group],
        "writable_code": True,
        "after": [],
        "cache": "",
    }


def test_the_lock_says_what_it_was_built_with() -> None:
    plan = planned(W7900)
    locked = rocm.lock(plan.facts, plan.variables)
    assert locked == {"rocm": {"built with": "7.2.4 (AMD)", "root": "/opt/rocm-7.2.4", "targets": ["gfx1100"]}}
