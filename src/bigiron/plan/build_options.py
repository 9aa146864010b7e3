"""Which llama.cpp to build: CMake options from the CPU's own flags, and the fingerprint that names the result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from bigiron.plan.sources import Source
from bigiron.units import GIB

TARGETS = ("llama-server", "llama-bench", "llama-fit-params", "llama-gguf-split")
BUILD_DISK_BYTES = 2 * GIB
"""Archive, unpacked source and objects of a CPU build, rounded up (b11434: 0.04 + 0.18 + 0.4 GiB) plus the release and its packed copy."""
TOOLCHAIN_DISK_BYTES = 1 * GIB
"""g++, cmake, ninja and ccache with what they need on Debian 12 (0.5 GiB installed), plus the downloaded packages."""
JOB_MEMORY_BYTES = int(1.5 * GIB)
"""Peak of one compiler process on llama.cpp's heaviest file; unrestricted -j has the kernel kill the compiler (llama.cpp#13993)."""

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
    """Everything that decides the bytes of a release; its hash is the fingerprint. ``source`` is `Source.identity`."""

    source: Mapping[str, str]
    options: Mapping[str, str]
    compiler: str
    libc: str
    cpu_baseline: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            **self.source,
            "options": dict(sorted(self.options.items())),
            "compiler": self.compiler,
            "libc": self.libc,
            "cpu_baseline": list(self.cpu_baseline),
        }


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
    if arch in ("x86_64", "amd64"):
        chosen = {name: have.issuperset(needs) for name, needs in X86_OPTIONS.items()}
        baseline = tuple(sorted({flag for name, needs in X86_OPTIONS.items() if chosen[name] for flag in needs}))
        named = {name: "ON" if on else "OFF" for name, on in chosen.items()}
        return {"GGML_NATIVE": "OFF", **named, **dict.fromkeys(AMX_OPTIONS, "OFF")}, baseline
    if arch in ("aarch64", "arm64"):
        extensions = [name for flag, name in ARM_EXTENSIONS.items() if flag in have]
        march = "+".join(["armv8.2-a" if "asimddp" in have else "armv8-a", *extensions])
        return {"GGML_NATIVE": "OFF", "GGML_CPU_ARM_ARCH": march}, tuple(sorted(have & set(ARM_EXTENSIONS)))
    return {"GGML_NATIVE": "ON"}, tuple(sorted(have))


def options(
    arch: str, flags: Collection[str], source: Source, *, web_ui: bool, extra: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """All CMake options of a CPU build, and its CPU baseline. Extra options of the person win; a wrong name is caught by the build."""
    cpu, baseline = cpu_options(arch, flags)
    chosen = {
        "CMAKE_BUILD_TYPE": "Release",
        "BUILD_SHARED_LIBS": "ON",
        "LLAMA_BUILD_TESTS": "OFF",
        "LLAMA_BUILD_EXAMPLES": "OFF",
        "LLAMA_BUILD_APP": "OFF",
        "LLAMA_BUILD_UI": "OFF",
        "LLAMA_USE_PREBUILT_UI": "ON" if web_ui else "OFF",  # ON downloads the page at build time
        "LLAMA_OPENSSL": "OFF",  # the server reads local files and listens on loopback; TLS ends in front of it
        "LLAMA_BUILD_NUMBER": str(source.build_number),  # else counted from git history, which an archive lacks
        "LLAMA_BUILD_COMMIT": source.commit,
        "GGML_CCACHE": "OFF",  # the launcher is set by name, so that a missing ccache is seen
        **cpu,
        **extra,
    }
    return chosen, baseline


def jobs(threads: int, available_bytes: int) -> int:
    """Compiler processes at once: one per thread, as far as memory allows (`JOB_MEMORY_BYTES` each), at least 1."""
    return max(1, min(threads, available_bytes // JOB_MEMORY_BYTES))
