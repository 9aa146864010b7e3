"""Does the service serve? Waits until llama-server is ready, and times one completion.

Runs on hosts: standard library only, entry `main`. The key is read from its file, goes into a header, and is in no message.
Ready means: ``/health`` answers 200, and the process behind the socket is the unit's own. ``/v1/models`` answers before
the model is loaded, and another program's 200 on the port proves nothing.
"""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from ..errors import BigironError
from ..units import duration
from . import net, processes
from .kinds.service import parse_show, show_argv
from .symptoms import Died, explain, without_secrets
from .system import Start, Tree, start

JOURNAL_LINES = 15
INTERVAL_S = 0.5


class Ready(NamedTuple):
    """``seconds`` from the first look to the first 200."""

    pid: int
    seconds: float


class Waiting(NamedTuple):
    """Progress: what the server says it does, and how much of the process is in memory so far."""

    seconds: float
    detail: str
    pid: int
    resident_bytes: int


def read_key(path: str) -> str:
    """The first key of a key file (llama.cpp: one a line, # starts a comment). Raises BigironError; "" for no file named."""
    if not path:
        return ""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BigironError(f"the API key cannot be read: {why}", where=path) from None
    key = next((line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    if not key or not key.isascii() or not key.isprintable():
        raise BigironError("holds no usable API key", where=path, hint="one key a line, printable ASCII")
    return key


def journal(unit: str, looks: Iterable[Dict[str, Any]], begin: Start = start, secrets: Tuple[str, ...] = ()) -> List[str]:
    """The last journal lines of the runs seen in ``looks`` (of the unit, when none ran), without any secret."""
    runs = dict.fromkeys(str(look["InvocationID"]) for look in looks if look.get("InvocationID"))
    # what the process wrote, and what systemd wrote about it; "+" is or
    matches = [part for run in runs for part in (f"_SYSTEMD_INVOCATION_ID={run}", "+", f"INVOCATION_ID={run}", "+")][:-1]
    # a unit that systemd has forgotten has no run: its last lines may be of earlier days, so only the very last
    which = matches or ["--lines=2", f"--unit={unit}"]
    argv = ["journalctl", "--no-pager", "--output=cat", "--quiet", f"--lines={JOURNAL_LINES}", *which]
    return without_secrets(begin(argv)().out, secrets).splitlines()


def show(unit: str, begin: Start = start) -> Dict[str, Any]:
    """What systemd says about ``unit`` (`parse_show`); empty when there is none."""
    answer = begin(show_argv([unit]))()
    if answer.rc != 0:
        raise BigironError(f"systemctl failed: {answer.err or answer.rc}", where=unit)
    return parse_show(answer.out).get(unit, {})


def _owner(tree: Tree, host: str, port: int, pid: int) -> Optional[str]:
    """None when ``pid`` listens on ``port``, "" when nobody does, else who does."""
    sockets = net.listeners(tree, [port])
    answering = {net.reachable(host), "0.0.0.0", "::"}  # noqa: S104  - compared, not bound
    sockets = [each for each in sockets if each.address in answering] or sockets
    if not sockets:
        return ""
    owners = net.owners(tree, [each.inode for each in sockets], [pid])
    others = [owners.get(each.inode) for each in sockets if owners.get(each.inode) != pid]
    if not others:
        return None
    other = next((each for each in others if each is not None), None)
    if other is None:
        return "a process that this user may not see"
    return f"{processes.program(tree, other)} (pid {other}, {processes.unit_of(tree, other) or 'no unit'})"


def wait_ready(
    unit: str,
    port: int,
    host: str = "127.0.0.1",
    timeout_s: float = 600.0,
    *,
    progress: Optional[Callable[[Waiting], None]] = None,
    secrets: Tuple[str, ...] = (),
    begin: Start = start,
    root: str = "/",
    get: Callable[[str, int, str], net.Answer] = net.http_get,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Ready:
    """Wait until ``unit`` itself answers 200 on ``/health``; 503 means it still loads.

    Raises BigironError at once when the process dies or another one has the port, and after ``timeout_s``: a plain sentence
    with the cause, and the last journal lines; ``secrets`` (keys) are cut out of those.
    """
    tree = Tree(root)
    began = clock()
    first: Optional[Dict[str, Any]] = None
    detail = "it has not started yet"
    while True:
        unit_now = show(unit, begin)
        if not unit_now:
            raise BigironError("no such unit", where=unit, hint="apply the role llama_server")
        first = first or unit_now
        died = explain(unit, first, unit_now)
        if died:
            raise death(unit, died, journal(unit, [first, unit_now] if first.get("MainPID") else [unit_now], begin, secrets))
        pid = int(unit_now.get("MainPID") or 0)
        if pid:
            first = {**unit_now, "NRestarts": first.get("NRestarts", 0)} if not first.get("MainPID") else first
            other = _owner(tree, host, port, pid)
            if other:
                hint = "stop it, or give the service another port"
                raise BigironError(f"port {port} is held by {other}, not by this unit", where=unit, hint=hint)
            detail = f"it does not listen on port {port} yet"
            if other is None:
                status, reason = get(host, port, "/health")
                if status == 200 and _owner(tree, host, port, pid) is None:
                    return Ready(pid, clock() - began)
                detail = f"/health says {status}: {reason}" if status else f"/health: {reason}"
        waited = clock() - began
        if progress:
            progress(Waiting(waited, detail, pid, processes.resident_bytes(tree, pid) if pid else 0))
        if waited >= timeout_s:
            raise BigironError(
                f"not ready after {duration(waited)}: {detail}",
                where=unit,
                hint="raise the start timeout if the model is still loading",
            )
        sleep(INTERVAL_S)


def death(unit: str, died: Died, lines: List[str]) -> BigironError:
    """The error for a unit that died with these last log lines."""
    tail = "\n  ".join(lines)
    return BigironError(died.what + (f"; its last log lines:\n  {tail}" if tail else ""), where=unit, hint=died.hint)


def complete(host: str, port: int, key: str, prompt: str, n_predict: int, timeout_s: float) -> Dict[str, Any]:
    """One completion (POST /completion, llama.cpp tools/server/README.md), greedy and without the prompt cache: it repeats.

    Returns content, model, tokens, and speeds in tok/s (None when the server gives none). Raises BigironError.
    """
    where = f"http://{host}:{port}/completion"
    body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "cache_prompt": False, "stream": False}
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    connection = http.client.HTTPConnection(net.reachable(host), port, timeout=timeout_s)
    try:
        connection.request("POST", "/completion", json.dumps(body), headers)
        response = connection.getresponse()
        data = response.read()
    except (OSError, http.client.HTTPException) as error:
        late = "timed out" in str(error)
        what = (
            f"no completion within {duration(timeout_s)}"
            if late
            else f"no completion: {(getattr(error, 'strerror', '') or str(error) or type(error).__name__).lower()}"
        )
        raise BigironError(what, where=where) from None
    finally:
        connection.close()
    text = without_secrets(data.decode(errors="replace"), (key,) if key else ())
    if response.status != 200:
        known = {401: "the server refuses the key", 503: "the model is still loading"}.get(response.status)
        raise BigironError(f"status {response.status}: {known or net.reason(text.encode())}", where=where)
    try:
        answer = json.loads(text)
        timings = answer.get("timings") or {}
        return {
            "content": str(answer["content"]),
            "prefill_tps": _speed(timings.get("prompt_per_second")),
            "generation_tps": _speed(timings.get("predicted_per_second")),
            "prompt_tokens": int(timings.get("prompt_n", answer.get("tokens_evaluated", 0))),
            "generated_tokens": int(timings.get("predicted_n", answer.get("tokens_predicted", 0))),
            "model": str(answer.get("model", "")),
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BigironError("the answer is no completion of llama-server", where=where) from None


def _speed(value: object) -> Optional[float]:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e9
    return round(float(value), 2) if usable and isinstance(value, (int, float)) else None


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """One timed completion of the service ``unit``; with ``wait_s`` it first waits that long for it to be ready.

    ``{"ok": true, "content", ...}`` (`complete`), or ``{"ok": false, "error", "where", "hint"}``. Without a unit nothing checks
    whose server answers; with one, the key is sent to that unit's own process or not at all.
    """
    host, port = str(request.get("host") or "127.0.0.1"), int(request["port"])
    timeout_s = float(request.get("timeout_s", 300))
    try:
        key = read_key(str(request.get("key_file") or ""))
        if request.get("unit"):
            wait_ready(str(request["unit"]), port, host, float(request.get("wait_s", 0)), secrets=(key,) if key else ())
        answer = complete(host, port, key, str(request["prompt"]), int(request["n_predict"]), timeout_s)
    except BigironError as error:
        return {"ok": False, "error": error.what, "where": error.where, "hint": error.hint}
    return {"ok": bool(answer["generated_tokens"]), **answer}
