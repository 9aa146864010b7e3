"""The plan's memory table against ``llama-fit-params --fit-print on`` of a built release.

    python benchmarks/plan_vs_fit_params.py PATH/llama-fit-params [--rpc-server PATH/ggml-rpc-server] [--model FILE.gguf ...]
    python benchmarks/plan_vs_fit_params.py PATH/llama-fit-params --device Vulkan0 --env GGML_VK_VISIBLE_DEVICES=0

Models are sparse files of true size (tests/fixtures/model_shapes.py), so nothing is downloaded. With an RPC server (a llama.cpp built with
GGML_RPC) or with ``--device`` (the build's own names, see ``--list-devices``) the same is done with one and two devices that are not the
CPU. Vulkan needs no GPU: Mesa's lavapipe will do, if ``GGML_VK_VISIBLE_DEVICES=0`` names it, and ``0,0`` makes two devices of it. It binds
tensors up to 128 MiB only: with ``--largest-tensor 128`` smaller models are taken, of which most tensors fit; with vulkan_range.c preloaded
(``--env LD_PRELOAD=...``) it claims 4 GiB. GCC 14 and the Vulkan headers of Debian 13 build it (``-DGGML_VULKAN=ON -DGGML_RPC=ON``).
A build in a chroot is called with ``--wrap "chroot ROOT"`` and ``--folder`` inside it, where the chroot finds the folder at the same path.
``--random N`` takes N models, machines and contexts at random instead; ``--seed`` repeats a draw.

Weights and cache must agree within 1 % or 16 MiB, compute buffers within 15 % or 64 MiB. Exit 1 when one does not. ``--no-repack`` is
passed: llama-fit-params does not print repacked buffers.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests"), str(Path(__file__).resolve().parents[1] / "src")]

from bigiron.gguf.facts import ModelFacts, model_facts  # noqa: E402 -- the path comes first
from bigiron.gguf.sets import inspect_set  # noqa: E402 -- the path comes first
from bigiron.machine.hardware import Accelerator, Hardware  # noqa: E402 -- the path comes first
from bigiron.plan.choose import Wish, choose  # noqa: E402 -- the path comes first
from bigiron.plan.memory import DeviceMemory  # noqa: E402 -- the path comes first
from bigiron.units import GB, GIB, MIB  # noqa: E402 -- the path comes first
from fixtures.gguf_models import DENSE_GQA, KIMI_K2, SMALL_MOE  # noqa: E402 -- the path comes first
from fixtures.model_shapes import shape  # noqa: E402 -- the path comes first

FIRST_PORT = 50152
RUNS = {
    "CPU": [
        Wish(context=4096),
        Wish(context=32768),
        Wish(context=131072, type_k="q8_0", type_v="q8_0"),
        Wish(context=32768, slots=4),
        Wish(context=8192, type_k="q4_0", type_v="q4_0"),
    ],
    "1 device": [Wish(context=8192), Wish(context=32768, type_k="q8_0", type_v="q8_0"), Wish(context=131072)],
    "2 devices": [Wish(context=8192), Wish(context=32768)],
}
SMALL = {
    "small dense": (DENSE_GQA, {"layers": 16, "embedding": 2048, "heads": 16, "kv_heads": 4, "feed_forward": 8192}),
    "small MoE, 64 experts": (SMALL_MOE, {"layers": 24, "experts": 64}),
    "small MoE, 128 experts": (SMALL_MOE, {"layers": 24}),
    "small MLA": (KIMI_K2, {"layers": 12, "experts": 16, "embedding": 4096, "feed_forward": 8192}),
}
"""Kinds of models whose tensors and results stay below 128 MiB; of the one with 128 experts, some expert tensors in Q6_K do not."""
RANDOM = {
    "dense": (DENSE_GQA, {"layers": (8, 24, 40), "embedding": (2048, 3072, 5120), "heads": (16, 32, 40), "kv_heads": (2, 4, 8),
                          "feed_forward": (6144, 12288, 27648), "vocabulary": (32000, 128256, 152064)}),
    "MoE": (SMALL_MOE, {"layers": (8, 27, 60), "embedding": (2048, 4096, 5120), "heads": (32, 64), "kv_heads": (4, 8),
                        "experts": (16, 64, 128, 256), "experts_used": (2, 4, 8), "expert_feed_forward": (512, 768, 1536, 4096),
                        "vocabulary": (32000, 100352, 151936, 201088)}),
    "MLA": (KIMI_K2, {"layers": (8, 28, 61), "embedding": (4096, 5120, 7168), "heads": (32, 64, 128), "experts": (64, 160, 256, 384),
                      "experts_used": (6, 8), "expert_feed_forward": (1408, 1536, 2048), "vocabulary": (102400, 129280, 163840)}),
}  # fmt: skip
ROOM = {"all": 1024.0, "part": 0.45, "little": 0.1}
"""Memory of all GPUs together: more than any model (GiB), and shares of the model's bytes, beside 4 GiB for each GPU's buffers."""


@dataclass(frozen=True)
class Build:
    """How llama-fit-params is called; ``devices`` as llama.cpp names them, in order; ``endpoints`` of those that are RPC servers."""

    command: tuple[str, ...]
    environment: dict[str, str]
    devices: tuple[str, ...]
    endpoints: tuple[str, ...]

    def run(self, path: Path, devices: int, words: list[str]) -> subprocess.CompletedProcess[str]:
        """Its answer for the first ``devices`` devices."""
        used = list(words)
        for name, endpoint in zip(self.devices[:devices], self.endpoints, strict=False):
            used = [word.replace(f"={name}", f"=RPC0[{endpoint}]") for word in used]
        # before the overrides, which name the devices of these servers
        first: list[str] = []
        if self.endpoints and devices:
            first = ["--rpc", ",".join(self.endpoints[:devices])]
        elif self.devices and not self.endpoints and "--device" not in used:
            first = ["--device", ",".join(self.devices[:devices]) or "none"]
        return subprocess.run(
            [*self.command, "-m", str(path), "--fit-print", "on", *first, *used],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **self.environment},
        )


def main() -> int:
    """Compare and print; the exit code tells whether all agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--rpc-server", type=Path)
    parser.add_argument("--device", action="append", default=[], help="a device of the build, as --list-devices names it")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="environment of the binary")
    parser.add_argument("--wrap", type=shlex.split, default=[], metavar="COMMAND", help="what runs the binary, such as chroot")
    parser.add_argument("--folder", type=Path, help="where the sparse models are written for the time of the run")
    parser.add_argument("--model", type=Path, action="append", default=[])
    parser.add_argument(
        "--largest-tensor", type=int, metavar="MIB", help="what the driver binds at most (maxStorageBufferRange)"
    )
    parser.add_argument("--random", type=int, default=0, metavar="N", help="N combinations at random")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.device and options.rpc_server:
        parser.error("--device and --rpc-server cannot be compared in one run")
    table = Table("model", "devices", "plan", "device", "weights MiB", "cache MiB", "compute MiB", "agrees")
    compared = wrong = 0
    environment = dict(word.split("=", 1) for word in options.env)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, _rpc(options.wrap, options.rpc_server) as endpoints:
        names = tuple(options.device) or tuple(f"RPC{index}" for index in range(len(endpoints)))
        build = Build((*options.wrap, str(options.binary)), environment, names, tuple(endpoints))
        bound = options.largest_tensor * MIB if options.largest_tensor else None
        if options.random:
            runs = _drawn(Path(folder), random.Random(options.seed), options.random, names, bound)
        else:
            runs = _all(_models(Path(folder), options.model, small=bool(bound)), names, bound)
        for model, hardware, wish in runs:
            compared += 1
            wrong += not _compare(table, build, model, hardware, wish)
    Console(width=150).print(table)
    print(f"{compared} combinations, {compared - wrong} agree")
    return 1 if wrong or not compared else 0


