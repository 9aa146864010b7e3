"""What the judge reads on a host, in one go: raw facts, no opinion.

Piped as text into ``python3 -I -S -`` on the host. Standard library only, Python >= 3.9. It shares no code with the observer, so that a
blind spot of one is not a blind spot of the other. A thing that cannot be read is ``{"error": "why"}``; a secret is used, never returned.
"""

from __future__ import annotations

import concurrent.futures
import grp
import hashlib
import http.client
import json
import os
import pwd
import re
import stat
import subprocess
import sys
import time
from typing import Any, Callable, Optional

CHUNK = 1 << 20
SCAN_LIMIT = 1 << 20
SCAN_FILES = 5000
JOURNAL_LINES = 20000


def error_of(problem: BaseException) -> dict:
    if isinstance(problem, PermissionError) and os.geteuid() != 0:
        return {"error": "needs root to read %s" % (problem.filename or "it")}
    if isinstance(problem, FileNotFoundError):
        return {"error": "%s is missing" % (problem.filename or "it"), "missing": True}
    return {"error": "%s: %s" % (type(problem).__name__, problem)}


def guarded(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as problem:  # noqa: BLE001 - one thing that cannot be read must not hide the others
        return error_of(problem)


def read_bytes(path: str, limit: int = -1) -> bytes:
    with open(path, "rb") as stream:  # noqa: PTH123 - bytes paths below, and no need of pathlib's import time
        return stream.read(limit)


def read_text(path: str) -> str:
    return read_bytes(path).decode("utf-8", "replace")


def digest(path: str) -> str:
    sha = hashlib.sha256()
    with open(path, "rb") as stream:  # noqa: PTH123
        for block in iter(lambda: stream.read(CHUNK), b""):
            sha.update(block)
    return sha.hexdigest()


def name_of(kind: Any, number: int) -> str:
    try:
        return kind(number)[0]
    except KeyError:
        return str(number)


def status_of(path: str) -> dict:
    """lstat as words: type, owner, group, mode ("0644"), size, mtime_ns, inode, and a link's target."""
    info = os.lstat(path)
    kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
    found = {
        "type": kinds.get(stat.S_IFMT(info.st_mode), "other"),
        "owner": name_of(pwd.getpwuid, info.st_uid),
        "group": name_of(grp.getgrgid, info.st_gid),
        "mode": "%04o" % stat.S_IMODE(info.st_mode),
        "size": info.st_size,
        "mtime_ns": info.st_mtime_ns,
        "inode": info.st_ino,
    }
    if found["type"] == "link":
        found["target"] = os.readlink(path)
    return found


def run(argv: list, timeout: float = 60, **options: Any) -> dict:
    """``{"rc", "out"}`` (both streams together; rc -N: killed by signal N) or ``{"error"}`` when the tool is missing or hangs."""
    options.setdefault("env", {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"})
    try:
        done = subprocess.run(  # noqa: S603
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False, **options
        )
    except FileNotFoundError:
        return {"error": "%s is not installed" % argv[0], "missing": True}
    except subprocess.TimeoutExpired:
        return {"error": "%s did not end within %d s" % (argv[0], timeout)}
    return {"rc": done.returncode, "out": done.stdout.decode("utf-8", "replace")}


def account(name: str) -> dict:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return {"missing": True}
    limit = re.search(r"^\s*SYS_UID_MAX\s+(\d+)", read_text("/etc/login.defs") if os.path.exists("/etc/login.defs") else "", re.M)
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
    raise LookupError("%s has no line in /etc/shadow" % name)


def tree(root: str, deep: bool) -> dict:
    """Every entry under ``root`` by relative path; with ``deep`` the files' SHA-256 as well."""
    found = {".": status_of(root)}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            entry = found[os.path.relpath(path, root)] = guarded(status_of, path)
            if deep and entry.get("type") == "file":
                entry["sha256"] = guarded(digest, path)
    return found


def as_user(user: str) -> dict:
    """subprocess options that drop to ``user`` with an empty environment, as far as this process may."""
    options: dict = {"env": {}, "cwd": "/"}
    if os.geteuid() == 0:
        entry = pwd.getpwnam(user)
        options.update(user=entry.pw_uid, group=entry.pw_gid, extra_groups=[])
    return options


def release(request: dict, pool: concurrent.futures.Executor) -> dict:
    root = os.path.join(request["prefix"], "releases", request["fingerprint"])
    binary = os.path.join(root, "bin", "llama-server")
    jobs = {
        "files": pool.submit(guarded, tree, root, request["deep"]),
        "version": pool.submit(guarded, lambda: run([binary, "--version"], **as_user(request["user"]))),
        "ldd": pool.submit(guarded, lambda: run(["/usr/bin/ldd", binary], **as_user(request["user"]))),
    }
    if request["backend"] != "cpu":
        jobs["devices"] = pool.submit(guarded, lambda: run([binary, "--list-devices"], **as_user(request["user"])))
        jobs["gpu"] = pool.submit(guarded, gpu, request["user"])
    parents = {}
    folder = os.path.dirname(binary)
    while True:
        parents[folder] = guarded(status_of, folder)
        if folder == os.path.dirname(folder):
            break
        folder = os.path.dirname(folder)
    return {
        "current": guarded(status_of, os.path.join(request["prefix"], "current")),
        "manifest": guarded(lambda: json.loads(read_text(os.path.join(root, "manifest.json")))),
        "parents": parents,
        **{name: job.result() for name, job in jobs.items()},
    }


def gpu(user: str) -> dict:
    """Display controllers and accelerators by PCI class, their drivers, and the device nodes with whether ``user`` may open them."""
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
        "/dev/dri/" + name for name in (os.listdir("/dev/dri") if os.path.isdir("/dev/dri") else []) if name.startswith("render")
    ]:
        if stat.S_ISCHR(os.lstat(node).st_mode):
            nodes[node] = run(["/bin/sh", "-c", 'test -r "$0" && test -w "$0"', node], **as_user(user)).get("rc") == 0
    return {"cards": cards, "nodes": nodes}


def model(request: dict, pool: concurrent.futures.Executor) -> dict:
    root = request["model_dir"]
    files = {}
    for name in request["model_files"]:
        files[name] = guarded(status_of, os.path.join(root, name))
    if request["deep"]:
        hashes = {name: pool.submit(guarded, digest, os.path.join(root, name)) for name in files}
        for name, job in hashes.items():
            files[name]["sha256"] = job.result()
    leftovers = []
    for folder, _, names in os.walk(root):
        leftovers += [os.path.relpath(os.path.join(folder, name), root) for name in names if name.endswith(".part")]
    return {
        "files": files,
        "record": guarded(lambda: json.loads(read_text(os.path.join(root, ".bigiron.json")))),
        "leftovers": leftovers,
        "memory_total": int(re.search(r"^MemTotal:\s+(\d+)", read_text("/proc/meminfo"), re.M).group(1)) * 1024,  # type: ignore[union-attr]
    }


def show(unit: str) -> dict:
    """``systemctl show`` as a dictionary; a property printed several times keeps all its lines."""
    first = read_text("/proc/1/comm").strip()
    if first not in ("systemd", "init"):
        return {"error": "systemd is not PID 1 here, it is %s" % first}
    answer = run(["systemctl", "show", "--no-pager", "--all", unit])
    if "error" in answer:
        return answer
    if re.search(r"chroot.*ignoring|ignoring.*chroot", answer["out"], re.I):
        return {"error": "systemctl runs in a chroot and ignores the command: %s" % answer["out"].strip().splitlines()[0]}
    if answer["rc"] != 0 or "LoadState=" not in answer["out"]:
        return {"error": "systemctl show failed: %s" % (answer["out"].strip().splitlines() or ["no output"])[0]}
    properties: dict = {}
    for line in answer["out"].splitlines():
        name, found, value = line.partition("=")
        if found and re.fullmatch(r"[A-Za-z]\w*", name):
            properties[name] = properties[name] + "\n" + value if name in properties else value
    return properties


def lint(unit: str) -> dict:
    """systemd's own complaints about ``unit`` with its drop-ins merged; option names need systemd 250, older ones get the plain call."""
    answer = run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit])
    if "unrecognized option" in answer.get("out", ""):
        answer = run(["systemd-analyze", "verify", unit])
    return answer


