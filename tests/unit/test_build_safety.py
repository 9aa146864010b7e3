"""A build that must not be: options without effect, silent fallbacks, too many compilers, native for another machine, a stale cache, no disk.

The tools of a build are shell scripts here; what is run is the host-side code as it is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from bigiron.errors import BigironError, Refused
from bigiron.onhost import budget, buildlog, release
from bigiron.onhost import compile as compiling
from bigiron.onhost.budget import Budget
from bigiron.onhost.buildlog import configure_problems, explain_failure
from bigiron.onhost.compile import Request
from bigiron.onhost.system import Tree
from bigiron.parts.planner import plan_hosts
from bigiron.plan import build_options
from bigiron.units import GIB
from fixtures.hostfacts import ZEN4, fact, machine
from fixtures.hostroot import plant

TARGET = "llama-server"


class Tools:
    """A folder with cmake, ninja, g++ and the others as scripts, and the source they build."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.bin = tmp_path, tmp_path / "tools"
        self.bin.mkdir()
        monkeypatch.setattr(release, "CLEAN_PATH", f"{self.bin}:/usr/bin:/bin")
        for name in ("ldd", "ccache"):
            self.put(name, "exit 0")
        self.put("g++", "echo 12.2.0")
        self.put("cmake", 'while [ "$1" != -B ]; do shift; done; mkdir -p "$2"; echo "$*" >>"$2/CMakeCache.txt"')
        self.put("ninja", "echo '[1/1] done'")
        with tarfile.open(tmp_path / "src.tar", "w") as tar:
            text = b'project("llama.cpp" C CXX)\n'
            member = tarfile.TarInfo("llama.cpp/CMakeLists.txt")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
        self.sha256 = hashlib.sha256((tmp_path / "src.tar").read_bytes()).hexdigest()
        self.budget = Budget(64 * GIB, 16, 0)
        monkeypatch.setattr(budget, "of_this_process", lambda: self.budget)
        self.steps: list[str] = []

    def put(self, name: str, script: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def request(self, **more: Any) -> Request:
        values = {"identity": {}, "options": {"GGML_NATIVE": "OFF"}, "targets": (TARGET,), "jobs": 8, **more}
        source = {"source_url": f"file://{self.root}/src.tar", "source_sha256": self.sha256}
        return Request(str(self.root / "opt"), str(self.root / "cache"), "0123456789abcdef", user="root", **source, **values)

    def build(self, **more: Any) -> Path:
        request = self.request(**more)
        compiling.compile_release(request, lambda step, *_: self.steps.append(step))
        return request.work


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    return Tools(tmp_path, monkeypatch)


# --- what is missing, and what is left over -----------------------------------------------------------


@pytest.mark.parametrize("name", ["cmake", "ninja", "g++", "ldd", "ccache"])
def test_a_missing_tool_is_named_before_anything_is_fetched(tools: Tools, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tools.bin / name).unlink()
    monkeypatch.setattr(release, "CLEAN_PATH", str(tools.bin))
    with pytest.raises(BigironError, match=f"not installed: {name.replace('+', '.')}"):
        tools.build(ccache_dir="/cc")
    assert not (tools.root / "cache" / "sources").exists()


def test_a_compiler_of_a_toolkit_that_is_not_there_is_named(tools: Tools) -> None:
    with pytest.raises(BigironError, match="CMAKE_CUDA_COMPILER is /no/nvcc, which is no program here"):
        tools.build(options={"GGML_NATIVE": "OFF", "CMAKE_CUDA_COMPILER": "/no/nvcc"})


def test_another_compiler_than_the_release_is_named_after_is_not_used(tools: Tools) -> None:
    tools.build(identity={"compiler": "g++ 12.2.0"})
    with pytest.raises(
        BigironError, match=r"the compiler is g\+\+ 12\.2\.0, and the release 0123456789abcdef is named after g\+\+ 14"
    ):
        tools.build(identity={"compiler": "g++ 14.2.0"})


def test_a_cmake_that_failed_leaves_no_cache_for_the_next_try(tools: Tools) -> None:
    good = (tools.bin / "cmake").read_text()
    tools.put(
        "cmake",
        good.partition("\n")[2].strip() + '; echo OPENSSL-NOTFOUND >>"$2/CMakeCache.txt"; echo "CMake Error: no TLS"; exit 1',
    )
    with pytest.raises(BigironError, match="no TLS"):
        tools.build()
    (tools.bin / "cmake").write_text(good)
    work = tools.build()
    assert "NOTFOUND" not in (work / "out" / "CMakeCache.txt").read_text()


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"GGML_NATIVE": "OFF", "GGML_LTO": "ON"}},
        {"environment": {"X": "1"}},
        {"library_path": ("/x",)},
        {"identity": {"toolchains": {"cuda": "13.5"}}},
        {"ccache_dir": "/cc"},
    ],
)
def test_a_build_with_other_inputs_starts_from_nothing(tools: Tools, change: dict[str, Any]) -> None:
    (tools.build() / "out" / "old.o").touch()
    work = tools.build()
    assert (work / "out" / "old.o").exists()  # the same inputs go on where they were
    assert not (tools.build(**change) / "out" / "old.o").exists()


