"""Runs Ansible for the hands: the argument list, the generated inventory directory, and its events as they happen."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bigiron.fleet.inventory import clean_env
from bigiron.paths import PROJECT, state_dir

Event = Mapping[str, Any]
STOPPING = ((signal.SIGINT, 2.0), (signal.SIGINT, 3.0), (signal.SIGINT, 10.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0))
"""Signals and how long each may take, in seconds. Ansible raises KeyboardInterrupt in its signal handler, where Python may swallow it, so it is
told more than once."""
KEEP_RUNS = 50


@dataclass
class PlayResult:
    """What a play did: ``changed`` tasks per host, and the reason for each host that failed or could not be reached."""

    return_code: int
    log: Path
    changed: dict[str, list[str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.return_code == 0 and not self.failed and not self.unreachable


def new_run() -> Path:
    """A folder for this run's plan, log and verdicts; the newest `KEEP_RUNS` are kept."""
    runs = state_dir("runs")
    for old in sorted(runs.iterdir())[:-KEEP_RUNS]:
        _remove(old)
    path = runs / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    path.mkdir(mode=0o700)
    return path


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


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
    """Run the playbook and report each event to ``on_event``. Ctrl-C is passed on and waited for, then raised again."""
    log = folder / f"ansible-{playbook}.log"
    environment = {
        **clean_env(),
        "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": "bigiron.host.events",
        "ANSIBLE_BIGIRON_LOG": str(log),
        "ANSIBLE_NOCOLOR": "1",
    }
    result = PlayResult(0, log)
    with (
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
    if kind == "changed":
        result.changed.setdefault(host, []).append(step)
    elif kind == "failed":
        result.failed[host] = f"{step}: {event.get('msg') or 'failed'}"
    elif kind == "unreachable":
        result.unreachable[host] = f"{step}: {event.get('msg') or 'unreachable'}"
