# ruff: noqa: PTH118, PTH208
"""What the server answers, and where its key turns up."""

from __future__ import annotations

import http.client
import json
import os
import re
import stat
import time
from typing import Any, Optional

from .basics import guarded, program_of, read_bytes, read_text

SCAN_LIMIT = 1 << 20
SCAN_FILES = 5000
KEY_LENGTH = 8
HIDDEN = "(a secret)"
SECRET_OPTIONS = ("--api-key", "--hf-token", "-hft")
SECRET_WORDS = re.compile(
    r"((?:^|\s)(?:--api-key|--hf-token|-hft)[ =]|\b\w*(?:API_KEY|TOKEN|SECRET|PASSW)\w*=)[^\s;]+", re.IGNORECASE
)


def key_of(path: str) -> str:
    """The first key of a llama.cpp key file: one a line, ``#`` starts a comment."""
    for line in read_text(path).splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            return line.strip()
    raise LookupError(f"{path} holds no key")


def ask(
    place: list[Any],
    method: str,
    path: str,
    key: Optional[str] = None,
    body: Optional[dict[str, Any]] = None,
    timeout: float = 10,
) -> dict[str, Any]:
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
        return {"error": f"no answer from {place[0]}:{place[1]}: {problem}", "silent": True}
    finally:
        link.close()


def serving(request: dict[str, Any]) -> dict[str, Any]:
    place = request["place"]
    body = {"prompt": "", "n_predict": 1}
    found = {
        "health": guarded(ask, place, "GET", "/health"),
        "open": {
            path: guarded(ask, place, "GET", path).get("status") for path in ("/props", "/v1/models", "/slots", "/metrics")
        },
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
            answer = {
                "status": 200,
                "model_path": document.get("model_path"),
                "ids": [m.get("id") for m in document.get("data", [])],
            }
        found[name] = {word: value for word, value in answer.items() if word != "body"}
    return found


def completion(request: dict[str, Any]) -> dict[str, Any]:
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


def secrets(request: dict[str, Any], journal: dict[str, Any], shown: dict[str, Any]) -> dict[str, Any]:
    """Where the key's bytes turn up. Places are named, the key is not returned."""
    key = key_of(request["key_file"]).encode()
    found: dict[str, Any] = {"length": len(key), "arguments": [], "environments": [], "files": [], "scanned": 0, "processes": 0}
    if len(key) < KEY_LENGTH:
        return {"length": len(key), "error": f"the key has only {len(key)} characters: too short to look for"}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for place, name in (("arguments", "cmdline"), ("environments", "environ")):
            data = guarded(read_bytes, f"/proc/{pid}/{name}")
            if isinstance(data, bytes) and key in data:
                found[place].append(f"{pid} ({guarded(program_of, pid)})")
        found["processes"] += 1
    if not found["processes"]:
        found["arguments"] = found["environments"] = {"error": "/proc shows no process"}
    if "error" not in journal and (journal["rc"] != 0 or not journal["out"].strip()):
        journal = {"error": "the journal has no line of the unit"}  # systemd itself writes one at every start
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


def masked(words: list[str]) -> list[Any]:
    """Arguments without the value of an option that takes a secret."""
    shown = []
    for at, word in enumerate(words):
        option, equals, _ = word.partition("=")
        if equals and option in SECRET_OPTIONS:
            word = option + "=" + HIDDEN  # noqa: PLW2901
        shown.append(HIDDEN if at and words[at - 1] in SECRET_OPTIONS else word)
    return shown


def masked_text(text: str) -> str:
    """A command line or a list of assignments, as systemctl prints them, without the values of secrets."""
    return SECRET_WORDS.sub(r"\1" + HIDDEN, text)


def redacted(facts: dict[str, Any], key_file: Optional[str]) -> dict[str, Any]:
    """``facts`` without the key, wherever it turned up: it never leaves the host."""
    key = guarded(key_of, key_file) if key_file else None
    if not isinstance(key, str) or len(key) < KEY_LENGTH:
        return facts
    return dict(json.loads(json.dumps(facts).replace(json.dumps(key)[1:-1], HIDDEN)))
