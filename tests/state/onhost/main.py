"""What the judge reads on a host, in one go: raw facts, no opinion.

It shares no code with the observer, so that a blind spot of one is not a blind spot of the other.
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
import time
from typing import Any

from .basics import digest, guarded, read_text, run, status_of
from .installed import account, model, release
from .running import lint, listeners, process, show
from .serving import completion, redacted, secrets, serving

JOURNAL_LINES = 20000
RESTART_SIGNS = ("NRestarts", "MainPID", "ExecMainStartTimestampMonotonic")


def main(request: dict[str, Any]) -> dict[str, Any]:
    if "completion" in request:
        return redacted({"completion": guarded(completion, request["completion"])}, request["completion"]["key_file"])
    return redacted(look(request), request["key_file"])


def look(request: dict[str, Any]) -> dict[str, Any]:
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
        missing = none if not booted else {"error": f"{unit} has no running process", "missing": True}
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
        later = guarded(show, unit)
        facts["show_later"] = later if "error" in later else {name: later.get(name) for name in RESTART_SIGNS}
    facts["seconds"] = time.monotonic() - begin
    return facts
