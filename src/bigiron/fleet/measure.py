"""What a host's own server answers, and how fast: one completion over SSH, with the key that only the host knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bigiron.errors import BigironError, UsageError
from bigiron.fleet import survey
from bigiron.fleet.inventory import Target
from bigiron.fleet.ssh import Session, run_many
from bigiron.fleet.survey import Survey
from bigiron.parts import llama_server
from bigiron.plan import wishes

SERVE = "bigiron.onhost.serving:main"
PROMPT = "The machine in the corner hums. " * 24
TOKENS = 32
TIMEOUT_S = 600.0
SCAN = "bigiron.onhost.bandwidth:main"
SCAN_S = 0.9


def complete(
    target: Target, wish: Mapping[str, Any], prompt: str, tokens: int, timeout_s: float = TIMEOUT_S, **where: Any
) -> dict[str, Any]:
    """One completion by the host's own server, asked on the host itself, with the key that only the host knows.

    ``where`` (host, port) is for a server that does not listen where the inventory says.

    Returns the answer of `bigiron.onhost.serving.main` (speeds in tok/s). Raises BigironError when the server does not answer.
    """
    request = {**llama_server.completion(wish, prompt, tokens, timeout_s), **where}
    with Session(target) as session:
        answer = session.run_program(SERVE, request, timeout_s=timeout_s + 30)
    if not answer.get("ok"):
        what = f"the completion failed: {answer.get('error') or 'no token came back'}"
        raise BigironError(what, where=target.name, hint=answer.get("hint") or f"./inv verify --host {target.name}")
    return answer


def measure(surveys: Sequence[Survey]) -> dict[str, dict[str, Any] | BigironError]:
    """Prefill and generation speed of each host, tok/s, from one completion of `TOKENS` tokens.

    The memory bandwidth is measured too, in the quiet after it, and noted for the plan's next prediction.
    """
    by_name = {one.name: one for one in surveys}

    def one_host(target: Target) -> dict[str, Any]:
        answer = complete(target, by_name[target.name].wish, PROMPT, TOKENS)
        one = by_name[target.name]
        with Session(target) as session:
            scan = session.run_program(SCAN, {"threads": one.machine.cpu.cores, "seconds": SCAN_S}, become=False)
        survey.record_bandwidth(target.name, one.machine, float(scan["bytes_per_s"]))
        keys = ("prefill_tps", "generation_tps", "prompt_tokens", "generated_tokens")
        return {**{key: answer[key] for key in keys}, "memory_bytes_per_s": round(float(scan["bytes_per_s"]))}

    return run_many([one.target for one in surveys], one_host)


def ask(targets: Sequence[Target], prompt: str, tokens: int) -> dict[str, Any]:
    """One completion from the one host in ``targets``. Raises UsageError when several hosts or an empty prompt are given."""
    if len(targets) != 1:
        raise UsageError(f"{len(targets)} hosts were named, but one is asked", hint="name one: --host lab01")
    if not prompt.strip() or tokens < 1:
        raise UsageError("a prompt and at least one token are needed", hint='./inv ask "The capital of France is" --host lab01')
    target = targets[0]
    if target.down:
        raise target.down
    return complete(target, wishes.read(target.name, target.vars, target.vars.pending()), prompt, tokens)
