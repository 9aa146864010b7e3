"""How many runs carry on after a controller that was killed with SIGKILL: prints reruns that ended 0, and what was left behind.

Needs root (the lab). Each round takes something away on lab01, starts ``provision``, kills it at a random moment and runs it again.

    .venv/bin/python benchmarks/killed_runs.py [--rounds 16] [--seed 1]
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import time

from bigiron.lab import lab
from bigiron.paths import PROJECT

HOST = "lab01"
PROVISION = [str(PROJECT / "inv"), "provision", "--host", HOST]
DAMAGE = (
    "systemctl stop llama-server-main && rm /etc/systemd/system/llama-server-main.service",
    "rm $(find /srv/models -name '*.gguf' | head -2)",
    "rm -r /opt/bigiron/releases/*/bin",
    "chmod 0700 /opt/bigiron; rm /opt/bigiron/current; rm $(find /srv/models -name '*.gguf' | tail -1)",
)
LONGEST_S = 14.0
"""Of the moment of the kill; a whole run after such damage takes about this long."""


def plays() -> list[str]:
    """Ansible processes of this folder that are still there."""
    listed = subprocess.run(["ps", "-wweo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(PROJECT / "playbooks") in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    lab.up(1, print)
    subprocess.run(PROVISION, check=True, cwd=PROJECT, capture_output=True)
    good = left = interrupted = 0
    for number in range(options.rounds):
        subprocess.run([*lab.ssh_argv(HOST), DAMAGE[number % len(DAMAGE)]], check=True, stdin=subprocess.DEVNULL)
        with subprocess.Popen(PROVISION, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            moment = dice.uniform(0.3, LONGEST_S)
            try:
                run.wait(moment)
            except subprocess.TimeoutExpired:
                run.send_signal(signal.SIGKILL)
                interrupted += 1
        time.sleep(1.0)
        left += len(plays())
        again = subprocess.run(PROVISION, cwd=PROJECT, capture_output=True, text=True, check=False)
        good += again.returncode == 0
        print(f"{number + 1:2} killed after {moment:4.1f} s: the next run ended {again.returncode}", flush=True)
        if again.returncode:
            print(again.stdout[-600:], again.stderr[-600:])
    print(
        f"{good} of {options.rounds} reruns ended 0; {interrupted} runs were killed; {left} Ansible processes were left a second later"
    )
    sys.exit(good != options.rounds)


if __name__ == "__main__":
    main()