Run = tuple[tuple[str, ModelFacts, Path], Hardware, Wish]


def _models(folder: Path, extra: list[Path], *, small: bool) -> Iterator[tuple[str, ModelFacts, Path]]:
    if small:
        shapes = {
            f"{name} {quant}": shape(replace(spec, vocabulary=32000, **changes), quant)
            for name, (spec, changes) in SMALL.items()
            for quant in ("Q2_K_S", "Q4_K_M")
        }
    else:
        shapes = {f"Kimi K2 {quant}": shape(KIMI_K2, quant) for quant in ("Q2_K_S", "Q4_K_M")}
        shapes |= {"dense GQA 8B Q4_K_M": shape(DENSE_GQA, "Q4_K_M"), "MoE 30B-A3B Q4_K_M": shape(SMALL_MOE, "Q4_K_M")}
    for name, file in shapes.items():
        path = file.write(folder / f"{name.replace(' ', '-')}.gguf")
        yield name, model_facts(inspect_set(path).headers), path
    for path in extra:
        yield path.stem, model_facts(inspect_set(path).headers), path


def _all(models: Iterator[tuple[str, ModelFacts, Path]], names: tuple[str, ...], bound: int | None) -> Iterator[Run]:
    """Every wish on every machine, for every model."""
    for model in models:
        for devices, count in (("CPU", 0), ("1 device", 1), ("2 devices", 2)):
            for wish in RUNS[devices] if count <= len(names) else ():
                context = min(wish.context, 32768) if bound else wish.context
                for hardware in _machines(model[1], names[:count], bound):
                    yield model, hardware, replace(wish, context=context)


