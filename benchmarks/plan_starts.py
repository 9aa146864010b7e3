"""Does a plan that says "fits" start, and one that says "does not fit" not? llama-server under memory limits, with the plan's own arguments.

    sudo python benchmarks/plan_starts.py PATH/llama-server MODEL.gguf

PATH holds llama-bench too: with it, a 30B-A3B of 12 layers is run with repacked weights under no limit, under what the plan says it needs (every
weight counted once), and under three quarters of that, the file read anew each time. The second must be as fast as the first, the third not.

Needs root (a memory cgroup, v1 or v2) and a small model. "Starts" means: /health says 200 and 16 tokens come back, both under the limit.
llama-server reserves logits for one token per slot where llama-fit-params (and the plan) count a whole batch, and the plan keeps a reserve for
the system: so limits just below what the plan asks for may still work. The refusals tried here lie below what no server can do without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests"), str(Path(__file__).resolve().parents[1] / "src")]

from bigiron.gguf.facts import model_facts  # noqa: E402 -- the path comes first
from bigiron.gguf.sets import inspect_set  # noqa: E402 -- the path comes first
from bigiron.plan.capabilities import parse  # noqa: E402 -- the path comes first
from bigiron.plan.choose import ModelPlan, Wish, choose  # noqa: E402 -- the path comes first
from bigiron.units import GIB, MIB  # noqa: E402 -- the path comes first
from fixtures.gguf_models import SMALL_MOE  # noqa: E402 -- the path comes first
from fixtures.model_shapes import shape  # noqa: E402 -- the path comes first
from fixtures.planning import machine  # noqa: E402 -- the path comes first

PORT = 18765
CASES = [
    (4096, Wish(context=4096)),
    (4096, Wish(context=8192, slots=4)),
    (4096, Wish(context=32768, type_k="q8_0", type_v="q8_0", cache_ram_mib=256)),
    (2048, Wish(context=131072)),
    (0, Wish(context=4096)),
    (0, Wish(context=32768, slots=2)),
    (1100, Wish(context=4096)),
    (300, Wish(context=131072)),
    (200, Wish(context=65536, slots=8, type_k="f32", type_v="f32")),
    (48, Wish(context=4096)),
]
"""(memory limit in MiB, wish); 0: exactly what the plan says it needs with its reserve."""


def main() -> int:
    """Try every case; the exit code tells whether every verdict came true."""
    binary, model = Path(sys.argv[1]), Path(sys.argv[2])
    facts = model_facts(inspect_set(model).headers)
    build = parse(subprocess.run([str(binary), "--help"], capture_output=True, text=True, check=False).stdout)
    print("| limit MiB | wish | verdict | what happened | true |\n|---|---|---|---|---|")
    wrong = 0
    for limit, wish in CASES:
        bound = limit or _needed(choose(machine(memory_gib=64, cores=2), facts, wish))
        plan = choose(machine(memory_gib=bound * MIB / GIB, cores=2), facts, wish, build=build)
        happened, started = _try(binary, model, plan, bound)
        true = started == plan.fits
        wrong += not true
        asked = f"{wish.context} tokens, {wish.slots} slots, {wish.type_k}"
        print(f"| {bound} | {asked} | {plan.verdict} | {happened} | {'yes' if true else 'NO'} |", flush=True)
    wrong += not repacked(binary.with_name("llama-bench"))
    return 1 if wrong else 0


def repacked(bench: Path) -> bool:
    """True when repacked weights need their own size, once."""
    with tempfile.TemporaryDirectory() as folder:
        model = shape(SMALL_MOE, "Q4_K_M", layers=12).write(Path(folder) / "model.gguf")
        plan = choose(machine(memory_gib=64, cores=2), model_facts(inspect_set(model).headers), Wish(context=512))
        need = plan.memory_needed // MIB + 1
        print(f"\n| limit MiB | repacked, {plan.facts.total_bytes // MIB} MiB of weights: tok/s |\n|---|---|")
        speeds = []
        for limit in (64 * 1024, need, need * 3 // 4):
            with model.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            words = [str(bench), "-m", str(model), "-t", "2", "-p", "0", "-n", "32", "-r", "2", "-o", "jsonl"]
            with _cgroup(limit) as enter:
                ran = subprocess.run(words, capture_output=True, text=True, check=True, preexec_fn=enter)
            speeds.append(float(json.loads(ran.stdout.splitlines()[-1])["avg_ts"]))
            print(f"| {limit} | {speeds[-1]:.1f} |", flush=True)
    return speeds[1] > 0.75 * speeds[0] and speeds[2] < 0.5 * speeds[0]


def _needed(plan: ModelPlan) -> int:
    """MiB that hold the plan with the smallest reserve."""
    return (plan.memory[-1].used + 256 * MIB) // MIB + 1


def _try(binary: Path, model: Path, plan: ModelPlan, limit: int) -> tuple[str, bool]:
    words = [str(binary), "--model", str(model), "--host", "127.0.0.1", "--port", str(PORT), *plan.arguments]
    with _cgroup(limit) as enter:
        server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=enter)  # noqa: PLW1509
        try:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                if server.poll() is not None:
                    return f"ended with {server.returncode}", False
                if _get("/health"):
                    answer = _get("/completion", {"prompt": "Hello", "n_predict": 16, "cache_prompt": False})
                    tokens = answer.get("tokens_predicted", 0) if answer else 0
                    return f"{tokens} tokens", tokens > 0
                time.sleep(0.2)
            return "not ready in 120 s", False
        finally:
            server.kill()
            server.wait()


def _get(path: str, body: dict[str, object] | None = None) -> dict[str, object]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return dict(json.load(answer))
    except (urllib.error.URLError, OSError, ValueError):
        return {}


@contextmanager
def _cgroup(limit: int) -> Iterator[object]:
    """A memory cgroup of ``limit`` MiB without swap; yields what a child calls to enter it."""
    old = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
    group = Path("/sys/fs/cgroup", "memory" if old else "", f"bigiron-plan-{PORT}")
    group.mkdir(exist_ok=True)
    (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(limit * MIB))
    swap = group / ("memory.memsw.limit_in_bytes" if old else "memory.swap.max")
    if swap.exists():
        swap.write_text(str(limit * MIB) if old else "0")
    try:
        yield lambda: (group / "cgroup.procs").write_text("0")
    finally:
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
