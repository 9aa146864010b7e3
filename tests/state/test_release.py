"""The installed llama.cpp: is it what the plan names, is it whole, does it run as the service user in an empty environment?"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

from bigiron.report.verdict import Check
from bigiron.units import count

from .subject import CannotTell, Subject

BACKEND_WORDS = {"cuda": "CUDA", "rocm": "ROCm", "vulkan": "Vulkan"}
LIBRARIES = {"cuda": "cuda", "rocm": "hip", "vulkan": "vulkan"}
VENDORS = {"cuda": {"0x10de"}, "rocm": {"0x1002"}, "vulkan": {"0x10de", "0x1002", "0x8086"}}
NODES = {"cuda": "/dev/nvidia", "rocm": "/dev/kfd", "vulkan": "/dev/dri/"}


def current(s: Subject) -> tuple[bool, str]:
    if s.missing("release", "current"):
        return False, f"{s.expect['llama_cpp_prefix']}/current does not exist"
    found = s.fact("release", "current")
    if found["type"] != "link":
        return False, f"current is a {found['type']}, not a link"
    wanted = f"releases/{s.expect['llama_cpp_fingerprint']}"
    target = found["target"].removeprefix(s.expect["llama_cpp_prefix"] + "/")
    return target == wanted, f"current points at {target}, planned {wanted}"


def manifest(s: Subject) -> tuple[bool, str]:
    if s.missing("release", "manifest"):
        return False, f"{s.release}/manifest.json does not exist"
    found = s.fact("release", "manifest")
    complete = isinstance(found.get("identity"), dict) and bool(found.get("files"))
    return complete, f"the manifest names {count(len(found.get('files') or {}), 'file')}"


def fingerprint(s: Subject) -> tuple[bool, str]:
    """Recomputed here, not by the planner's own function: SHA-256 of the canonical JSON of the identity, 16 hex digits."""
    canonical = json.dumps(s.fact("release", "manifest", "identity"), sort_keys=True, separators=(",", ":"))
    found = hashlib.sha256(canonical.encode()).hexdigest()[:16]
    wanted = s.expect["llama_cpp_fingerprint"]
    return found == wanted, f"its identity gives {found}, planned {wanted}"


def identity(s: Subject) -> tuple[bool, str]:
    found, wanted = s.fact("release", "manifest", "identity"), s.expect["llama_cpp_identity"]
    differing = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
    return not differing, f"it differs in {', '.join(differing)}" if differing else "identity as planned"


def _listed(s: Subject) -> dict[str, dict[str, Any]]:
    return dict(s.fact("release", "manifest", "files"))


def files(s: Subject) -> tuple[bool, str]:
    """Every file of the manifest is there in its size; with deep, SHA-256 too."""
    problems = []
    listed, found = _listed(s), s.fact("release", "files")
    for path, wanted in listed.items():
        have = found.get(path)
        if have is None:
            problems.append(f"{path} is missing")
        elif have.get("type") != "file":
            problems.append(f"{path} is no plain file")
        elif have.get("size") != wanted["size"]:
            problems.append(f"{path} has {have.get('size')} bytes, the manifest says {wanted['size']}")
        elif s.deep and have.get("sha256") != wanted.get("sha256"):
            problems.append(f"{path} has another SHA-256 than the manifest")
    how = "size and SHA-256" if s.deep else "size"
    return not problems, "; ".join(problems[:5]) or f"{count(len(listed), 'file')} compared by {how}, no difference"


def strangers(s: Subject) -> tuple[bool, str]:
    found = s.fact("release", "files")
    extra = sorted(
        path
        for path, entry in found.items()
        if entry.get("type") in ("file", "link") and path not in {*_listed(s), "manifest.json"}
    )
    return not extra, f"files the manifest does not know: {', '.join(extra[:5])}" if extra else "no file beside the manifest's"


def safe(s: Subject) -> tuple[bool, str]:
    """Nobody but root can replace what root's service manager starts."""
    found = {**s.fact("release", "files"), **s.fact("release", "parents")}
    bad = []
    for path, entry in sorted(found.items()):
        if "error" in entry:
            raise CannotTell(f"{path}: {entry['error']}")
        if entry["owner"] != "root" or (entry["type"] != "link" and int(entry["mode"], 8) & 0o022):
            bad.append(f"{path} ({entry['owner']}, {entry['mode']})")
    return (
        not bad,
        f"writable by others than root: {', '.join(bad[:5])}" if bad else f"{len(found)} entries are root's alone to change",
    )