def process(pid: int, planned: list) -> dict:
    """What the kernel says about the running server. Of variables that are not planned only the names are returned."""
    root = "/proc/%d/" % pid

    def environment() -> dict:
        pairs = [item.partition(b"=") for item in read_bytes(root + "environ").split(b"\0") if item]
        values = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, _, value in pairs}
        return {"names": sorted(values), "planned": {name: values[name] for name in planned if name in values}}

    return {
        "pid": pid,
        "exe": guarded(os.readlink, root + "exe"),
        "cmdline": guarded(lambda: [word.decode("utf-8", "surrogateescape") for word in read_bytes(root + "cmdline").split(b"\0")[:-1]]),
        "environ": guarded(environment),
        "limits": guarded(limits, root + "limits"),
        "caps": guarded(limits, "/proc/1/limits"),
        "status": guarded(
            lambda: {name: value.strip() for name, _, value in (line.partition(":") for line in read_text(root + "status").splitlines())}
        ),
        "oom_score_adj": guarded(lambda: int(read_text(root + "oom_score_adj"))),
        "sockets": guarded(sockets_of, pid),
    }


def limits(path: str) -> dict:
    found = {}
    for line in read_text(path).splitlines()[1:]:
        match = re.match(r"(Max .+?)\s{2,}(\S+)\s+(\S+)", line)
        if match:
            found[match.group(1)] = [match.group(2), match.group(3)]
    return found