def test_another_compiler_under_the_same_name_starts_from_nothing(tools: Tools) -> None:
    (tools.build() / "out" / "old.o").touch()
    tools.put("g++", "echo 12.3.0")
    assert not (tools.build() / "out" / "old.o").exists()


def test_all_builds_have_one_folder_so_that_ccache_finds_what_names_it(tools: Tools) -> None:
    one, other = tools.request(), dataclasses.replace(tools.request(), fingerprint="f" * 16)
    assert one.work == other.work
    (tools.root / "cache" / "build" / "0123456789abcdef").mkdir(parents=True)  # as earlier versions named it
    assert [path.name for path in tools.build().parent.iterdir()] == [one.work.name]


# --- the configure log --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "line", "says"),
    [
        (
            "LLAMA_OPENSSL",
            "CMake Warning at vendor/x:154 (message):\n  OpenSSL not found, HTTPS support disabled",
            "libssl-dev",
        ),
        ("GGML_CUDA", "-- CUDA Toolkit not found", "CUDA toolkit"),
        ("GGML_CUDA_NCCL", "-- Warning: NCCL not found, performance for multiple CUDA GPUs will be suboptimal", "NCCL"),
        ("GGML_VULKAN", "CMake Warning: Vulkan not found", "libvulkan-dev"),
        ("GGML_HIP", "CMake Warning: Only LLVM is supported for HIP, hint: CXX=/opt/rocm/llvm/bin/clang++", "no LLVM"),
        ("GGML_CCACHE", "-- Warning: ccache not found - consider installing it", "ccache"),
        ("GGML_LTO", "CMake Warning: IPO is not supported: x", "link time"),
        ("GGML_OPENMP", "CMake Warning at ggml/src/CMakeLists.txt:347 (message):\n  OpenMP not found", "one thread"),
        ("GGML_CUDA", "-- Including CPU backend\n-- Including RPC backend", "left that backend out"),
        (
            "GGML_OLD_NAME",
            "  Manually-specified variables were not used by the project:\n\n    GGML_OLD_NAME\n\n",
            "without effect",
        ),
        ("LLAMA_CURL", "  LLAMA_CURL is deprecated and will be ignored", "without effect"),
    ],
)
def test_a_fallback_matters_when_the_option_is_on_and_only_then(option: str, line: str, says: str) -> None:
    [problem] = configure_problems(f"{line}\n", {option: "ON"})
    assert option in problem
    assert says in problem
    assert configure_problems(f"{line}\n", {option: "OFF"} if option != "LLAMA_CURL" and "OLD" not in option else {}) == []


def test_openmp_is_on_unless_somebody_says_otherwise() -> None:
    assert "OpenMP" in configure_problems("  OpenMP not found\n", {})[0]