def _drawn(folder: Path, dice: random.Random, count: int, names: tuple[str, ...], bound: int | None) -> Iterator[Run]:
    """``count`` runs at random."""
    for _ in range(count):
        kind = dice.choice(sorted(RANDOM))
        spec, choices = RANDOM[kind]
        spec = replace(spec, **{key: dice.choice(values) for key, values in choices.items()})
        quant = dice.choice(("Q8_0", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K_S", "IQ2_XXS"))
        path = shape(spec, quant).write(folder / "random.gguf")
        facts = model_facts(inspect_set(path).headers)
        words = f"{kind} {quant} {spec.layers} x {spec.embedding}"
        if spec.experts:
            words += f", {spec.experts_used} of {spec.experts} x {spec.expert_feed_forward}"
        slots, cache = dice.choice((1, 1, 1, 2, 4)), dice.choice(("f16", "f16", "q8_0"))
        wish = Wish(
            context=slots * dice.choice((2048, 4096, 8192, 20000, 32768, 65536)), slots=slots, type_k=cache, type_v=cache
        )
        machines = list(_machines(facts, names[: dice.randint(0 if not names else 1, len(names))], bound))
        yield (words, facts, path), dice.choice(machines), wish


def _machines(facts: ModelFacts, gpus: tuple[str, ...], bound: int | None) -> Iterator[Hardware]:
    host = Hardware(
        name="bench",
        cpu_model="CPU",
        sockets=1,
        cores=2,
        threads=2,
        clock_ghz=3.0,
        isa="avx512",
        numa_nodes=1,
        memory_bytes=4096 * GIB,
        available_bytes=None,
        bandwidth=20.0 * GB,
        bandwidth_measured=True,
        bandwidth_source="bench",
    )
    if not gpus:
        yield host
        return
    for room in ROOM.values():
        size = int(room * GIB) if room > 1 else int(facts.total_bytes * room / len(gpus)) + 4 * GIB
        yield replace(host, gpus=tuple(Accelerator(name, "bench", size, 1e12, 3e10, 1e14, "bench", bound) for name in gpus))


def _compare(
    table: Table,
    build: Build,
    model: tuple[str, ModelFacts, Path],
    hardware: Hardware,
    wish: Wish,
) -> bool:
    name, facts, path = model
    devices = {0: "CPU", 1: "1 device"}.get(len(hardware.gpus), f"{len(hardware.gpus)} devices")
    plan = choose(hardware, facts, wish)
    words = [f"{word}" for word in plan.arguments]
    # options that only llama-server has
    for option in ("--cache-ram", "--fit", "--parallel"):
        if option in words:
            at = words.index(option)
            extra = ["-np", words[at + 1]] if option == "--parallel" else []
            words[at : at + 2] = extra
    if "--no-repack" not in words:
        words.append("--no-repack")
    ran = build.run(path, len(hardware.gpus), words)
    lines = [text.split() for text in ran.stdout.splitlines()]
    printed = {line[0]: [int(part) for part in line[1:4]] for line in lines if len(line) == 4}
    title = f"{plan.placement.kind}, {wish.context} {wish.type_k} x{wish.slots} ub {plan.placement.ubatch}"
    if ran.returncode or "Host" not in printed:
        table.add_row(
            name, devices, title, "-", ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else "no answer", "", "", "NO"
        )
        return False
    good = True
    for row in plan.memory:
        real = printed.get("Host" if row.device == "memory" else row.device, [0, 0, 0])
        planned = _planned(row)
        agrees = _agree(planned, real)
        good &= agrees
        shown = [f"{planned[index]} / {real[index]}" for index in range(3)]
        table.add_row(name, devices, title, row.device, *shown, "yes" if agrees else "NO")
    return good


def _planned(row: DeviceMemory) -> list[int]:
    """MiB of weights, cache and buffers."""
    return [round(size / MIB) for size in (row.weights.nbytes + row.streamed, row.kv.nbytes, row.compute.nbytes)]


def _agree(planned: list[int], real: list[int]) -> bool:
    limits = ((0.01, 16), (0.01, 16), (0.15, 64))
    return all(
        abs(plan - true) <= max(share * true, least) for plan, true, (share, least) in zip(planned, real, limits, strict=True)
    )


@contextmanager
def _rpc(wrap: list[str], server: Path | None) -> Iterator[list[str]]:
    if server is None:
        yield []
        return
    ports = (FIRST_PORT, FIRST_PORT + 1)
    running = [
        subprocess.Popen([*wrap, str(server), "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for port in ports
    ]
    try:
        time.sleep(1)
        yield [f"127.0.0.1:{port}" for port in ports]
    finally:
        for process in running:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
