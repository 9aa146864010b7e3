"""Part vulkan: which driver is loaded, what the unit opens, where compiled shaders are kept, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.hostfacts import fact, machine

from bigiron.machine.description import Gpu
from bigiron.parts import planner, vulkan, watch_for_gpus
from bigiron.parts.planner import HostPlan

RENDER = {"type": "character", "owner": "root", "group": "render", "mode": "0660"}
OPEN = {"type": "character", "owner": "root", "group": "root", "mode": "0666"}
CACHE = "/var/cache/llama-server-main"


def gpu(vendor: str, device: str, driver: str | None) -> Gpu:
    return Gpu("0000:03:00.0", vendor, device, "", driver, 12 << 30, "030000")


B580, W7900, RTX_4090 = gpu("8086", "e20b", "xe"), gpu("1002", "7448", "amdgpu"), gpu("10de", "2684", "nvidia")


def planned(*gpus: Gpu, nodes: dict[str, Any] | None = None, **wish: Any) -> HostPlan:
    seen = {"devices": {"/dev/dri/renderD128": RENDER} if nodes is None else nodes, "groups": {"render": {"gid": 105}}}
    found = planner.plan_hosts([fact(observed=seen, box=machine(gpus=gpus), **wish)], [])["a"]
    assert isinstance(found, HostPlan), found
    return found


def test_only_hosts_that_may_compute_with_it_are_asked() -> None:
    assert vulkan.watch(fact().wish) == {}
    assert watch_for_gpus(fact().wish)["8086"] == vulkan.WATCHED
    assert vulkan.watch(fact(llama_cpp_backend="vulkan").wish) == vulkan.WATCHED
    assert "8086" not in watch_for_gpus(fact(llama_cpp_backend="cpu").wish)


@pytest.mark.parametrize(
    ("card", "wish", "driver", "allow"),
    [
        (B580, {}, "*intel*", ["char-drm"]),
        (W7900, {"llama_cpp_backend": "vulkan"}, "*radeon*", ["char-drm"]),
        (RTX_4090, {"llama_cpp_backend": "vulkan"}, "*nvidia*", ["char-drm", "char-nvidia*"]),
    ],
)
def test_the_service_loads_the_vendors_driver_and_opens_its_nodes_alone(
    card: Gpu, wish: dict[str, Any], driver: str, allow: list[str]
) -> None:
    plan = planned(card, **wish)
    assert plan.planned.refusals == []
    assert plan.variables["llama_server_environment"]["VK_LOADER_DRIVERS_SELECT"] == driver
    assert plan.variables["llama_server_gpu"]["allow"] == allow
    assert plan.variables["llama_server_gpu"]["groups"] == ["render"]
    assert not plan.variables["llama_server_gpu"]["writable_code"]
    assert ("mesa-vulkan-drivers" in plan.variables["base_packages"]) is (card is not RTX_4090)


def test_what_the_driver_compiled_is_kept_in_the_units_own_folder() -> None:
    plan = planned(B580)
    assert plan.variables["llama_server_environment"]["MESA_SHADER_CACHE_DIR"] == CACHE
    assert "MESA_SHADER_CACHE_DIR" not in plan.variables["llama_cpp_gpu"]["environment"]
    unit = next(
        each for each in plan.planned.resources if each.kind == "file" and each.name.endswith("llama-server-main.service")
    )
    assert "CacheDirectory=llama-server-main" in str(unit.want)
    assert "/var/cache" not in str(planned().variables["llama_server_environment"])


def test_nodes_that_nobody_may_open_are_refused_and_open_ones_need_no_group() -> None:
    shut = planned(B580, nodes={"/dev/dri/renderD128": {**RENDER, "group": "root", "mode": "0600"}})
    (refusal,) = shut.planned.refusals
    assert "no group of its own may open it" in refusal.what
    assert planned(B580, nodes={"/dev/dri/renderD128": OPEN}).variables["llama_server_gpu"]["groups"] == []


def test_an_nvidia_gpu_needs_nvidias_driver() -> None:
    (refusal,) = planned(gpu("10de", "2684", "nouveau"), llama_cpp_backend="vulkan").planned.refusals
    assert "NVIDIA's own driver, which is not loaded" in refusal.what


def test_a_driver_that_computes_on_the_cpu_is_taken_only_when_asked() -> None:
    asked = {"llama_cpp_backend": "vulkan", "llama_cpp_software_gpu_mib": 4096}
    plan = planned(**asked, llama_cpp_require_gpu=True)
    assert plan.variables["llama_server_environment"]["GGML_VK_VISIBLE_DEVICES"] == "0"
    assert plan.variables["llama_server_gpu"]["writable_code"]
    assert plan.variables["llama_server_gpu"]["allow"] == []
    assert "VK_LOADER_DRIVERS_SELECT" not in planned().variables["llama_server_environment"]