def test_a_backend_that_was_included_is_no_fallback() -> None:
    log = "-- Including CPU backend\n-- Including CUDA backend\n"
    assert configure_problems(log, {"GGML_CUDA": "ON", "GGML_NATIVE": "OFF"}) == []
    assert "GGML_HIP is ON" in configure_problems(log, {"GGML_HIP": "ON"})[0]


def test_arm_flags_that_are_not_found_would_be_native() -> None:
    log = "CMake Warning: ARM -march/-mcpu not found, -mcpu=native will be used\n"
    assert "this machine alone" in configure_problems(log, {"GGML_NATIVE": "OFF"})[0]


def test_nothing_is_compiled_after_a_fallback(tools: Tools) -> None:
    tools.put("cmake", "echo 'OpenSSL not found, HTTPS support disabled'")
    tools.put("ninja", f"touch {tools.root}/compiled")
    with pytest.raises(BigironError, match="libssl-dev") as caught:
        tools.build(options={"GGML_NATIVE": "OFF", "LLAMA_OPENSSL": "ON"})
    assert "nothing was compiled" in str(caught.value.hint)
    assert not (tools.root / "compiled").exists()


# --- memory, CPUs and disk ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "memory_gib", "cpus", "jobs"),
    [(64, 16, 64, 10), (64, 512, 4, 4), (8, 0.5, 8, 1), (2, 512, 64, 2), (8, 0, 8, 8)],
)
def test_compilers_at_once_are_bounded_by_memory_and_cpus(wanted: int, memory_gib: float, cpus: int, jobs: int) -> None:
    assert budget.jobs(wanted, Budget(int(memory_gib * GIB), cpus, 0)) == jobs


MEMINFO = {"proc/meminfo": f"MemAvailable: {64 * 2**20} kB\n", "proc/cpuinfo": "processor : 0\n" * 16}


@pytest.mark.parametrize(
    ("files", "memory_gib", "cpus", "kills"),
    [
        ({}, 64, 16, 0),
        ({"proc/self/cgroup": "0::/user.slice\n", "sys/fs/cgroup/user.slice/memory.max": "max\n"}, 64, 16, 0),
        (
            {
                "proc/self/cgroup": "0::/user.slice/s.scope\n",
                "sys/fs/cgroup/user.slice/memory.max": str(8 * GIB),
                "sys/fs/cgroup/user.slice/memory.current": str(6 * GIB),
                "sys/fs/cgroup/user.slice/memory.stat": f"anon 1\ninactive_file {3 * GIB}\n",
                "sys/fs/cgroup/user.slice/memory.events": "oom 3\noom_kill 2\n",
                "sys/fs/cgroup/user.slice/s.scope/cpu.max": "350000 100000\n",
            },
            5, 3, 2,
        ),
        (
            {
                "proc/self/cgroup": "9:memory:/a\n4:cpu,cpuacct:/a/b\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": str(0x7FFFFFFFFFFFF000),
                "sys/fs/cgroup/memory/memory.usage_in_bytes": str(50 * GIB),
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(4 * GIB),
                "sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(3 * GIB),
                "sys/fs/cgroup/memory/a/memory.stat": f"total_inactive_file {GIB}\n",
                "sys/fs/cgroup/memory/a/memory.oom_control": "under_oom 0\noom_kill 7\n",
                "sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
            },
            2, 2, 7,
        ),
        ({"proc/self/cgroup": "0::/gone/not/here\n", "proc/vmstat": "oom_kill 4\n"}, 64, 16, 4),
    ],
)  # fmt: skip
def test_control_groups_of_both_versions_bound_a_build(
    tmp_path: Path, files: dict[str, str], memory_gib: int, cpus: int, kills: int
) -> None:
    plant(tmp_path, {**MEMINFO, **files})
    found = budget.of_this_process(Tree(str(tmp_path)))
    assert (found.memory_bytes, found.cpus, found.oom_kills) == (memory_gib * GIB, cpus, kills)


