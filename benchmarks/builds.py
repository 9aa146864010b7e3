"""What a build costs, as ratios from one run: the first against plain CMake and Ninja, a second host, and another release with a compiler cache.

Needs root (the lab) and an idle machine: three full compiles, one after the other, and one with a filled cache.

    .venv/bin/python benchmarks/builds.py
    .venv/bin/python benchmarks/builds.py --only cache --ccache-dir /var/cache/bigiron-ccache    # a quick look, with a cache that is warm
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from bigiron.fleet import inventory as inventories
from bigiron.lab import lab, state
from bigiron.paths import PROJECT, state_dir

BUILDER, SECOND = "lab05", "lab06"
OWN_CCACHE = "/var/tmp/benchmark-ccache"


def on(host: str, script: str) -> str:
    done = subprocess.run([*lab.ssh_argv(host), script], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{host}: {script}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


class Bench:
    """Runs the front door with an empty cache of its own, so that no packed release can be taken instead of a build."""

    def __init__(self, scratch: Path) -> None:
        self.cache = scratch / "cache"
        self.folder = scratch / "inventory"
        self.folder.mkdir()
        self.inventory = f"{state.INVENTORY_STATE.parent},{self.folder}"
        # another build number is another release, and no compile flag of any file but the one that holds it
        self.number = 10_000_000 - int(time.time()) % 1_000_000

    def settings(self, number: int, ccache_dir: str) -> None:
        wanted = {"llama_cpp_ccache_dir": ccache_dir, "llama_cpp_build_number": number}
        hosts = {"lab": {"hosts": {BUILDER: wanted, SECOND: wanted}}}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump(hosts))

    def inv(self, *words: str, host: str) -> Any:
        argv = [str(PROJECT / "inv"), *words, "--host", host, "--inventory", self.inventory, "--json"]
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.cache)}
        done = subprocess.run(
            argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, cwd=PROJECT, env=environment
        )
        if done.returncode:
            sys.exit(f"{shlex.join(argv)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return json.loads(done.stdout)

    def plain(self) -> float:
        """Seconds from the source archive to the linked programs, by hand, with the plan's options, targets and jobs."""
        plan = self.inv("plan", host=BUILDER)[BUILDER]["variables"]
        on(BUILDER, f"DEBIAN_FRONTEND=noninteractive apt-get install -y -q {' '.join(plan['base_packages'])}")
        options = " ".join(shlex.quote(f"-D{name}={value}") for name, value in plan["llama_cpp_options"].items())
        url = str(inventories.load(self.inventory).select(BUILDER)[0].vars["llama_cpp_source_url"])
        name = url.rsplit("/", 1)[-1]  # fetched before the clock starts: the role's own fetch counts against the role
        fetch = f"import urllib.request; urllib.request.urlretrieve({f'http://mirror/sources/{name}'!r}, '/var/tmp/src.tar.gz')"
        on(BUILDER, f"rm -rf /var/tmp/plain && mkdir /var/tmp/plain && python3 -c {shlex.quote(fetch)}")
        started = time.perf_counter()
        on(
            BUILDER,
            f"cd /var/tmp/plain && tar xzf ../src.tar.gz && cmake -G Ninja -S */llama.cpp -B build {options} >log 2>&1"
            f" && ninja -C build -j {plan['llama_cpp_jobs']} {' '.join(plan['llama_cpp_targets'])} >>log 2>&1",
        )
        seconds = time.perf_counter() - started
        on(BUILDER, "rm -rf /var/tmp/plain /var/tmp/src.tar.gz")
        return seconds

    def provisioned(self, host: str) -> float:
        """Seconds of role llama_cpp: from the source, or the packed release, to the proved one that is current."""
        self.inv("provision", host=host)
        return role_seconds(host)

    def built(self, number: int, ccache_dir: str) -> tuple[float, int, int]:
        """Seconds of role llama_cpp for one release more, and the compiler cache's hits and calls meanwhile."""
        self.settings(number, ccache_dir)
        before = cache_counts(ccache_dir)
        [outcome] = self.inv("builds.build", host=BUILDER)["hosts"]
        if outcome["status"] != "built":
            sys.exit(f"{BUILDER} compiled nothing: {outcome['status']}")
        hits, calls = (after - earlier for after, earlier in zip(cache_counts(ccache_dir), before, strict=True))
        return role_seconds(BUILDER), hits, calls


def cache_counts(folder: str) -> tuple[int, int]:
    """Hits and cacheable calls so far."""
    said = on(BUILDER, f"mkdir -p {folder}; if command -v ccache >/dev/null; then CCACHE_DIR={folder} ccache --print-stats; fi")
    words = dict(line.split("\t")[:2] for line in said.splitlines() if "\t" in line)
    hits = int(words.get("direct_cache_hit", 0)) + int(words.get("preprocessed_cache_hit", 0))
    return hits, hits + int(words.get("cache_miss", 0))


def role_seconds(host: str) -> float:
    """From the start of role llama_cpp's first task on ``host`` to the end of its last, in the newest run's log."""
    for log in sorted(state_dir("runs").glob("*/events-provision.jsonl"), reverse=True):
        events = [json.loads(line) for line in log.read_text().splitlines()]
        if any(event.get("host") == host for event in events):
            own = [event["time"] for event in events if event.get("role") == "llama_cpp"]
            return float(max(own) - min(own))
    sys.exit(f"no run of {host} is left")


def verdict(name: str, value: float, limit: float, *, least: bool = False) -> None:
    met = value >= limit if least else value <= limit
    print(f"{name:<46}{value:8.3f}   (at {'least' if least else 'most'} {limit}: {'met' if met else 'MISSED'})", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--only", choices=["first", "cache"], help="the first build and the second host, or the compiler cache"
    )
    options.add_argument("--ccache-dir", default=OWN_CCACHE, help="on the lab host; the default is emptied first")
    asked = options.parse_args()
    if os.geteuid() != 0:
        sys.exit("the lab needs root")
    lab.up(0, print, names=[BUILDER, SECOND])
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch))
        bench.settings(bench.number, "")
        if asked.only != "cache":
            bench.inv("teardown", host=f"{BUILDER},{SECOND}")
            plain = bench.plain()
            print(f"plain cmake and ninja                 {plain:8.1f} s", flush=True)
            first = bench.provisioned(BUILDER)
            print(f"role llama_cpp, first build           {first:8.1f} s", flush=True)
            second = bench.provisioned(SECOND)
            print(f"role llama_cpp, second host           {second:8.1f} s", flush=True)
            compiler = on(SECOND, "command -v g++ ninja cmake || echo none").strip()
            verdict("first build / plain cmake and ninja", first / plain, 1.05)
            verdict("second host of the platform / first build", second / first, 0.05)
            print(f"compiler on the second host: {compiler}   (none: {'met' if compiler == 'none' else 'MISSED'})")
        if asked.only != "first":
            if asked.ccache_dir == OWN_CCACHE:
                on(BUILDER, f"rm -rf {OWN_CCACHE}")
            cold, _, _ = bench.built(bench.number + 1, asked.ccache_dir)
            print(f"role llama_cpp, cache filled          {cold:8.1f} s", flush=True)
            warm, hits, calls = bench.built(bench.number + 2, asked.ccache_dir)
            print(f"role llama_cpp, another build number  {warm:8.1f} s   ({hits} of {calls} compiles from the cache)")
            verdict("hit rate, an option that is no compile flag", hits / max(1, calls), 0.6, least=True)
            print(f"time with a filled cache / without            {warm / cold:8.3f}")


if __name__ == "__main__":
    main()
