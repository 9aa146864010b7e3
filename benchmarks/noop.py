"""What a no-op costs, as ratios from one run: provision and verify against a bare ssh, and against stock Ansible tasks.

Needs root (the lab). Brings up lab01 to lab08, provisions what is not, then measures each command in turn, several rounds.

    .venv/bin/python benchmarks/noop.py [--rounds 5] [--hosts 8]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from bigiron.lab import lab, state
from bigiron.paths import PROJECT

INV = str(PROJECT / "inv")
ONE = "lab01"
TASKS, MANY = 30, 300


def run(argv: Sequence[str], ok: tuple[int, ...] = (0,), **options: object) -> None:
    """Run a command; what it prints is shown only when it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=PROJECT, check=False, **options)
    if done.returncode not in ok:
        sys.exit(f"{' '.join(argv)}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}")


def ssh(host: str) -> list[str]:
    """A fresh connection, as a person's ssh would make it: no ControlMaster."""
    argv = lab.ssh_argv(host)
    return [argv[0], "-o", "ControlMaster=no", "-o", "ControlPath=none", *argv[1:], "python3", "-c", "pass"]


def at_once(commands: Sequence[Sequence[str]]) -> None:
    children = [
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for argv in commands
    ]
    if any(child.wait() for child in children):
        sys.exit("an ssh of the floor failed")


def stock_playbook(folder: Path) -> Path:
    """`TASKS` tasks of file, template, copy and service that change nothing the second time."""
    (folder / "t.j2").write_text("value {{ item_number }}\n")
    tasks: list[dict[str, object]] = []
    for n in range(TASKS):
        kind = n % 4
        base = "/var/tmp/bigiron-bench"
        if kind == 0:
            tasks.append({"ansible.builtin.file": {"path": f"{base}/d{n}", "state": "directory", "mode": "0755"}})
        elif kind == 1:
            tasks.append(
                {
                    "ansible.builtin.template": {"src": str(folder / "t.j2"), "dest": f"{base}/d{n - 1}/t", "mode": "0644"},
                    "vars": {"item_number": n},
                }
            )
        elif kind == 2:
            tasks.append({"ansible.builtin.copy": {"content": f"content {n}\n", "dest": f"{base}/d{n - 2}/c", "mode": "0644"}})
        else:
            tasks.append({"ansible.builtin.systemd_service": {"name": "ssh", "state": "started", "enabled": True}})
    play = [{"hosts": ONE, "gather_facts": False, "tasks": tasks}]
    path = folder / "stock.yml"
    path.write_text(yaml.safe_dump(play))
    return path


def extra_files(folder: Path, count: int) -> str:
    """An inventory beside the lab's that makes `ONE` look after ``count`` more files."""
    files = [{"path": f"/etc/bigiron-bench/{n:03d}.conf", "content": f"value = {n}\n"} for n in range(count)]
    (folder / "many").mkdir()
    (folder / "many/hosts.yml").write_text(yaml.safe_dump({"lab": {"hosts": {ONE: {"base_files": files}}}}))
    return f"{state.INVENTORY_STATE.parent},{folder / 'many'}"


def measure(rounds: int, what: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Median seconds of each; the commands take turns, so a slow minute of the machine hits them alike."""
    times: dict[str, list[float]] = {name: [] for name in what}
    for number in range(rounds + 1):
        for name, function in what.items():
            started = time.perf_counter()
            function()
            if number:  # the first round warms caches
                times[name].append(time.perf_counter() - started)
    for name, values in times.items():
        print(f"  {name:<44} {statistics.median(values):7.3f} s   ({min(values):.3f} to {max(values):.3f})", flush=True)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=8)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("the lab needs root")
    names = [f"lab{n:02d}" for n in range(1, options.hosts + 1)]
    lab.up(options.hosts, print)
    run([INV, "provision", "--host", ",".join(names)])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        stock, many = stock_playbook(folder), extra_files(folder, MANY - TASKS)
        ansible = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(state.INVENTORY_STATE.parent), str(stock)]
        environment = {**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")}
        provision = [INV, "provision", "--host"]
        run([*provision, ONE, "--inventory", many])
        print(f"medians of {options.rounds} rounds, {os.cpu_count()} cores")
        seconds = measure(
            options.rounds,
            {
                "invoke --list": lambda: run([str(Path(sys.executable).parent / "invoke"), "--list"]),
                "./inv --list": lambda: run([INV, "--list"]),
                "ssh python3 -c pass, 1 host": lambda: run(ssh(ONE)),
                f"ssh python3 -c pass, {len(names)} hosts at once": lambda: at_once([ssh(name) for name in names]),
                "provision, in sync, 1 host": lambda: run([*provision, ONE]),
                f"provision, in sync, {len(names)} hosts": lambda: run([*provision, ",".join(names)]),
                f"provision, in sync, {MANY} resources": lambda: run([*provision, ONE, "--inventory", many]),
                "verify, 1 host": lambda: run([INV, "verify", "--host", ONE, "--no-completion"]),
                f"stock playbook, {TASKS} tasks": lambda: run(ansible, env=environment),
            },
        )
    floor, one, eight, more, judged, stock_s = (
        seconds[name]
        for name in (
            "ssh python3 -c pass, 1 host", "provision, in sync, 1 host", f"provision, in sync, {len(names)} hosts",
            f"provision, in sync, {MANY} resources", "verify, 1 host", f"stock playbook, {TASKS} tasks",
        )
    )  # fmt: skip
    rows = [
        ("no-op provision / ssh floor", one / floor, 6.0),
        (f"no-op provision / {TASKS} stock tasks", one / stock_s, 0.15),
        (f"{len(names)} hosts / 1 host", eight / one, 3.0),
        ("verify / ssh floor", judged / floor, 5.0),
        (f"{MANY} resources / {TASKS}", more / one, 1.3),
    ]
    start = seconds["./inv --list"] - seconds["invoke --list"]
    print(f"{'start: inv minus invoke':<40} {start:6.3f} s (at most 0.1 s: {'met' if start <= 0.1 else 'MISSED'})")
    for name, ratio, limit in rows:
        print(f"{name:<40} {ratio:6.3f}   (at most {limit}: {'met' if ratio <= limit else 'MISSED'})")


if __name__ == "__main__":
    main()