def test_the_plan_counts_a_control_groups_limit_too() -> None:
    box = machine()
    limited = dataclasses.replace(box, memory=dataclasses.replace(box.memory, cgroup_limit_bytes=6 * GIB))
    for each, jobs in ((box, 64), (limited, 4)):
        assert plan_hosts([fact("a", box=each)], [])["a"].variables["llama_cpp_jobs"] == jobs  # type: ignore[union-attr]


def test_a_compiler_that_was_killed_for_memory_is_tried_with_half_as_many(tools: Tools) -> None:
    log = tools.root / "jobs"
    tools.put(
        "ninja",
        f'echo "$4" >>{log}; [ "$4" -le 2 ] || {{ echo "FAILED: a.o"; echo "g++: fatal error: Killed signal terminated program cc1plus"; exit 1; }}',
    )
    tools.build()
    assert log.read_text().split() == ["8", "4", "2"]
    assert "memory ran out: going on with 2 compilers" in tools.steps


def test_one_compiler_that_gets_no_memory_is_named_as_such(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    tools.put("ninja", 'echo "FAILED: x/ops.cpp.o"; echo "nvcc error : cicc died due to signal 9 (Kill signal)"; exit 1')
    seen = iter([Budget(64 * GIB, 16, 3), Budget(64 * GIB, 16, 4)])
    monkeypatch.setattr(budget, "of_this_process", lambda: next(seen))
    with pytest.raises(BigironError, match=r"the compiler was killed at ops\.cpp\.o: out of memory") as caught:
        tools.build(jobs=1)
    assert "what was compiled is kept" in str(caught.value.hint)


@pytest.mark.parametrize(
    "line",
    [
        "g++: fatal error: Killed signal terminated program cc1plus",
        "nvcc error   : 'cudafe++' died due to signal 9 (Kill signal)",
        "clang: error: unable to execute command: Killed",
        "/bin/sh: line 1: 77 Killed                  /usr/bin/c++ -O3",
        "/bin/sh: 77 Killed",
        "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes",
        "virtual memory exhausted: Cannot allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ],
)
def test_every_way_to_run_out_of_memory_is_known(line: str) -> None:
    assert "out of memory" in explain_failure(f"[7/9] x\nFAILED: a.o\n{line}\n")[0]


def test_an_error_in_the_source_is_no_lack_of_memory(tools: Tools) -> None:
    tools.put("ninja", "echo 'FAILED: a.o'; echo \"a.cpp:1:2: error: expected ';'\"; exit 1")
    with pytest.raises(BigironError, match="expected ';'"):
        tools.build()
    assert not any("memory" in step for step in tools.steps)


def test_a_disk_that_fills_in_the_middle_is_named_and_the_next_run_goes_on(tools: Tools) -> None:
    good = (tools.bin / "ninja").read_text()
    tools.put(
        "ninja",
        "echo '[1/2] ok'; echo 'FAILED: b.o'; echo 'fatal error: error writing to b.s: No space left on device'; exit 1",
    )
    with pytest.raises(BigironError, match="the disk is full") as caught:
        (tools.build() / "never").touch()
    assert "what was compiled is kept" in str(caught.value.hint)
    (tools.request().work / "out" / "a.o").touch()
    (tools.bin / "ninja").write_text(good)
    assert (tools.build() / "out" / "a.o").exists()


# --- native, and every CPU of the lab -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ["GGML_NATIVE"]),
        ({"GGML_NATIVE": "ON"}, ["GGML_NATIVE"]),
        ({"GGML_NATIVE": "OFF"}, []),
        ({"GGML_NATIVE": "OFF", "CMAKE_CXX_FLAGS": "-O3 -march=native"}, ["CMAKE_CXX_FLAGS"]),
        ({"GGML_NATIVE": "OFF", "CMAKE_CUDA_ARCHITECTURES": "native"}, ["CMAKE_CUDA_ARCHITECTURES"]),
        ({"GGML_NATIVE": "OFF", "AMDGPU_TARGETS": "gfx1100"}, []),
        ({"GGML_NATIVE": "OFF", "X": "/opt/native-tools/bin"}, []),
    ],
)
def test_what_fits_only_the_builder_is_known(options: dict[str, str], found: list[str]) -> None:
    assert buildlog.native(options) == found


