"""Which llama.cpp to build: CMake options from the CPU's own flags, and the fingerprint that names the result."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bigiron.onhost.budget import JOB_MEMORY_BYTES
from bigiron.onhost.buildlog import GPU_ARCHITECTURES, native
from bigiron.plan.sources import Source
from bigiron.units import GIB

TARGETS = ("llama-server", "llama-bench", "llama-fit-params", "llama-gguf-split")
BUILD_DISK_BYTES = 2 * GIB
"""Archive, unpacked source and objects of a CPU build, rounded up (b11434: 0.04 + 0.18 + 0.4 GiB) plus the release and its packed copy."""
TOOLCHAIN_DISK_BYTES = 1 * GIB
"""g++, cmake, ninja and ccache with what they need on Debian 12 (0.5 GiB installed), plus the downloaded packages."""

X86 = ("x86_64", "amd64")
# CMake option <- every kernel flag (/proc/cpuinfo) it needs; names from ggml/CMakeLists.txt and ggml/src/ggml-cpu/CMakeLists.txt (b11434)
X86_OPTIONS: dict[str, tuple[str, ...]] = {
    "GGML_SSE42": ("sse4_2",),
    "GGML_AVX": ("avx",),
    "GGML_F16C": ("f16c",),
    "GGML_FMA": ("fma",),
    "GGML_BMI2": ("bmi2",),
    "GGML_AVX2": ("avx2",),
    "GGML_AVX_VNNI": ("avx_vnni",),
    "GGML_AVX512": ("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"),
    "GGML_AVX512_VBMI": ("avx512vbmi",),
    "GGML_AVX512_VNNI": ("avx512_vnni",),
    "GGML_AVX512_BF16": ("avx512_bf16",),
}
AMX_OPTIONS = ("GGML_AMX_TILE", "GGML_AMX_INT8", "GGML_AMX_BF16")
"""Off even where the CPU has AMX: GCC drops the tile configuration as a dead store, and the first tile load is an illegal instruction
(llama.cpp pull request #26954, open; seen with b11434 and g++ 12.2.0). ``llama_cpp_extra_options`` can turn them on."""
# GCC's -march extension <- kernel flag (arch/arm64/include/asm/hwcap.h)
ARM_EXTENSIONS = {"asimddp": "dotprod", "asimdhp": "fp16", "i8mm": "i8mm", "sve": "sve", "bf16": "bf16"}


@dataclass(frozen=True)
class Identity:
    """Everything that decides the bytes of a release; its hash is the fingerprint. ``source`` is `Source.identity`.

    ``drivers`` are the oldest kernel drivers, by module, that run it; ``only_for`` is the host of a build that fits no other (native).
    """

    source: Mapping[str, str]
    options: Mapping[str, str]
    compiler: str
    libc: str
    cpu_baseline: tuple[str, ...]
    toolchains: Mapping[str, str] = field(default_factory=dict)
    drivers: Mapping[str, str] = field(default_factory=dict)
    only_for: str = ""

    def to_json(self) -> dict[str, Any]:
        """As it is hashed; what a CPU build does not have is left out, so that its name is what it always was."""
        return {
            **self.source,
            "options": dict(sorted(self.options.items())),
            "compiler": self.compiler,
            "libc": self.libc,
            "cpu_baseline": list(self.cpu_baseline),
            **({"toolchains": dict(sorted(self.toolchains.items()))} if self.toolchains else {}),
            **({"drivers": dict(sorted(self.drivers.items()))} if self.drivers else {}),
            **({"only_for": self.only_for} if self.only_for else {}),
        }

    @property
    def complete(self) -> bool:
        """Whether every version that decides its bytes is known."""
        return bool(self.compiler and all(self.toolchains.values()))


@dataclass(frozen=True)
class Access:
    """What the service needs of its host to reach a GPU.

    ``devices`` are globs of nodes below /dev and ``allow`` what the unit opens of them (DeviceAllow=, systemd.resource-control(5)); ``groups`` own
    them, one of the kernel ``modules`` drives them; ``environment`` goes to the
    process; ``writable_code``: a compiler at run time needs memory that is both written and executed; ``after`` are units that make the nodes;
    ``cache`` are variables that name a folder for what the driver compiled: else every start compiles it anew.
    """

    devices: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    writable_code: bool = False
    after: tuple[str, ...] = ()
    cache: tuple[str, ...] = ()


@dataclass(frozen=True)
class Toolchain:
    """What one GPU backend is built with, and what its service may touch.

    ``version`` is exact ("13.5.37 (pypi)"), empty while the host must first install it; ``options`` are CMake's; ``environment`` is the
    build's; ``library_path`` are folders in which its libraries lie on every host that runs the result; ``compilers`` are languages
    whose compiler ccache stands before (CUDA, HIP). ``drivers`` are the oldest kernel drivers that run the result: ``{"nvidia": "580.65.6"}``.
    ``widens`` names the options whose list of GPU architectures was not asked for but taken from the host's GPUs: other hosts' may join it.
    """

    backend: str
    version: str
    options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    library_path: tuple[str, ...] = ()
    compilers: tuple[str, ...] = ()
    access: Access = Access()
    drivers: Mapping[str, str] = field(default_factory=dict)
    widens: tuple[str, ...] = ()


def fingerprint(identity: Mapping[str, Any]) -> str:
    """The first 16 hex digits of the SHA-256 of ``identity`` (`Identity.to_json`) as canonical JSON."""
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def cpu_options(arch: str, flags: Collection[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """CMake options for exactly this CPU, and the baseline: the kernel flags a CPU must have to run the result.

    ``GGML_NATIVE`` stays off: the options say what ``-march=native`` would only imply, so hosts with the same flags share a release and a
    CPU without them never gets it (llama.cpp#8734: illegal instruction). An architecture without a table here builds natively.
    """
    have = set(flags)
    if arch in X86:
        chosen = {name: have.issuperset(needs) for name, needs in X86_OPTIONS.items()}
        baseline = tuple(sorted({flag for name, needs in X86_OPTIONS.items() if chosen[name] for flag in needs}))
        named = {name: "ON" if on else "OFF" for name, on in chosen.items()}
        return {"GGML_NATIVE": "OFF", **named, **dict.fromkeys(AMX_OPTIONS, "OFF")}, baseline
    if arch in ("aarch64", "arm64"):
        extensions = [name for flag, name in ARM_EXTENSIONS.items() if flag in have]
        march = "+".join(["armv8.2-a" if "asimddp" in have else "armv8-a", *extensions])
        return {"GGML_NATIVE": "OFF", "GGML_CPU_ARM_ARCH": march}, tuple(sorted(have & set(ARM_EXTENSIONS)))
    return {"GGML_NATIVE": "ON"}, tuple(sorted(have))


@dataclass(frozen=True)
class Option:
    """One CMake option of our choice; ``since`` and ``until`` are the first and last build that knows it (upstream's numbers)."""

    name: str
    value: str
    since: int = 0
    until: int = 10**9


COMMON = (
    Option("CMAKE_BUILD_TYPE", "Release"),
    Option("BUILD_SHARED_LIBS", "ON"),
    Option("LLAMA_BUILD_TESTS", "OFF"),
    Option("LLAMA_BUILD_EXAMPLES", "OFF"),
    Option("LLAMA_BUILD_APP", "OFF", since=10398),
    Option("LLAMA_BUILD_UI", "OFF", since=9152),
    Option("LLAMA_CURL", "OFF", until=8071),  # libcurl went with b8072, pull request of 2026-02-16
    Option("LLAMA_OPENSSL", "OFF", since=8072),  # the server reads local files and listens on loopback; TLS ends in front of it
    Option("GGML_CCACHE", "OFF"),  # the launcher is set by name, so that a missing ccache is seen
)
"""Of every build, from llama.cpp's CMakeLists.txt of b11434, b10587 and b8072."""
BACKEND_OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "cuda": (
        Option("GGML_CUDA", "ON", since=3265),
        Option("LLAMA_CUDA", "ON", until=3264),
        Option("GGML_CUDA_NCCL", "OFF", since=10884),
    ),
    "hip": (Option("GGML_HIP", "ON", since=4154), Option("GGML_HIPBLAS", "ON", until=4153)),
    "vulkan": (Option("GGML_VULKAN", "ON", since=3265), Option("LLAMA_VULKAN", "ON", until=3264)),
    "metal": (Option("GGML_METAL", "ON", since=3265), Option("GGML_METAL_EMBED_LIBRARY", "ON", since=3265)),
}
"""By backend. LLAMA_* became GGML_* with b3265 and HIPBLAS became HIP with b4154; an old name is silently ignored (llama.cpp#8155, #15245)."""
FA_QUANTS_SINCE = 10884
"""GGML_CUDA_FA_QUANTS takes a list of pairs; before it there was only GGML_CUDA_FA_ALL_QUANTS (absent in b10587, there in b10884)."""
FA_PAIRS = ("f16-f16", "q4_0-q4_0", "q8_0-q8_0", "bf16-bf16")
"""K-V types of the cache that CUDA and HIP builds have vector flash attention kernels for by default."""
FA_TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "bf16", "f16")


def options(
    arch: str,
    flags: Collection[str],
    source: Source,
    *,
    web_ui: bool,
    extra: Mapping[str, str],
    toolchains: Sequence[Toolchain] = (),
    all_cpus: bool = False,
    cache_types: tuple[str, str] = ("f16", "f16"),
) -> tuple[dict[str, str], tuple[str, ...]]:
    """All CMake options of a build, and its CPU baseline. Extra options of the person win; a wrong name is caught by the build.

    ``all_cpus`` compiles the CPU backend for every x86-64 generation; the server loads the best one at its start. ``cache_types`` (K, V)
    decide which flash attention kernels a GPU build gets.
    """
    cpu, baseline = (ALL_VARIANTS, ()) if all_cpus else cpu_options(arch, flags)
    chosen = {
        **_known(COMMON, source.build_number),
        # ON downloads the page at build time
        **_known([Option("LLAMA_USE_PREBUILT_UI", "ON" if web_ui else "OFF", since=9152)], source.build_number),
        "LLAMA_BUILD_NUMBER": str(source.build_number),  # else counted from git history, which an archive lacks
        "LLAMA_BUILD_COMMIT": source.commit,
        **cpu,
    }
    for toolchain in toolchains:
        chosen.update(_known(BACKEND_OPTIONS.get(toolchain.backend, ()), source.build_number))
        chosen.update(toolchain.options)
        # a backend that cannot be loaded (no driver) leaves a server that still runs, and is seen by the proof
        chosen["GGML_BACKEND_DL"] = "ON"
        if toolchain.backend in ("cuda", "hip"):
            chosen.update(_attention(cache_types, source.build_number))
    chosen.update(extra)
    return chosen, tuple(sorted(flags)) if native(chosen) else baseline


ALL_VARIANTS_COST = "14 CPU backends instead of one: 471 steps of compiling instead of 224 (b11434)"
ALL_VARIANTS = {"GGML_NATIVE": "OFF", "GGML_BACKEND_DL": "ON", "GGML_CPU_ALL_VARIANTS": "ON"}


def _known(table: Sequence[Option], build_number: int) -> dict[str, str]:
    return {option.name: option.value for option in table if option.since <= build_number <= option.until}


def _attention(cache_types: tuple[str, str], build_number: int) -> dict[str, str]:
    """The option that compiles the kernels of this pair; none where they are built anyway, or where there is no such kernel."""
    pair = "-".join(cache_types)
    if pair in FA_PAIRS or not {*cache_types} <= {*FA_TYPES}:
        return {}
    if build_number < FA_QUANTS_SINCE:
        return {"GGML_CUDA_FA_ALL_QUANTS": "ON"}
    return {"GGML_CUDA_FA_QUANTS": ",".join((*FA_PAIRS, pair))}


def attention_gap(cache_types: tuple[str, str]) -> str:
    """Why flash attention of CUDA and HIP has no kernel for these types of the cache (K, V), so that it runs on the CPU; "" where it has."""
    unable = [each for each in dict.fromkeys(cache_types) if each not in FA_TYPES]
    return f"there is no flash attention kernel for a cache of {', '.join(unable)}: it would run on the CPU" if unable else ""


_CUDA_ARCHITECTURE = r"[1-9]\d{1,2}[af]?(-real|-virtual)?|all|all-major"
_GFX_ARCHITECTURE = r"gfx[0-9a-f]{3,4}(:\w+[+-])*|gfx\d+(-\d+)?-generic"


def wrong_architectures(options: Mapping[str, str]) -> list[tuple[str, str]]:
    """GPU architectures that cmake would take and the compiler not, or that are a message of some tool: ``(what, hint)`` each."""
    found = []
    for name, value in options.items():
        if not name.endswith(GPU_ARCHITECTURES) or native({**options, "GGML_NATIVE": "OFF"}):
            continue
        pattern, like = (_CUDA_ARCHITECTURE, "89;120a") if "CUDA" in name else (_GFX_ARCHITECTURE, "gfx1100;gfx90a")
        for each in value.split(";"):
            if not re.fullmatch(pattern, each):
                digits = re.fullmatch(r"(?:sm_|compute_)?(\d+)\.?(\d[af]?)", each) if "CUDA" in name else None
                hint = f"write {digits[1]}{digits[2]}" if digits else f"name them like {like}"
                found.append((f"{name} holds {each!r}, which is no architecture", f"{hint}; nothing was changed"))
    return found


def jobs(threads: int, available_bytes: int) -> int:
    """Compiler processes at once: one per thread, as far as memory allows (`JOB_MEMORY_BYTES` each), at least 1.

    The host looks again when it compiles (`bigiron.onhost.budget`): by then less may be free.
    """
    return max(1, min(threads, available_bytes // JOB_MEMORY_BYTES))