def sockets_of(pid: int) -> list:
    root = "/proc/%d/fd" % pid
    targets = [guarded(os.readlink, os.path.join(root, name)) for name in os.listdir(root)]
    return [int(target[8:-1]) for target in targets if isinstance(target, str) and target.startswith("socket:[")]


def address_of(word: str) -> str:
    """``0100007F`` (as /proc/net/tcp writes it on this machine's byte order) as ``127.0.0.1``; IPv6 in its usual form."""
    import socket  # noqa: PLC0415

    data = b"".join(int(word[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(word), 8))
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)


def listeners(pid: Optional[int], port: int) -> dict:
    """Listening TCP sockets in the server's network namespace, and who owns ``port`` when it is not the server."""
    base = "/proc/%d/net/" % pid if pid and os.access("/proc/%d/net/tcp" % pid, os.R_OK) else "/proc/net/"
    sockets = []
    for name in ("tcp", "tcp6"):
        for line in guarded(read_text, base + name).splitlines()[1:] if os.path.exists(base + name) else []:
            fields = line.split()
            if fields[3] == "0A":
                address, _, number = fields[1].partition(":")
                sockets.append({"address": address_of(address), "port": int(number, 16), "inode": int(fields[9])})
    owners = {}
    wanted = {entry["inode"] for entry in sockets if entry["port"] == port}
    for name in os.listdir("/proc") if wanted and os.geteuid() == 0 else []:
        if name.isdigit():
            mine = guarded(sockets_of, int(name))
            if isinstance(mine, list) and wanted & set(mine):
                owners[name] = guarded(lambda path: read_text(path).strip(), "/proc/%s/comm" % name)
    return {"sockets": sockets, "owners": owners}


def key_of(path: str) -> str:
    """The first key of a llama.cpp key file: one a line, ``#`` starts a comment."""
    for line in read_text(path).splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            return line.strip()
    raise LookupError("%s holds no key" % path)


def ask(place: list, method: str, path: str, key: Optional[str] = None, body: Optional[dict] = None, timeout: float = 10) -> dict:
    """One HTTP request to the server: ``{"status", "body"}`` with the body as text, at most 256 KiB."""
    link = http.client.HTTPConnection(place[0], place[1], timeout=timeout)
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = "Bearer " + key
    try:
        link.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = link.getresponse()
        return {"status": answer.status, "body": answer.read(1 << 18).decode("utf-8", "replace")}
    except OSError as problem:
        return {"error": "no answer from %s:%d: %s" % (place[0], place[1], problem), "silent": True}
    finally:
        link.close()


def serving(request: dict) -> dict:
    place = request["place"]
    body = {"prompt": "", "n_predict": 1}
    found = {
        "health": guarded(ask, place, "GET", "/health"),
        "open": {path: guarded(ask, place, "GET", path).get("status") for path in ("/props", "/v1/models", "/slots", "/metrics")},
        "wrong_key": guarded(ask, place, "GET", "/v1/models", "not-the-key").get("status"),
    }
    found["open"]["/completion"] = guarded(ask, place, "POST", "/completion", None, body).get("status")
    key = guarded(key_of, request["key_file"])
    if isinstance(key, dict):
        return {**found, "props": key, "models": key}
    for name, path in (("props", "/props"), ("models", "/v1/models")):
        answer = guarded(ask, place, "GET", path, key)
        if answer.get("status") == 200:
            document = guarded(json.loads, answer["body"])
            answer = {"status": 200, "model_path": document.get("model_path"), "ids": [m.get("id") for m in document.get("data", [])]}
        found[name] = {word: value for word, value in answer.items() if word != "body"}
    return found