def test_a_native_build_needs_every_flag_of_its_cpu() -> None:
    source = build_options.Source("http://x", "0" * 64, "", 11434, "b11434")
    _, baseline = build_options.options("x86_64", [*ZEN4, "sha_ni"], source, web_ui=False, extra={"GGML_NATIVE": "ON"})
    assert "sha_ni" in baseline


@pytest.mark.parametrize("name", ["CMAKE_CUDA_ARCHITECTURES", "CMAKE_HIP_ARCHITECTURES", "GPU_TARGETS", "AMDGPU_TARGETS"])
def test_native_gpu_architectures_are_refused_by_the_plan_and_on_the_host(tools: Tools, name: str) -> None:
    plan = plan_hosts([fact("a", llama_cpp_extra_options={name: "native"})], [])["a"]
    assert name in str(plan.planned.refusals[0])  # type: ignore[union-attr]
    with pytest.raises(Refused, match=name):
        tools.build(options={"GGML_NATIVE": "OFF", name: "89;native"})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("CMAKE_CUDA_ARCHITECTURES", "90;12.1", "write 121"),
        ("CMAKE_CUDA_ARCHITECTURES", "sm_90", "write 90"),
        ("CMAKE_CUDA_ARCHITECTURES", "compute_120a", "write 120a"),
        ("CMAKE_CUDA_ARCHITECTURES", "No CUDA devices found", "89;120a"),
        ("CMAKE_CUDA_ARCHITECTURES", "", "89;120a"),
        ("GPU_TARGETS", "1100", "gfx1100;gfx90a"),
        ("AMDGPU_TARGETS", "gfx1100,gfx1030", "gfx1100;gfx90a"),
    ],
)
def test_what_is_no_gpu_architecture_is_refused_with_what_to_write(name: str, value: str, says: str) -> None:
    plan = plan_hosts([fact("a", llama_cpp_extra_options={name: value})], [])["a"]
    [refusal] = plan.planned.refusals  # type: ignore[union-attr]
    assert name in refusal.what
    assert says in str(refusal.hint)


@pytest.mark.parametrize("value", ["90;120a;121f-real;75-virtual", "all-major", "89"])
def test_lists_of_cuda_architectures_keep_their_order(value: str) -> None:
    plan = plan_hosts([fact("a", llama_cpp_extra_options={"CMAKE_CUDA_ARCHITECTURES": value})], [])["a"]
    assert plan.planned.refusals == []  # type: ignore[union-attr]
    assert plan.variables["llama_cpp_options"]["CMAKE_CUDA_ARCHITECTURES"] == value  # type: ignore[union-attr]
    assert build_options.wrong_architectures({"GPU_TARGETS": "gfx942:sramecc+:xnack-;gfx11-generic;gfx90a"}) == []


def test_a_cache_without_attention_kernels_on_the_gpu_is_told() -> None:
    assert build_options.attention_gap(("q8_0", "f16")) == ""
    assert "a cache of iq4_nl: it would run on the CPU" in build_options.attention_gap(("iq4_nl", "iq4_nl"))


def test_one_release_for_every_cpu_says_what_it_costs() -> None:
    plan = plan_hosts([fact("a", llama_cpp_all_cpus=True)], [])["a"]
    [why] = [each.why for each in plan.planned.reasons if each.topic == "CPU"]  # type: ignore[union-attr]
    assert "471 steps of compiling instead of 224" in why
    assert plan.planned.refusals == []  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("box", "says"),
    [(machine((*ZEN4, "amx_tile", "amx_int8")), "#26954"), (machine(("asimd",), arch="aarch64"), "this host is aarch64")],
)
def test_it_is_refused_where_it_would_die(box: Any, says: str) -> None:
    plan = plan_hosts([fact("a", box=box, llama_cpp_all_cpus=True)], [])["a"]
    assert says in str(plan.planned.refusals[0])  # type: ignore[union-attr]
    assert plan_hosts([fact("a", box=box)], [])["a"].planned.refusals == []  # type: ignore[union-attr]