def version(s: Subject) -> tuple[bool, str]:
    if s.missing("release", "version"):
        return False, f"{s.release}/bin/llama-server does not exist"
    found = s.fact("release", "version")
    if found["rc"] == -4:
        return False, "it dies of an illegal instruction: it was built for CPU features this host lacks"
    if found["rc"] != 0:
        said = " ".join(found["out"].split())[-200:]
        how = f"killed by signal {-found['rc']}" if found["rc"] < 0 else f"exit {found['rc']}"
        return False, f"--version fails ({how}): {said}"
    number = str(s.expect.get("llama_cpp_build_number") or s.expect["llama_cpp_identity"]["options"]["LLAMA_BUILD_NUMBER"])
    said = next((line for line in found["out"].splitlines() if "version" in line.lower()), found["out"].strip()[:100])
    return bool(re.search(rf"(?<!\d){re.escape(number)}(?!\d)", found["out"])), f"it says '{said}', planned build {number}"


def as_service_user(s: Subject) -> tuple[bool, str]:
    if s.fact("host", "euid") != 0:
        raise CannotTell("needs root to run the server as the service user")
    done = s.fact("release", "version")
    return done["rc"] == 0, f"as {s.expect['llama_server_user']}, empty environment, in /: exit {done['rc']}"


def libraries(s: Subject) -> tuple[bool, str]:
    found = s.fact("release", "ldd")
    lost = [line.split("=>")[0].strip() for line in found["out"].splitlines() if "not found" in line]
    if lost:
        return False, f"shared libraries not found: {', '.join(lost)}"
    if "not a dynamic executable" in found["out"]:
        return True, "linked statically"
    if found["rc"] != 0:
        raise CannotTell(f"ldd: {found['out'].strip()[:200]}")
    return True, f"{len(found['out'].splitlines())} shared libraries resolve"


def gpu(s: Subject, backend: str) -> tuple[bool, str]:
    """Four ways to end up on the CPU, each with its own sentence (llama-cpp-python#1882)."""
    cards = [card for card in s.fact("release", "gpu", "cards") if card["vendor"] in VENDORS[backend]]
    nodes = {node: usable for node, usable in s.fact("release", "gpu", "nodes").items() if node.startswith(NODES[backend])}
    devices = s.fact("release", "devices", "out")
    if not cards and not nodes:
        return False, f"no device: this host has no {backend} GPU on its PCI bus and no device node"
    if not nodes or (cards and not any(card["driver"] for card in cards)):
        return False, f"no driver: {', '.join(card['pci'] for card in cards)} has no working kernel driver"
    library = f"/libggml-{LIBRARIES[backend]}."
    if any(library in name for name in s.fact("release", "files")):
        if BACKEND_WORDS[backend] in devices:
            return True, "the server lists the GPU as the service user"
        closed = [node for node, usable in nodes.items() if not usable]
        return False, f"not visible to the service user: {', '.join(closed) or 'the server lists no device'}"
    return False, f"no backend: this build of llama.cpp has no {backend} library"


def checks(s: Subject) -> Iterator[Check]:
    rebuild = f"{s.provision}; if it stays: remove {s.release} there and provision again"
    yield s.check("release.current", s.provision, current)
    yield s.check("release.manifest", rebuild, manifest)
    yield s.check("release.fingerprint", rebuild, fingerprint)
    yield s.check("release.identity", s.provision, identity)
    yield s.check("release.files", rebuild, files)
    yield s.check("release.strangers", rebuild, strangers)
    yield s.check("release.safe", f"on {s.name}: chown -R root:root {s.release} && chmod -R go-w {s.release}", safe)
    yield s.check("release.version", rebuild, version)
    yield s.check("release.service-user", rebuild, as_service_user)
    yield s.check("release.libraries", rebuild, libraries, required=False)
    backend = s.expect.get("llama_cpp_backend", "cpu")
    if backend in VENDORS:
        yield s.check("release.gpu", s.log, gpu, backend)


def test_release(check: Check, judge: Any) -> None:
    judge(check)
