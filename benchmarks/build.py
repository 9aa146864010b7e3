"""The first build against plain CMake and Ninja with the same options, as one ratio; and a second host, which must not compile.

Needs root (the lab). Both builds run in the same lab host, one after the other, without a compiler cache.

    .venv/bin/python benchmarks/build.py
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from bigiron.lab import lab, state
from bigiron.paths import PROJECT

BUILDER, SECOND = "lab05", "lab06"


def on(host: str, script: str) -> str:
    done = subprocess.run([*lab.ssh_argv(host), script], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{host}: {script}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def inv(*words: str, cache: str) -> dict:
    argv = [str(PROJECT / "inv"), *words, "--json"]
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    done = subprocess.run(
        argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, cwd=PROJECT, env=environment
    )
    if done.returncode:
        sys.exit(f"{' '.join(argv)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("the lab needs root")
    lab.up(0, print, names=[BUILDER, SECOND])
    with tempfile.TemporaryDirectory() as scratch:  # an empty cache: no release and no compiler cache to fall back on
        folder = Path(scratch, "inventory")
        folder.mkdir()
        # another build number is another release, so a release that this host already has is not taken
        number = 10_000_000 - int(time.time()) % 1_000_000
        settings = {"llama_cpp_ccache_dir": "", "llama_cpp_build_number": number}
        (folder / "hosts.yml").write_text(yaml.safe_dump({"lab": {"hosts": {BUILDER: settings, SECOND: settings}}}))
        inventory = f"{state.INVENTORY_STATE.parent},{folder}"
        inv("teardown", "--host", f"{BUILDER},{SECOND}", "--inventory", inventory, cache=scratch)
        plan = inv("plan", "--host", BUILDER, "--inventory", inventory, cache=scratch)[BUILDER]
        packages = " ".join(plan["variables"]["base_packages"])
        on(BUILDER, f"DEBIAN_FRONTEND=noninteractive apt-get install -y -q {packages}")
        source = plan["variables"]
        options = " ".join(shlex.quote(f"-D{name}={value}") for name, value in source["llama_cpp_options"].items())
        targets = " ".join(source["llama_cpp_targets"])
        url = f"http://mirror/sources/{settings_source(inventory)}"
        fetch = f"import urllib.request; urllib.request.urlretrieve({url!r}, '/var/tmp/src.tar.gz')"
        on(BUILDER, f"rm -rf /var/tmp/plain && mkdir /var/tmp/plain && python3 -c {shlex.quote(fetch)}")
        started = time.perf_counter()
        on(
            BUILDER,
            f"cd /var/tmp/plain && tar xzf ../src.tar.gz && cmake -G Ninja -S */llama.cpp -B build {options} >log 2>&1"
            f" && ninja -C build -j {source['llama_cpp_jobs']} {targets} >>log 2>&1",
        )
        plain = time.perf_counter() - started
        print(f"plain cmake and ninja  {plain:7.1f} s", flush=True)
        on(BUILDER, "rm -rf /var/tmp/plain /var/tmp/src.tar.gz")
        before = on(BUILDER, "find /opt/bigiron/releases -maxdepth 1 2>/dev/null; true")
        inv_started = time.perf_counter()
        inv("provision", "--host", BUILDER, "--inventory", inventory, cache=scratch)
        whole = time.perf_counter() - inv_started
        built = role_seconds()
        print(
            f"role llama_cpp         {built:7.1f} s   (of {whole:.1f} s for the whole provision; releases before: {before.split()})",
            flush=True,
        )
        inv("provision", "--host", SECOND, "--inventory", inventory, cache=scratch)
        compiler = on(SECOND, "command -v g++ ninja cmake || echo none").strip()
        print(f"first build / plain    {built / plain:7.3f}   (at most 1.1: {'met' if built / plain <= 1.1 else 'MISSED'})")
        print(f"compiler on the second host of the platform: {compiler}   (none: {'met' if compiler == 'none' else 'MISSED'})")


def settings_source(inventory: str) -> str:
    from bigiron.fleet import inventory as inventories

    return str(inventories.load(inventory).select(BUILDER)[0].vars["llama_cpp_source_url"]).rsplit("/", 1)[-1]


def role_seconds() -> float:
    """From the start of role llama_cpp's first task to the end of its last, in the newest run's log."""
    from bigiron.paths import state_dir

    newest = max(state_dir("runs").iterdir())
    times = [json.loads(line) for line in (newest / "events-provision.jsonl").read_text().splitlines()]
    own = [event["time"] for event in times if event.get("role") == "llama_cpp"]
    return max(own) - min(own)


if __name__ == "__main__":
    main()
