"""NVIDIA's software on a host: the driver that is loaded and the one installed, every nvcc, Secure Boot, and the GPUs' settings."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from ..reader import Reader
from ..system import Output, Tree

SECTION = "nvidia"
SETTINGS = "settings"
"""The name to watch for what the GPUs are set to; every other fact is observed whatever is named."""
QUERY = ("persistence_mode", "power.limit", "power.max_limit", "ecc.mode.current", "ecc.mode.pending")
KEYS = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")
"""Public keys with which DKMS signs modules: Debian's, Ubuntu's."""
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
DRIVER = re.compile(r"NVRM version:\s+NVIDIA UNIX (Open )?.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_SMI = ["nvidia-smi", f"--query-gpu=pci.bus_id,{','.join(QUERY)}", "--format=csv,noheader,nounits"]


def observe(reader: Reader, names: Iterable[str]) -> Callable[[], Dict[str, Any]]:
    """The facts by name, each there only when it could be told.

    ``driver {"loaded", "module"}``, ``library`` (its version), ``nvcc {path: {"version", "headers"}}``, ``compilers`` (installed majors of g++),
    ``blacklist`` (the file that keeps nouveau out), ``secure_boot {"on", "key", "enrolled"}`` and, where named, ``settings`` by PCI address.
    """
    tree = reader.tree
    found: Dict[str, Any] = {"nvcc": {}, "compilers": _compilers(tree)}
    match = DRIVER.search(tree.text("/proc/driver/nvidia/version"))
    if match:
        found["driver"] = {"loaded": match.group(2), "module": "open" if match.group(1) else "closed"}
    library = _library(tree)
    if library:
        found["library"] = library
    blacklist = _blacklist(tree)
    if blacklist:
        found["blacklist"] = blacklist
    asked = {path: reader.begin([tree.path(path), "--version"]) for path in _nvcc(tree)}
    secure = _secure_boot(reader)
    settings = reader.begin(_SMI) if SETTINGS in names and match else None

    def finish() -> Dict[str, Any]:
        for path, wait in asked.items():
            version = re.search(r"release [\d.]+, V([\d.]+)", wait().out)
            headers = _headers(tree, path)
            found["nvcc"][path] = {"version": version.group(1) if version else "", "headers": headers}
        found["secure_boot"] = secure()
        if settings:
            found[SETTINGS] = parse_settings(settings())
        return found

    return finish


def _nvcc(tree: Tree) -> List[str]:
    """Where a compiler may stand that a shell or CMake would find, and ours; a link stands for what it leads to only once."""
    folders = ["/usr/local/bin", "/usr/bin", "/usr/local/cuda/bin"]
    folders += [f"/usr/local/{name}/bin" for name in tree.names("/usr/local") if name.startswith("cuda-")]
    toolkits = "/opt/bigiron/toolkits"
    folders += [f"{toolkits}/{name}/bin" for name in tree.names(toolkits)]
    return [f"{folder}/nvcc" for folder in folders if tree.exists(f"{folder}/nvcc")]


def _headers(tree: Tree, path: str) -> str:
    """``"13.5"``: what the headers beside a compiler say they are."""
    root = path[: -len("/bin/nvcc")]
    match = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", tree.text(f"{root}/include/cuda_runtime_api.h"))
    return f"{int(match.group(1)) // 1000}.{int(match.group(1)) % 1000 // 10}" if match else ""


def _library(tree: Tree) -> str:
    """The version of the installed libcuda: its file name ends in it."""
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"):
        for where in (folder, f"{folder}/nvidia/current"):
            for name in tree.names(where):
                match = re.fullmatch(r"libcuda\.so\.(\d+\.\d+(\.\d+)?)", name)
                if match:
                    return match.group(1)
    return ""


def _compilers(tree: Tree) -> List[int]:
    majors = (re.fullmatch(r"g\+\+-(\d+)", name) for name in tree.names("/usr/bin"))
    return sorted(int(match.group(1)) for match in majors if match)


def _blacklist(tree: Tree) -> str:
    for folder in ("/etc/modprobe.d", "/lib/modprobe.d", "/usr/lib/modprobe.d"):
        for name in tree.names(folder):
            text = tree.text(f"{folder}/{name}", 65536) if name.endswith(".conf") else ""
            if re.search(r"^\s*blacklist\s+nouveau\s*$", text, re.MULTILINE):
                return f"{folder}/{name}"
    return ""


def _secure_boot(reader: Reader) -> Callable[[], Dict[str, Any]]:
    """Off where the firmware is no EFI, or says so. ``enrolled`` is None where nobody can tell: there is no key, or no mokutil."""
    tree = reader.tree
    variable = tree.data(SECURE_BOOT)
    key = next((path for path in KEYS if tree.exists(path)), "")
    facts: Dict[str, Any] = {"on": bool(variable and variable[-1:] == b"\x01"), "key": key, "enrolled": None}
    if not facts["on"] or not key:
        return lambda: facts
    wait = reader.begin(["mokutil", "--test-key", key])
    return lambda: {**facts, "enrolled": _enrolled(wait())}


def _enrolled(answer: Output) -> Optional[bool]:
    """The exit code of mokutil is 1 for a key that IS enrolled (and 0 for one that is not), so its words count."""
    said = answer.out + answer.err
    return True if "is already enrolled" in said else False if "is not enrolled" in said else None


def parse_settings(answer: Output) -> Dict[str, Any]:
    """nvidia-smi's lines by PCI address; ``[N/A]`` and anything odd is None."""
    if answer.rc != 0:
        return {"error": " ".join((answer.err or answer.out).split())[:200] or f"nvidia-smi ended with {answer.rc}"}
    found: Dict[str, Any] = {}
    for line in answer.out.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 1 + len(QUERY) and re.fullmatch(r"[0-9A-Fa-f]{4,8}:\S+", words[0]):
            domain, _, rest = words[0].lower().partition(":")
            found[f"{int(domain, 16):04x}:{rest}"] = dict(zip(QUERY, (_value(word) for word in words[1:])))
    return found


def _value(word: str) -> Any:
    if word in ("Enabled", "Disabled"):
        return word == "Enabled"
    try:
        return float(word)
    except ValueError:
        return None


def differs(_name: str, want: Mapping[str, Any], have: Any) -> Iterator[Tuple[str, str]]:
    """``want``: ``{"persistence_mode": bool, "power.limit": watts, "ecc.mode.pending": bool}``, any of them, of every GPU."""
    if have is None or "error" in have:
        yield f"nvidia-smi does not tell: {(have or {}).get('error', 'no driver is loaded')}", ""
        return
    for pci, gpu in sorted(have.items()):
        for name, value in want.items():
            if gpu.get(name) is not None and gpu[name] != value:
                yield f"{name} of {pci} is {_word(gpu[name])}, not {_word(value)}", ""


def _word(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else f"{value:g} W"
