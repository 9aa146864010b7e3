# ruff: noqa: PTH110, PTH112, PTH114, PTH115, PTH118, PTH119, PTH120, PTH208
"""What is installed: the account, the release, the model's files."""

from __future__ import annotations

import concurrent.futures
import grp
import json
import os
import pwd
import re
import stat
from typing import Any

from .basics import as_user, digest, guarded, name_of, read_text, run, status_of, walk


def account(name: str) -> dict[str, Any]:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return {"missing": True}
    limit = re.search(
        r"^\s*SYS_UID_MAX\s+(\d+)", read_text("/etc/login.defs") if os.path.exists("/etc/login.defs") else "", re.MULTILINE
    )
    secret = guarded(shadow, name)
    return {
        "uid": entry.pw_uid,
        "gid": entry.pw_gid,
        "group": name_of(grp.getgrgid, entry.pw_gid),
        "shell": entry.pw_shell,
        "home": entry.pw_dir,
        "groups": sorted(group.gr_name for group in grp.getgrall() if name in group.gr_mem),
        "system_uid_max": int(limit.group(1)) if limit else 999,
        "locked": secret,
    }


def shadow(name: str) -> bool:
    for line in read_text("/etc/shadow").splitlines():
        fields = line.split(":")
        if fields[0] == name:
            return fields[1].startswith(("!", "*"))
    raise LookupError(f"{name} has no line in /etc/shadow")


def tree(root: str, deep: bool) -> dict[str, Any]:
    """Every entry under ``root`` by relative path; with ``deep`` the files' SHA-256 as well."""
    found = {".": status_of(root)}
    for folder, folders, files in walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            entry = found[os.path.relpath(path, root)] = guarded(status_of, path)
            if deep and entry.get("type") == "file":
                entry["sha256"] = guarded(digest, path)
    return found


def release(request: dict[str, Any], pool: concurrent.futures.Executor, deep: bool) -> dict[str, Any]:
    """``request``: ``{"folder", "current", "user", "gpu": bool, "environment"}``; with ``gpu`` also the devices the build and the kernel see."""
    root = request["folder"]
    binary = os.path.join(root, "bin", "llama-server")
    jobs = {
        "files": pool.submit(guarded, tree, root, deep),
        "version": pool.submit(guarded, lambda: run([binary, "--version"], **as_user(request["user"]))),
        "ldd": pool.submit(guarded, lambda: run(["/usr/bin/ldd", binary], **as_user(request["user"]))),
    }
    if request["gpu"]:
        user = as_user(request["user"], request["environment"])
        jobs["devices"] = pool.submit(guarded, lambda: run([binary, "--list-devices"], **user))
        jobs["gpu"] = pool.submit(guarded, gpu, request["user"])
    parents = {}
    folder = os.path.dirname(binary)
    while True:
        parents[folder] = guarded(status_of, folder)
        if folder == os.path.dirname(folder):
            break
        folder = os.path.dirname(folder)
    return {
        "current": guarded(status_of, request["current"]),
        "manifest": guarded(lambda: json.loads(read_text(os.path.join(root, "manifest.json")))),
        "parents": parents,
        **{name: job.result() for name, job in jobs.items()},
    }


def gpu(user: str) -> dict[str, Any]:
    """Display controllers and accelerators by PCI class with their drivers, and device nodes: can ``user`` open each."""
    cards = []
    base = "/sys/bus/pci/devices"
    for slot in sorted(os.listdir(base)) if os.path.isdir(base) else []:
        if read_text(os.path.join(base, slot, "class"))[:4] in ("0x03", "0x12"):  # display controller, processing accelerator
            driver = os.path.join(base, slot, "driver")
            cards.append(
                {
                    "pci": slot,
                    "vendor": read_text(os.path.join(base, slot, "vendor")).strip(),
                    "driver": os.path.basename(os.readlink(driver)) if os.path.islink(driver) else None,
                }
            )
    nodes = {}
    for node in ["/dev/" + name for name in os.listdir("/dev") if name.startswith("nvidia") or name == "kfd"] + [
        "/dev/dri/" + name
        for name in (os.listdir("/dev/dri") if os.path.isdir("/dev/dri") else [])
        if name.startswith("render")
    ]:
        if stat.S_ISCHR(os.lstat(node).st_mode):
            nodes[node] = run(["/bin/sh", "-c", 'test -r "$0" && test -w "$0"', node], **as_user(user)).get("rc") == 0
    return {"cards": cards, "nodes": nodes}


def leftovers(root: str) -> list[Any]:
    """Files of unfinished downloads, relative to ``root``."""
    return [
        os.path.relpath(os.path.join(folder, name), root)
        for folder, _, names in walk(root)
        for name in names
        if name.endswith(".part")
    ]


def memory_total() -> int:
    lines = dict(line.split(":", 1) for line in read_text("/proc/meminfo").splitlines())
    return int(lines["MemTotal"].split()[0]) * 1024


def model(request: dict[str, Any], pool: concurrent.futures.Executor, deep: bool) -> dict[str, Any]:
    """``request``: ``{"folder", "files": [path below it]}``."""
    root = request["folder"]
    files = {name: guarded(status_of, os.path.join(root, name)) for name in request["files"]}
    if deep:
        hashes = {name: pool.submit(guarded, digest, os.path.join(root, name)) for name in files}
        for name, job in hashes.items():
            files[name]["sha256"] = job.result()
    return {
        "files": files,
        "record": guarded(lambda: json.loads(read_text(os.path.join(root, ".bigiron.json")))),
        "leftovers": guarded(leftovers, root),
        "memory_total": guarded(memory_total),
    }
