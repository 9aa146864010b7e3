"""Where a release can run: GPU architectures by the vendors' rules, kernel drivers, and what the drivers say of the GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bigiron.errors import BigironError
from bigiron.onhost import fit
from bigiron.onhost.system import Output, Tree
from bigiron.parts.planner import plan_hosts
from fixtures.hostfacts import fact
from fixtures.hostroot import plant


@pytest.mark.parametrize(
    ("compiled", "gpu", "runs"),
    [
        ("89", "8.9", True), ("89-real", "8.9", True), ("89-real", "12.0", False), ("89", "12.0", True), ("86-real", "8.9", True),
        ("89-real", "8.6", False), ("89", "8.6", False), ("90-virtual", "12.0", True), ("120a-real", "12.0", True),
        ("120a", "12.1", False), ("120f", "12.1", True), ("100f", "12.0", False), ("75-real;120a-real", "7.5", True), ("all-major", "5.0", True),
    ],
)  # fmt: skip
def test_cuda_code_runs_where_nvidia_says(compiled: str, gpu: str, runs: bool) -> None:
    problems = fit.wrong_gpus({"options": {"CMAKE_CUDA_ARCHITECTURES": compiled}}, {"cuda": [gpu]}, 1)
    assert (problems == []) is runs
    assert runs or (compiled in problems[0] and gpu in problems[0])


@pytest.mark.parametrize(
    ("compiled", "gpus", "planned", "fits"),
    [
        ("gfx1100;gfx90a", ["gfx90a"], 1, True), ("gfx1100", ["gfx1030"], 1, False), ("gfx942:sramecc+:xnack-", ["gfx942"], 1, True),
        ("gfx11-generic", ["gfx1151"], 1, True), ("gfx10-3-generic", ["gfx1030"], 1, True), ("gfx10-3-generic", ["gfx1010"], 1, False),
        ("gfx1100", ["gfx1100", "gfx1036"], 1, True), ("gfx1100", ["gfx1100", "gfx1036"], 2, False), ("", ["gfx1030"], 1, True),
        ("gfx1100", [], 1, True),
    ],
)  # fmt: skip
def test_rocm_code_runs_on_the_gpus_it_was_compiled_for(compiled: str, gpus: list[str], planned: int, fits: bool) -> None:
    assert (fit.wrong_gpus({"options": {"GPU_TARGETS": compiled}}, {"hip": gpus}, planned) == []) is fits


def test_a_driver_older_than_the_release_needs_is_refused_before_it_is_installed(tmp_path: Path) -> None:
    plant(tmp_path, {"sys/module/nvidia/version": "570.124\n"})
    identity = {"drivers": {"nvidia": "580.65.6", "amdgpu": "6.0"}}
    with pytest.raises(BigironError, match=r"needs the nvidia driver 580\.65\.6 or newer, and this machine has 570\.124"):
        fit.check(identity, {"count": 1}, Tree(str(tmp_path)))
    (tmp_path / "sys/module/nvidia/version").write_text("580.95.05\n")
    fit.check(identity, {"count": 1}, Tree(str(tmp_path)))
    (tmp_path / "sys/module/nvidia/version").write_text("570.124\n")
    fit.check(identity, {}, Tree(str(tmp_path)))  # the model runs on the CPU here


@pytest.mark.parametrize(
    ("override", "found"), [({}, ["gfx1102", "gfx90a"]), ({"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}, ["gfx1100", "gfx1100"])]
)
def test_the_gpus_are_asked_of_their_drivers(tmp_path: Path, override: dict[str, str], found: list[str]) -> None:
    nodes = {
        f"{fit.KFD[1:]}/{n}/properties": f"cpu_cores_count 0\ngfx_target_version {v}\n"
        for n, v in enumerate((0, 110002, 90010))
    }
    plant(tmp_path, {"proc/driver/nvidia/version": "NVRM\n", **nodes})
    said = "8.9\nNo devices were found\n12.0\n"
    assert fit.gpus_here(override, Tree(str(tmp_path)), lambda _argv: lambda: Output(0, said, "")) == {
        "cuda": ["8.9", "12.0"],
        "hip": found,
    }


def test_the_identity_of_a_build_without_any_of_it_keeps_its_name() -> None:
    plan = plan_hosts([fact("a")], [])["a"]
    assert not {"drivers", "only_for", "toolchains"} & set(json.loads(json.dumps(plan.variables["llama_cpp_identity"])))  # type: ignore[union-attr]
