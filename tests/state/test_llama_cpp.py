"""The installed llama.cpp: is it what the plan names, is it whole, does it run as the service user in an empty environment?"""

import hashlib
import json
import re

import pytest

from bigiron.judge.checks import cannot_tell, check
from bigiron.units import count

GPUS = {
    "GGML_CUDA": {"name": "cuda", "device": "CUDA", "library": "cuda", "vendors": {"0x10de"}, "node": "/dev/nvidia"},
    "GGML_HIP": {"name": "rocm", "device": "ROCm", "library": "hip", "vendors": {"0x1002"}, "node": "/dev/kfd"},
    "GGML_VULKAN": {
        "name": "vulkan",
        "device": "Vulkan",
        "library": "vulkan",
        "vendors": {"0x10de", "0x1002", "0x8086"},
        "node": "/dev/dri/",
    },
}
"""By CMake option: what llama-server calls a device of that backend, its library, and how the kernel shows such a GPU."""


def folder(plan):
    return f"{plan['llama_cpp_prefix']}/releases/{plan['llama_cpp_fingerprint']}"


def gpus(plan):
    """The GPU backends that the planned build is made with; none where the plan says that the model runs on the CPU all the same."""
    if plan.get("llama_cpp_gpu") == {} and plan.get("llama_server_gpu") == {}:
        return {}
    options = plan["llama_cpp_identity"]["options"]
    return {gpu["name"]: gpu for option, gpu in GPUS.items() if options.get(option) == "ON"}


def on_the_cpu(plan):
    """Whether a driver that computes on the CPU stands in for the GPU: it has no card and no device node."""
    wanted = plan.get("llama_cpp_gpu") or {}
    return wanted.get("nodes") == []


def look(plan):
    """What the collector is to look at on the host."""
    current = f"{plan['llama_cpp_prefix']}/current"
    environment = (plan.get("llama_cpp_gpu") or {}).get("environment") or {}
    asked = {"folder": folder(plan), "current": current, "user": plan["llama_cpp_user"], "gpu": bool(gpus(plan))}
    return {"release": {**asked, "environment": environment}}


def rebuild(plan):
    provision = f"./inv provision --host {plan.host}"
    return f"{provision}; if it stays: remove {folder(plan)} there and provision again"


@pytest.fixture(scope="module")
def release(found):
    return found["release"]


@check("release.current")
def test_current_points_at_the_release(plan, release, note):
    prefix = plan["llama_cpp_prefix"]
    assert not release.absent("current"), f"{prefix}/current does not exist"
    link = release["current"]
    assert link["type"] == "link", f"current is a {link['type']}, not a link"
    target = link["target"].removeprefix(f"{prefix}/")
    planned = f"releases/{plan['llama_cpp_fingerprint']}"
    note(f"current points at {target}, planned {planned}")
    assert target == planned


@check("release.manifest", rebuild)
def test_manifest_is_complete(plan, release, note):
    assert not release.absent("manifest"), f"{folder(plan)}/manifest.json does not exist"
    manifest = release["manifest"]
    note(f"the manifest names {count(len(manifest.get('files') or {}), 'file')}")
    assert manifest.get("identity")
    assert manifest.get("files")


@check("release.fingerprint", rebuild)
def test_fingerprint_is_that_of_the_identity(plan, release, note):
    """Recomputed here, not by the planner's own function: SHA-256 of the canonical JSON of the identity, 16 hex digits."""
    canonical = json.dumps(release["manifest"].get("identity"), sort_keys=True, separators=(",", ":"))
    mark = hashlib.sha256(canonical.encode()).hexdigest()[:16]
    note(f"its identity gives {mark}, planned {plan['llama_cpp_fingerprint']}")
    assert mark == plan["llama_cpp_fingerprint"]


@check("release.identity")
def test_identity_as_planned(plan, release):
    built, planned = release["manifest"].get("identity") or {}, plan["llama_cpp_identity"]
    differing = sorted(name for name in {*built, *planned} if built.get(name) != planned.get(name))
    assert not differing, f"it differs in {', '.join(differing)}"


@check("release.files", rebuild)
def test_every_file_of_the_manifest_is_there(plan, release, note):
    listed, there = release["manifest"]["files"], release["files"]
    problems = [problem for path in listed if (problem := wrong(path, listed[path], there.get(path), plan.deep))]
    assert not problems, "; ".join(problems[:5])
    note(f"{count(len(listed), 'file')} compared by {'size and SHA-256' if plan.deep else 'size'}, no difference")


