"""Which backend computes, what its build and its unit get, and which of five things is wrong when no GPU answers."""

import os
import pwd
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.hostfacts import fact

from bigiron.errors import BigironError
from bigiron.machine import backends
from bigiron.machine.description import Gpu
from bigiron.onhost import gpuproof, release
from bigiron.onhost.system import Tree
from bigiron.plan import build_options
from bigiron.plan.build_options import Identity, Source, Toolchain
from bigiron.render import render

MACHINE = replace(fact("a").machine, gpus=())
SOURCE = Source("http://mirror/x.tar.gz", "0" * 64, "x", 11434, "b11434")


def gpu(vendor: str, device: str, pci: str = "0000:01:00.0", memory: int | None = None) -> Gpu:
    return Gpu(pci, vendor, device, vendor, None, memory, "030000")


RTX_4090, W7900, B580 = gpu("10de", "2684", memory=24 << 30), gpu("1002", "7448", memory=48 << 30), gpu("8086", "e20b")


@pytest.mark.parametrize(
    ("gpus", "wanted", "main", "used"),
    [
        ((), "auto", "cpu", 0),
        ((RTX_4090,), "auto", "cuda", 1),  # no driver is needed to know
        ((W7900,), "auto", "hip", 1),
        ((B580,), "auto", "vulkan", 1),
        ((RTX_4090, W7900), "auto", "hip", 1),  # the one with more memory
        ((RTX_4090, W7900), "vulkan", "vulkan", 2),
        ((RTX_4090,), "cpu", "cpu", 0),
        ((RTX_4090,), "hip", "hip", 0),
        ((gpu("8086", "a780", "0000:00:02.0"), gpu("1002", "164e")), "auto", "cpu", 0),  # graphics inside CPUs
        ((gpu("1a03", "2000"),), "auto", "cpu", 0),  # a BMC
    ],
)
def test_the_gpus_choose_the_backend_unless_a_person_does(gpus: tuple[Gpu, ...], wanted: str, main: str, used: int) -> None:
    found = backends.choose(replace(MACHINE, gpus=gpus), wanted)
    assert (found.main.name, len(found.gpus)) == (main, used)


def test_what_nobody_can_build_is_never_chosen_unasked() -> None:
    found = backends.choose(replace(MACHINE, gpus=(RTX_4090,)), built=["cpu", "vulkan"])
    assert found.main == backends.CPU
    assert "no toolchain for cuda" in found.why


def test_a_software_gpu_is_used_only_when_asked_for_and_where_there_is_no_other() -> None:
    assert backends.choose(MACHINE, "vulkan").gpus == ()
    (software,) = backends.choose(MACHINE, "vulkan", software_bytes=1 << 30).gpus
    assert (software.name, software.memory_bytes) == ("llvmpipe", 1 << 30)
    assert backends.choose(replace(MACHINE, gpus=(B580,)), "vulkan", software_bytes=1 << 30).gpus == (B580,)


def options(build_number: int, *names: str, types: tuple[str, str] = ("f16", "f16")) -> dict[str, str]:
    source = replace(SOURCE, build_number=build_number)
    toolchains = [Toolchain(name, "1") for name in names]
    return build_options.options("x86_64", [], source, web_ui=False, extra={}, toolchains=toolchains, cache_types=types)[0]


@pytest.mark.parametrize(
    ("build_number", "name", "has", "lacks"),
    [
        (11434, "cuda", {"GGML_CUDA"}, {"LLAMA_CUDA", "GGML_HIP"}),
        (3000, "cuda", {"LLAMA_CUDA", "LLAMA_CURL"}, {"GGML_CUDA", "LLAMA_OPENSSL", "LLAMA_BUILD_UI"}),
        (4153, "hip", {"GGML_HIPBLAS"}, {"GGML_HIP"}),
        (4154, "hip", {"GGML_HIP"}, {"GGML_HIPBLAS"}),
    ],
)
def test_an_option_has_the_name_that_this_build_knows(build_number: int, name: str, has: set[str], lacks: set[str]) -> None:
    found = options(build_number, name)
    assert has <= found.keys()
    assert not lacks & found.keys()
    assert found["GGML_BACKEND_DL"] == "ON"