def completion(request: dict) -> dict:
    """One timed completion: ``{"status", "tokens", "content", "prefill_tps", "generation_tps", "seconds"}``."""
    key = key_of(request["key_file"])
    body = {"prompt": request["prompt"], "n_predict": request["n_predict"], "temperature": 0, "cache_prompt": False}
    begin = time.monotonic()
    answer = ask(request["place"], "POST", "/completion", key, body, request["timeout_s"])
    seconds = time.monotonic() - begin
    if answer.get("status") != 200:
        return {name: value for name, value in answer.items() if name != "body"}
    document = json.loads(answer["body"])
    timings = document.get("timings") or {}
    return {
        "status": 200,
        "seconds": seconds,
        "tokens": document.get("tokens_predicted"),
        "content": document.get("content"),
        "prefill_tps": timings.get("prompt_per_second"),
        "generation_tps": timings.get("predicted_per_second"),
    }


def secrets(request: dict, journal: dict, shown: dict) -> dict:
    """Where the key's bytes turn up. Places are named, the key is not returned."""
    key = key_of(request["key_file"]).encode()
    found: dict = {"length": len(key), "arguments": [], "environments": [], "files": [], "scanned": 0, "processes": 0}
    if len(key) < 8:
        return {"length": len(key), "error": "the key has only %d characters: too short to look for" % len(key)}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for place, name in (("arguments", "cmdline"), ("environments", "environ")):
            data = guarded(read_bytes, "/proc/%s/%s" % (pid, name))
            if isinstance(data, bytes) and key in data:
                found[place].append("%s (%s)" % (pid, guarded(lambda path: read_text(path).strip(), "/proc/%s/comm" % pid)))
        found["processes"] += 1
    found["journal"] = journal if "error" in journal else key.decode() in journal["out"]
    found["show"] = shown if "error" in shown else any(key.decode() in value for value in shown.values())
    for root in request["scan"]:
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                info = os.lstat(path)
                if not stat.S_ISREG(info.st_mode) or info.st_size > SCAN_LIMIT or found["scanned"] >= SCAN_FILES:
                    continue
                if not info.st_mode & 0o044 and path.startswith(request["config_dir"]):
                    continue
                found["scanned"] += 1
                data = guarded(read_bytes, path)
                if isinstance(data, bytes) and key in data:
                    found["files"].append(path)
    return found


def main(request: dict) -> dict:
    if "completion" in request:
        return {"completion": guarded(completion, request["completion"])}
    begin = time.monotonic()
    unit = request["unit"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        shown = guarded(show, unit)
        booted = "error" not in shown
        none = {"error": shown.get("error", "")}
        jobs = {
            "security": pool.submit(guarded, run, ["systemd-analyze", "security", "--no-pager", unit]) if booted else None,
            "lint": pool.submit(guarded, lint, unit) if booted else None,
            "serving": pool.submit(guarded, serving, request),
        }
        lines = ["-n", str(JOURNAL_LINES)] if not request["deep"] else []
        journal = pool.submit(guarded, run, ["journalctl", "--no-pager", "-q", "-o", "cat", "-u", unit, *lines])
        pid = int(shown.get("MainPID") or 0) if booted else 0
        missing = none if not booted else {"error": "%s has no running process" % unit, "missing": True}
        facts = {
            "host": {
                "euid": os.geteuid(),
                "python": sys.version.split()[0],
                "init": guarded(lambda: read_text("/proc/1/comm").strip()),
                "kernel": os.uname().release,
            },
            "user": guarded(account, request["user"]),
            "paths": {path: guarded(status_of, path) for path in request["paths"]},
            "texts": {path: guarded(read_text, path) for path in request["texts"]},
            "digests": {path: guarded(digest, path) for path in request["digests"]},
            "release": guarded(release, request, pool),
            "model": guarded(model, request, pool),
            "process": guarded(process, pid, request["env_names"]) if pid else missing,
            "listen": guarded(listeners, pid, request["port"]),
        }
        facts.update({name: job.result() if job else none for name, job in jobs.items()})
        facts["secrets"] = guarded(secrets, request, journal.result(), shown)
        facts["show"] = shown
        facts["show_later"] = guarded(show, unit)
    facts["seconds"] = time.monotonic() - begin
    return facts