def wrong(path, listed, there, deep):
    if there is None:
        return f"{path} is missing"
    if there.get("type") != "file":
        return f"{path} is no plain file"
    if there.get("size") != listed["size"]:
        return f"{path} has {there.get('size')} bytes, the manifest says {listed['size']}"
    if deep and there.get("sha256") != listed.get("sha256"):
        return f"{path} has another SHA-256 than the manifest"
    return ""


@check("release.strangers", rebuild)
def test_no_file_beside_those_of_the_manifest(release):
    known = {*release["manifest"]["files"], "manifest.json"}
    there = release["files"]
    extra = sorted(path for path in there if there.get(path).get("type") in ("file", "link") and path not in known)
    assert not extra, f"files the manifest does not know: {', '.join(extra[:5])}"


@check("release.safe", lambda plan: f"on {plan.host}: chown -R root:root {folder(plan)} && chmod -R go-w {folder(plan)}")
def test_only_root_can_change_it(release, note):
    """Nobody but root can replace what root's service manager starts."""
    entries = [(path, there[path]) for there in (release["files"], release["parents"]) for path in sorted(there)]
    bad = [
        f"{path} ({entry['owner']}, {entry['mode']})"
        for path, entry in entries
        if entry["owner"] != "root" or (entry["type"] != "link" and int(entry["mode"], 8) & 0o022)
    ]
    assert not bad, f"writable by others than root: {', '.join(bad[:5])}"
    note(f"{len(entries)} entries are root's alone to change")


@check("release.version", rebuild)
def test_it_runs_and_is_the_planned_build(plan, release, note):
    assert not release.absent("version"), f"{folder(plan)}/bin/llama-server does not exist"
    code, out = release["version"]["rc"], release["version"]["out"]
    assert code != -4, "it dies of an illegal instruction: it was built for CPU features this host lacks"
    how = f"killed by signal {-code}" if code < 0 else f"exit {code}"
    assert code == 0, f"--version fails ({how}): {' '.join(out.split())[-200:]}"
    number = str(plan.get("llama_cpp_build_number") or plan["llama_cpp_identity"]["options"]["LLAMA_BUILD_NUMBER"])
    said = next((line for line in out.splitlines() if "version" in line.lower()), out.strip()[:100])
    note(f"it says '{said}', planned build {number}")
    assert re.search(rf"(?<!\d){re.escape(number)}(?!\d)", out)


@check("release.service-user", rebuild)
def test_the_service_user_can_run_it(plan, found, release, note):
    if found["host"]["euid"] != 0:
        cannot_tell("needs root to run the server as the service user")
    note(f"as {plan['llama_cpp_user']}, empty environment, in /: exit {release['version']['rc']}")
    assert release["version"]["rc"] == 0


@check("release.libraries", rebuild, required=False)
def test_shared_libraries_resolve(release, note):
    ldd = release["ldd"]
    lost = [line.split("=>")[0].strip() for line in ldd["out"].splitlines() if "not found" in line]
    assert not lost, f"shared libraries not found: {', '.join(lost)}"
    if "not a dynamic executable" in ldd["out"]:
        note("linked statically")
    elif ldd["rc"] != 0:
        cannot_tell(f"ldd: {ldd['out'].strip()[:200]}")
    else:
        note(f"{len(ldd['out'].splitlines())} shared libraries resolve")


@check("release.gpu", lambda plan: f"on {plan.host}: {folder(plan)}/bin/llama-server --list-devices", gpu=gpus)
def test_the_server_sees_the_gpu(gpu, plan, release, note):
    """Four ways to end up on the CPU, each with its own sentence (llama-cpp-python#1882)."""
    cards = [card for card in release["gpu"]["cards"] if card["vendor"] in gpu["vendors"]]
    nodes = {node: usable for node, usable in release["gpu"]["nodes"].items() if node.startswith(gpu["node"])}
    if not on_the_cpu(plan):
        assert cards or nodes, f"no device: this host has no {gpu['name']} GPU on its PCI bus and no device node"
        drivers = not cards or any(card["driver"] for card in cards)
        assert nodes and drivers, f"no driver: {', '.join(card['pci'] for card in cards)} has no working kernel driver"  # noqa: PT018
    if gpu["device"] not in release["devices"]["out"]:
        built = any(f"/libggml-{gpu['library']}." in name for name in release["files"])
        assert built, f"no backend: this build of llama.cpp has no {gpu['name']} library"
        closed = [node for node, usable in nodes.items() if not usable]
        pytest.fail(f"not visible to the service user: {', '.join(closed) or 'the server lists no device'}", pytrace=False)
    note(f"{plan['llama_cpp_user']} sees it: {gpu['device']} is among the server's devices")
