"""Predicted generation speed against llama-bench on this machine, for three small models of different size and quant.

    python benchmarks/plan_vs_bench.py PATH/llama-bench [--threads N] [--model FILE.gguf ...]

The models are sparse files of true shape (weights of zero cost the same as others), fewer layers than the originals. The memory bandwidth is
measured first. Exit 1 when a measured speed lies outside its range. Run it on an idle machine: llama.cpp's threads wait for each other at every node, so
another program on one of the cores slows generation down many times over; ``--threads`` below the number of cores suffers less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests"), str(Path(__file__).resolve().parents[1] / "src")]

from bigiron.gguf.facts import model_facts  # noqa: E402 -- the path comes first
from bigiron.gguf.sets import inspect_set  # noqa: E402 -- the path comes first
from bigiron.machine.hardware import DEFAULT_CLOCK_GHZ, Hardware, isa_of  # noqa: E402 -- the path comes first
from bigiron.onhost.bandwidth import main as measure  # noqa: E402 -- the path comes first
from bigiron.plan.choose import Wish, choose  # noqa: E402 -- the path comes first
from bigiron.units import GB  # noqa: E402 -- the path comes first
from fixtures.gguf_models import DENSE_GQA, KIMI_K2, SMALL_MOE  # noqa: E402 -- the path comes first
from fixtures.model_shapes import shape  # noqa: E402 -- the path comes first


def main() -> int:
    """Print one row per model; the exit code tells whether all are inside."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--model", type=Path, action="append", default=[])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    hardware = this_machine(options.threads)
    print(f"{hardware.bandwidth_source}; {hardware.isa}; load {os.getloadavg()[0]:.1f}\n")
    print("| model | active GB per token | measured tok/s | predicted tok/s | limit | inside |")
    print("|---|---|---|---|---|---|")
    outside = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, path in models(Path(folder), options.model):
            facts = model_facts(inspect_set(path).headers)
            rate = choose(hardware, facts, Wish(threads=options.threads)).prediction.generation
            speed = bench(options.binary, path, options.threads)
            inside = rate is not None and rate.low <= speed <= rate.high
            outside += not inside
            shown = f"{rate.low:.1f} to {rate.high:.1f} | {rate.bottleneck}" if rate else "? | ?"
            print(
                f"| {name} | {facts.active_bytes / 1e9:.2f} | {speed:.1f} | {shown} | {'yes' if inside else 'no'} |", flush=True
            )
    return 1 if outside else 0


def models(folder: Path, extra: list[Path]) -> Iterator[tuple[str, Path]]:
    """The three shapes, written to ``folder`` one at a time, and the person's own files."""
    for name, file in (
        ("dense GQA, 6 layers, Q8_0", shape(DENSE_GQA, "Q8_0", layers=6)),
        ("MoE 30B-A3B, 12 layers, Q4_K_M", shape(SMALL_MOE, "Q4_K_M", layers=12)),
        ("Kimi K2, 3 layers of 32 experts, Q2_K_S", shape(KIMI_K2, "Q2_K_S", layers=3, experts=32)),
    ):
        path = file.write(folder / "model.gguf")
        yield name, path
        path.unlink()
    for path in extra:
        yield path.stem, path


def this_machine(threads: int) -> Hardware:
    """This machine, with its bandwidth measured by ``threads``."""
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii").split("flags")[1].splitlines()[0].split()
    found = measure({"seconds": 3, "threads": threads})
    cores = len(os.sched_getaffinity(0))
    return Hardware(
        name="this machine",
        cpu_model="",
        sockets=1,
        cores=cores,
        threads=cores,
        clock_ghz=DEFAULT_CLOCK_GHZ,
        isa=isa_of(flags, os.uname().machine),
        numa_nodes=1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        available_bytes=None,
        bandwidth=found["bytes_per_s"],
        bandwidth_measured=True,
        bandwidth_source=f"{found['bytes_per_s'] / GB:.1f} GB/s measured with {found['threads']} threads",
    )


def bench(binary: Path, model: Path, threads: int) -> float:
    """Generation speed by llama-bench: median of three runs of 32 tokens."""
    words = [str(binary), "-m", str(model), "-t", str(threads), "-p", "0", "-n", "32", "-r", "3", "-o", "jsonl"]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(sorted(json.loads(ran.stdout.splitlines()[-1])["samples_ts"])[1])


if __name__ == "__main__":
    sys.exit(main())
