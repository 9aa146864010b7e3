"""What cmake and ninja say: options without effect, fallbacks that nobody asked for, and why a compile failed.

Standard library only: this file also runs on hosts.
"""

from __future__ import annotations

import re
from typing import List, Mapping, NamedTuple, Tuple

ON = frozenset({"ON", "1", "TRUE", "YES", "Y"})
FULL = "No space left on device"
BACKENDS = ("CUDA", "HIP", "METAL", "VULKAN", "SYCL", "RPC", "OPENCL", "MUSA")
GPU_ARCHITECTURES = ("_ARCHITECTURES", "GPU_TARGETS")
"""Options end so: CMAKE_CUDA_ARCHITECTURES, CMAKE_HIP_ARCHITECTURES, GPU_TARGETS, AMDGPU_TARGETS."""
NATIVE = r"(?i)(?<![\w-])native(?![\w-])|-m(arch|cpu|tune)=native"
"""In the value of an option: whatever this machine has, which another one may not have."""
KILLED = (
    r"(?im)Killed signal terminated program|died due to signal 9|unable to execute command: Killed|signal 9\b"
    r"|^\S*sh: .*\bKilled\b|^.*\bKilled\s*$|out of memory|cannot allocate memory|virtual memory exhausted|std::bad_alloc"
)
"""GCC, nvcc, clang, the shell, and compilers that were not killed but got no memory."""


class Fallback(NamedTuple):
    """``option`` is ON (``unless``: is not OFF), and cmake goes on without it: it says ``said``."""

    option: str
    said: str
    told: str
    unless: bool = False


# the words of llama.cpp's CMakeLists.txt, b8072 to b11434, all of them warnings or less
FALLBACKS = (
    Fallback(
        "LLAMA_OPENSSL",
        r"OpenSSL not found|HTTPS support disabled",
        "OpenSSL's headers are missing (Debian: libssl-dev): no HTTPS",
    ),
    Fallback(
        "GGML_CUDA", r"CUDA Toolkit not found|cuBLAS not found|Could NOT find CUDAToolkit", "the CUDA toolkit was not found"
    ),
    Fallback("GGML_CUDA_NCCL", r"NCCL not found", "NCCL was not found (Debian: libnccl-dev)"),
    Fallback(
        "GGML_VULKAN", r"Vulkan not found|Could NOT find Vulkan", "Vulkan's headers were not found (Debian: libvulkan-dev)"
    ),
    Fallback("GGML_HIP", r"Only LLVM is supported for HIP", "the C++ compiler is no LLVM"),
    Fallback("GGML_BLAS", r"BLAS not found", "BLAS was not found"),
    Fallback("GGML_CCACHE", r"ccache not found", "ccache was not found"),
    Fallback("GGML_LTO", r"IPO is not supported", "the compiler has no link time optimization"),
    Fallback("GGML_OPENMP", r"OpenMP not found", "OpenMP was not found: one thread where there could be all", unless=True),
)


def configure_problems(log: str, options: Mapping[str, str]) -> List[str]:
    """What cmake only warns about and is wrong for us: an option of ours that has no effect, or something asked for that is not there."""
    found = []
    match = re.search(r"Manually-specified variables were not used by the project:\n\n((?:[ \t]+\S+\n)+)", log + "\n")
    unused = set(match.group(1).split()) & set(options) if match else set()
    unused |= {name for name in re.findall(r"(\w+) is deprecated and will be ignored", log) if name in options}
    if unused:
        found.append(f"options without effect in this llama.cpp: {', '.join(sorted(unused))}")
    on = {name for name, value in options.items() if value.upper() in ON}
    off = {name for name, value in options.items() if value.upper() not in ON}
    for each in FALLBACKS:
        wanted = each.option not in off if each.unless else each.option in on
        if wanted and re.search(each.said, log):
            found.append(f"{each.option} is {'not OFF' if each.unless else 'ON'} and {each.told}")
    included = {name.upper() for name in re.findall(r"^-- Including (\w+) backend", log, re.MULTILINE)}
    for name in BACKENDS:
        if included and f"GGML_{name}" in on and name not in included and not any(f"GGML_{name} " in told for told in found):
            found.append(f"GGML_{name} is ON and cmake left that backend out")
    if "GGML_NATIVE" in off and "-mcpu=native will be used" in log:
        found.append("GGML_NATIVE is OFF and the ARM flags were not found, so cmake would build for this machine alone")
    return found


def native(options: Mapping[str, str]) -> List[str]:
    """The options that make a build fit this machine alone; GGML_NATIVE is ON in llama.cpp where nobody says otherwise."""
    found = [name for name, value in options.items() if name != "GGML_NATIVE" and re.search(NATIVE, value)]
    return (["GGML_NATIVE"] if options.get("GGML_NATIVE", "ON").upper() in ON else []) + found


def cmake_error(text: str) -> str:
    """The first error in cmake's output, else its end."""
    at = text.find("CMake Error")
    return " ".join(text[at : at + 600].split()) if at >= 0 else " ".join(text[-400:].split())


def explain_failure(log: str, out_of_memory: bool = False) -> Tuple[str, str]:
    """``(what, hint)`` from ninja's output: out of memory and disk full look like compiler faults and are not."""
    failed = log.find("FAILED:")
    where = log[failed:] if failed >= 0 else log
    if out_of_memory or killed(log):
        why = "out of memory" if out_of_memory else "most likely out of memory"
        source = re.search(r"^FAILED: (?:\[code=\d+\] )?(\S+)", where, re.MULTILINE)
        at = f" at {source.group(1).rsplit('/', 1)[-1]}" if source else ""
        return f"the compiler was killed{at}: {why}", "make room in memory and run it again: what was compiled is kept"
    if FULL in log:
        return "the disk is full", "make room and run it again: what was compiled is kept"
    error = re.search(r"^.*(?:error|Error|undefined reference).*$", where, re.MULTILINE)
    return (error.group(0).strip() if error else " ".join(where[-300:].split())), "the log on the host has the rest"


def killed(log: str) -> bool:
    """Whether a compiler was killed, or got no memory."""
    return bool(re.search(KILLED, log))