@pytest.mark.parametrize(
    ("build_number", "types", "expected"),
    [
        (11434, ("q8_0", "q8_0"), {}),
        (11434, ("q8_0", "q4_0"), {"GGML_CUDA_FA_QUANTS": "f16-f16,q4_0-q4_0,q8_0-q8_0,bf16-bf16,q8_0-q4_0"}),
        (10587, ("q8_0", "q4_0"), {"GGML_CUDA_FA_ALL_QUANTS": "ON"}),
        (11434, ("f32", "f32"), {}),  # no such kernel at all
    ],
)
def test_a_gpu_build_gets_the_attention_kernels_of_the_planned_cache(
    build_number: int, types: tuple[str, str], expected: dict[str, str]
) -> None:
    found = options(build_number, "cuda", types=types)
    assert {name: value for name, value in found.items() if "_FA_" in name} == expected


def test_a_toolchain_is_part_of_the_identity_and_a_cpu_build_keeps_its_name() -> None:
    cpu = Identity(SOURCE.identity(), {}, "g++ 12.2.0", "glibc 2.36", ())
    assert "toolchains" not in cpu.to_json()
    marks = {build_options.fingerprint(replace(cpu, toolchains={"cuda": version}).to_json()) for version in ("13.0", "13.5.37")}
    assert len({*marks, build_options.fingerprint(cpu.to_json())}) == 3
    assert not replace(cpu, toolchains={"cuda": ""}).complete


def test_a_unit_for_a_gpu_opens_what_it_needs_and_no_more() -> None:
    variables = {
        "llama_server_service": "main",
        "llama_server_argv": ["/opt/bigiron/current/bin/llama-server"],
        "llama_server_environment": {},
        "llama_server_user": "llama",
        "llama_server_prefix": "/opt/bigiron",
        "llama_server_config_dir": "/etc/bigiron",
        "llama_server_model_root": "/srv/models",
        "llama_server_start_timeout_s": 600,
        "llama_server_memory_max_bytes": 0,
        "llama_server_lock_memory": False,
    }
    plain = render("llama-server.service", variables)
    opened = {
        "allow": ["/dev/kfd"],
        "nodes": ["/dev/kfd"],
        "groups": ["render"],
        "writable_code": False,
        "after": ["x.service"],
    }
    text = render("llama-server.service", {**variables, "llama_server_gpu": opened})
    assert "PrivateDevices=yes" in plain
    assert "PrivateDevices=yes" not in text
    for line in ("DeviceAllow=/dev/kfd rw", "DevicePolicy=closed", "SupplementaryGroups=render", "MemoryDenyWriteExecute=yes"):
        assert line in text.splitlines()
        assert line in plain.splitlines() or line not in ("DevicePolicy=closed", "MemoryDenyWriteExecute=yes")
    assert "After=network-online.target x.service" in text.splitlines()


GPU = {"device": "CUDA", "library": "cuda", "count": 1, "nodes": ["/dev/nvidiactl"], "modules": ["nvidia"]}


@pytest.mark.parametrize(
    ("libraries", "module", "node", "mode", "said", "expected"),
    [
        ([], True, True, 0o666, "", "no backend"),
        (["libggml-cuda.so"], False, True, 0o666, "", "no driver"),
        (["libggml-cuda.so"], True, False, 0o666, "", "no device node"),
        (
            ["libggml-cuda.so"],
            True,
            True,
            0o666,
            "CUDA driver version is insufficient for CUDA runtime version",
            "do not match",
        ),
        (["libggml-cuda.so"], True, True, 0o600, "", "not visible to nobody"),
        (["libggml-cuda.so"], True, True, 0o666, "out of cheese", "out of cheese"),
    ],
)
def test_five_ways_to_end_up_on_the_cpu_have_a_sentence_each(
    tmp_path: Path, libraries: list[str], module: bool, node: bool, mode: int, said: str, expected: str
) -> None:
    (tmp_path / "dev").mkdir()
    if module:
        (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    if node:
        (tmp_path / "dev/nvidiactl").touch()
        (tmp_path / "dev/nvidiactl").chmod(mode)
    nobody = pwd.getpwnam("nobody")
    what, hint = gpuproof.why(GPU, said, libraries, nobody, Tree(str(tmp_path)))
    assert expected in what
    assert hint


def test_fewer_devices_than_planned_is_a_failure(tmp_path: Path) -> None:
    server = tmp_path / "bin/llama-server"
    server.parent.mkdir()
    server.write_text("#!/bin/sh\necho 'Available devices:'\necho '  CUDA0: NVIDIA L4 (22478 MiB, 22000 MiB free)'\n")
    server.chmod(0o755)
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert gpuproof.prove(tmp_path, me, GPU) == ["CUDA0: NVIDIA L4 (22478 MiB, 22000 MiB free)"]
    with pytest.raises(BigironError, match="1 of 2 GPUs answer"):
        gpuproof.prove(tmp_path, me, {**GPU, "count": 2})
    assert release.DRIVER_LIBRARIES[0].startswith("libcuda")
