"""What the verifier reads on a host, in one go: raw facts, no opinion. The request names what each file of checks looks at.

``{"deep": bool, "user": name, "paths": [...], "texts": [...], "digests": [...], "commands": {name: argv}, "units": [...],
"release": {...}, "model": {...}, "service": {...}}``; every key may be left out. The answer has the same keys (a service
answers with several), and ``host``. What could not be looked at is ``{"error": why}``, with ``"missing": true`` when it was
seen not to exist.
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
import time
from typing import Any

from .basics import digest, guarded, read_text, run, status_of
from .installed import account, model, release
from .running import service, show
from .serving import completion, redacted


def main(request: dict[str, Any]) -> dict[str, Any]:
    begin = time.monotonic()
    facts = look(request)
    facts["seconds"] = time.monotonic() - begin
    served = request.get("service", {})
    if served.get("completion"):  # last and alone, because it is timed
        facts["completion"] = guarded(completion, {**served, **served["completion"]})
    return redacted(facts, served.get("key_file"))


def look(request: dict[str, Any]) -> dict[str, Any]:
    deep = request.get("deep", False)
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        served = pool.submit(service, request["service"], pool, deep) if "service" in request else None
        said = {name: pool.submit(guarded, run, argv) for name, argv in request.get("commands", {}).items()}
        facts = {
            "host": {
                "euid": os.geteuid(),
                "python": sys.version.split()[0],
                "init": guarded(lambda: read_text("/proc/1/comm").strip()),
                "kernel": os.uname().release,
            },
            "paths": {path: guarded(status_of, path) for path in request.get("paths", [])},
            "texts": {path: guarded(read_text, path) for path in request.get("texts", [])},
            "digests": {path: guarded(digest, path) for path in request.get("digests", [])},
            "units": {unit: guarded(show, unit) for unit in request.get("units", [])},
        }
        if "user" in request:
            facts["user"] = guarded(account, request["user"])
        if "release" in request:
            facts["release"] = guarded(release, request["release"], pool, deep)
        if "model" in request:
            facts["model"] = guarded(model, request["model"], pool, deep)
        facts["commands"] = {name: job.result() for name, job in said.items()}
        if served is not None:
            facts.update(served.result())
    return facts
