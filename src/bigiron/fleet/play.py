"""Runs Ansible: one run per host, the argument list, the generated inventory directory, and its events as they happen."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from bigiron.fleet.inventory import Target, clean_env
from bigiron.paths import PROJECT, locked, state_dir

Event = Mapping[str, Any]
Say = Callable[[str], None]
P = ParamSpec("P")
T = TypeVar("T")
STOPPING = ((signal.SIGINT, 2.0), (signal.SIGINT, 3.0), (signal.SIGINT, 10.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0))
"""Signals and how long each may take, in seconds. Ansible raises KeyboardInterrupt in its signal handler, where Python may swallow it, so it is
told more than once."""
KEEP_RUNS = 50
ANOTHER_RUN_S = 600.0
"""How long a run waits for another one that has the same host."""


@dataclass
class PlayResult:
    """What a play did: ``changed`` tasks per host, what a person should know of it, and the reason for each host that failed or was not reached."""

    return_code: int
    log: Path
    changed: dict[str, list[str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    findings: dict[str, list[str]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.return_code == 0 and not self.failed and not self.unreachable


def one_per_host(
    work: Callable[Concatenate[Sequence[Target], str, Say, P], T],
) -> Callable[Concatenate[Sequence[Target], str, Say, P], T]:
    """Wrap what changes hosts, ``work(targets, inventory, say, ...)``: it waits, and says so, while another run has one of them.

    Raises BigironError, which names the other run, when that has not ended after `ANOTHER_RUN_S`.
    """

    @functools.wraps(work)
    def alone(targets: Sequence[Target], inventory: str, say: Say, /, *args: P.args, **kwargs: P.kwargs) -> T:
        command = shlex.join(["./inv", *sys.argv[1:]])
        note = f"pid {os.getpid()} of {os.environ.get('USER') or os.getuid()}, since {time.strftime('%F %T %Z')}: {command}"
        deadline = time.monotonic() + ANOTHER_RUN_S
        with contextlib.ExitStack() as held:
            for name in sorted({target.name for target in targets}):  # in one order, so that two runs never wait for each other
                path = state_dir("running") / f"{urllib.parse.quote(name, safe='')}.lock"
                busy = f"{name}: another run has this host ({{holder}})"
                left_s = max(0.0, deadline - time.monotonic())
                held.enter_context(locked(path, busy, say=say, note=note, timeout_s=left_s))
            return work(targets, inventory, say, *args, **kwargs)

    return alone


def new_run() -> Path:
    """A folder for this run's plan, log and verdicts; the newest `KEEP_RUNS` are kept."""
    runs = state_dir("runs")
    for old in sorted(runs.iterdir())[:-KEEP_RUNS]:
        shutil.rmtree(old, ignore_errors=True)
    path = runs / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    path.mkdir(mode=0o700)
    return path


def playbook_argv(
    playbook: str, inventories: Sequence[str | Path], hosts: Sequence[str], extra: Mapping[str, Any] | None = None
) -> list[str]:
    """``ansible-playbook`` for ``playbooks/<playbook>.yml`` on ``hosts``; ``extra`` goes as JSON, so false stays false."""
    argv = [sys.executable, "-m", "ansible", "playbook", str(PROJECT / "playbooks" / f"{playbook}.yml"), "--diff"]
    for inventory in inventories:
        argv += ["-i", str(inventory)]
    argv += ["--limit", ",".join(hosts)]
    if extra:
        argv += ["--extra-vars", json.dumps(dict(extra), sort_keys=True)]
    return argv


def run(
    playbook: str,
    inventories: Sequence[str | Path],
    hosts: Sequence[str],
    folder: Path,
    on_event: Callable[[Event], None],
    extra: Mapping[str, Any] | None = None,
) -> PlayResult:
    """Run the playbook and report each event to ``on_event``. Ctrl-C is passed on and waited for, then raised again.

    Ansible ends when this process does, SIGKILL included: the callback plugin notices that nobody holds the other end of a pipe.
    """
    log = folder / f"ansible-{playbook}.log"
    lifeline, held = os.pipe()
    environment = {
        **clean_env(),
        "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": "bigiron.host.events",
        "ANSIBLE_BIGIRON_LOG": str(log),
        "ANSIBLE_BIGIRON_LIFELINE": str(lifeline),
        "ANSIBLE_NOCOLOR": "1",
    }
    result = PlayResult(0, log)
    with (
        os.fdopen(held, "w"),
        os.fdopen(lifeline),
        (folder / f"ansible-{playbook}.stderr").open("w", encoding="utf-8") as complaints,
        (folder / f"events-{playbook}.jsonl").open("a", encoding="utf-8") as events,
        subprocess.Popen(
            playbook_argv(playbook, inventories, hosts, extra),
            cwd=PROJECT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            encoding="utf-8",
            errors="replace",
            pass_fds=(lifeline,),
            start_new_session=True,  # Ctrl-C reaches Ansible once, from us, not also from the terminal
        ) as process,
        _stop_on_interrupt(process),
    ):
        for line in process.stdout or ():
            event = _parse(line)
            if event:
                events.write(line)
                _note(result, event)
                on_event(event)
        result.return_code = process.wait()
    if result.return_code and not result.failed and not result.unreachable:
        text = Path(complaints.name).read_text(encoding="utf-8", errors="replace").strip()
        for host in hosts:
            result.failed[host] = text[-2000:] or f"ansible-playbook ended with exit code {result.return_code}; see {log}"
    return result


@contextlib.contextmanager
def _stop_on_interrupt(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for number, patience_s in STOPPING:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
                break
        raise


def _parse(line: str) -> Event | None:
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _note(result: PlayResult, event: Event) -> None:
    kind, host = event["event"], str(event.get("host") or "")
    step = f"{event.get('role') or ''}: {event.get('task') or ''}".strip(": ")
    if kind in ("changed", "ok") and event.get("msg"):
        result.findings.setdefault(host, []).extend(str(event["msg"]).splitlines())
    if kind == "changed":
        result.changed.setdefault(host, []).append(step)
    elif kind == "failed":
        result.failed[host] = f"{step}: {event.get('msg') or 'failed'}"
    elif kind == "unreachable":
        result.unreachable[host] = f"{step}: {event.get('msg') or 'unreachable'}"
