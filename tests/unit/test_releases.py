"""One release for hosts that differ only in their GPUs: for which architectures it is built, and who keeps what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.fixtures.hostfacts import machine
from tests.fixtures.nvidia import RTX_4090, RTX_5090, T4, V100, box, facts

from bigiron import parts
from bigiron.machine.description import Cpu
from bigiron.parts.planner import HostPlan, plan_hosts
from bigiron.plan.build_options import fingerprint
from bigiron.plan.releases import CachedRelease

ARCHITECTURES = "CMAKE_CUDA_ARCHITECTURES"


def lab_of(cached: Sequence[CachedRelease] = (), runs: Mapping[str, Any] | None = None, **cards: str) -> dict[str, HostPlan]:
    """Plans of hosts with one GPU each; ``runs`` is the identity of what host a has installed."""
    told = {name: replace(facts(box(card)), host=name) for name, card in cards.items()}
    if runs:
        release = {"manifest": {"identity": runs}, "ok": True, "problems": []}
        mark = fingerprint(runs)
        there = {
            "releases": {mark: release},
            "paths": {parts.llama_cpp.CURRENT: {"type": "link", "target": f"releases/{mark}"}},
        }
        told["a"] = replace(told["a"], observed={**told["a"].observed, **there})
    found = plan_hosts(list(told.values()), cached)
    assert all(isinstance(one, HostPlan) for one in found.values()), found
    return {name: one for name, one in found.items() if isinstance(one, HostPlan)}


def built_for(found: HostPlan) -> tuple[str, str]:
    return str(found.planned.variables["llama_cpp_options"][ARCHITECTURES]), found.release.build_from


def objects(found: HostPlan) -> int:
    """Bytes that the compile is planned to need for CUDA."""
    return sum(space.nbytes for space in found.planned.space if space.what == "CUDA objects")


def test_one_release_is_built_for_the_gpus_of_all_hosts_of_a_platform() -> None:
    found = lab_of(a=RTX_5090, b=RTX_4090, c=RTX_5090)
    assert {name: built_for(one) for name, one in found.items()} == {
        "a": ("89-real;120-real", "here"), "b": ("89-real;120-real", "a"), "c": ("89-real;120-real", "a"),
    }  # fmt: skip
    assert len({one.release.fingerprint for one in found.values()}) == 1
    told = {reason.why for one in found.values() for reason in one.planned.reasons if reason.topic == "CUDA"}
    assert told == {"builds for 89-real, 120-real with g++-12"}
    alone = lab_of(a=RTX_5090)["a"]
    one_more = objects(found["a"]) - objects(alone)
    assert one_more == objects(alone) > 0
    assert parts.cuda.lock(found["c"].facts, found["c"].planned.variables)["cuda"]["architectures"] == "89-real;120-real"


def test_a_release_for_more_gpus_serves_a_host_that_has_one_of_them() -> None:
    both = {**lab_of(a=RTX_5090, b=RTX_4090)["a"].release.identity.to_json(), "compiler": "g++ 12.2.0"}
    archive = CachedRelease("both", both, "both.tar.gz", "")
    assert built_for(lab_of([archive], b=RTX_4090)["b"]) == ("89-real;120-real", "archive")
    assert built_for(lab_of(a=RTX_4090, runs=both)["a"]) == ("89-real;120-real", "installed")
    assert built_for(lab_of([archive], b=T4)["b"]) == ("75-real", "here")


def test_a_host_that_runs_a_release_for_its_own_gpu_does_not_change_for_others() -> None:
    own = {**lab_of(a=RTX_4090)["a"].release.identity.to_json(), "compiler": "g++ 12.2.0"}
    found = lab_of(a=RTX_4090, b=RTX_5090, runs=own)
    assert built_for(found["a"]) == ("89-real", "installed")
    assert built_for(found["b"]) == ("89-real;120-real", "here")


def test_architectures_that_were_asked_for_stay_as_they_are() -> None:
    asked = {"cuda_architectures": ["120a"]}
    told = [replace(facts(box(RTX_5090), **asked), host="a"), replace(facts(box(RTX_4090)), host="b")]
    found = plan_hosts(told, [])
    assert [built_for(one)[0] for one in found.values() if isinstance(one, HostPlan)] == ["120a-real", "89-real"]


def test_a_gpu_that_the_toolkit_cannot_build_for_is_not_built_for_beside_others() -> None:
    told = [replace(facts(box(card), cuda_toolkit_source="pypi"), host=card) for card in (V100, RTX_4090)]
    found = plan_hosts(told, [])
    assert isinstance(found[RTX_4090], HostPlan)
    assert built_for(found[RTX_4090])[0] == "89-real"


def test_a_builder_without_a_gpu_builds_for_a_host_that_has_one_and_another_cpu() -> None:
    every = {"llama_cpp_all_cpus": True}
    builder = facts(
        machine(), llama_cpp_backend="cuda", llama_cpp_require_gpu=False, cuda_architectures=["89", "120a"], **every
    )
    built = plan_hosts([builder], [])["a"]
    assert isinstance(built, HostPlan)
    archive = CachedRelease("far", {**built.release.identity.to_json(), "compiler": "g++ 12.2.0"}, "far.tar.gz", "")
    epyc = Cpu("AMD EPYC", "AuthenticAMD", 1, 64, 128, ("avx", "avx2", "f16c", "fma", "bmi2", "sse4_2"), ())
    for all_cpus, build_from in ((True, "archive"), (False, "here")):
        host = facts(box(RTX_4090, cpu=epyc), llama_cpp_all_cpus=all_cpus)
        found = plan_hosts([host], [archive])["a"]
        assert isinstance(found, HostPlan)
        assert found.release.build_from == build_from, found.release.why
