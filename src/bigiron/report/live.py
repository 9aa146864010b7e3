"""Live progress of a provision: one line per host with role, step and elapsed time; a bar for builds and downloads.

Everything goes to stderr, so that stdout stays the result. Without a terminal each new step is one plain line.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bigiron.units import duration, gib

Poll = Callable[[str, str], Mapping[str, Any] | None]
"""(host, role) -> the progress document of that role on that host, or None."""
POLL_S = 1.0
LINE_EVERY_S = 15.0


class Progress:
    """Takes Ansible's events (`on_event`) and polls long steps; `say` prints a line above the live part."""

    def __init__(self, hosts: list[str], poll: Poll, *, quiet: bool = False) -> None:
        self.hosts = hosts
        self.poll = poll
        self.quiet = quiet
        self.started = time.monotonic()
        self._now: dict[str, str] = {}
        self._lock = threading.Lock()
        self._live: Any = None
        self._bars: dict[str, Any] = {}

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Show where a host is; a failure is printed at once."""
        kind, host = event["event"], event.get("host")
        role, task = event.get("role") or "", event.get("task") or ""
        if kind == "task":
            for name in [host] if host else self.hosts:
                self._step(str(name), role, task)
        elif kind in ("failed", "unreachable"):
            self.say(f"{host}: {role}: {task}: {event.get('msg') or kind}")
        elif kind == "changed":
            self._step(str(host), role, f"{task} (changed)", line=True)

    def say(self, text: str) -> None:
        if self.quiet:
            return
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def _step(self, host: str, role: str, task: str, *, line: bool = False) -> None:
        with self._lock:
            self._now[host] = role or self._now.get(host, "")
        if self._live is not None:
            self._live.update(self._bars[host], description=f"{host}  {role}  {task}", total=None, completed=0, detail="")
        elif line:
            self.say(f"{duration(time.monotonic() - self.started):>12}  {host}  {role}  {task}")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While the block runs, the display is live and long steps are polled."""
        stop = threading.Event()
        with self._display():
            poller = threading.Thread(target=self._poll, args=(stop,), daemon=True)
            poller.start()
            try:
                yield
            finally:
                stop.set()
                poller.join(POLL_S * 5)

    @contextlib.contextmanager
    def _display(self) -> Iterator[None]:
        if self.quiet or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
        )
        with Bars(*columns, console=Console(stderr=True), transient=True) as live:
            self._bars = {host: live.add_task(host, total=None, detail="") for host in self.hosts}
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def _poll(self, stop: threading.Event) -> None:
        shown: dict[str, tuple[str, float]] = {}
        while not stop.wait(POLL_S):
            for host in self.hosts:
                role = self._now.get(host)
                document = self.poll(host, role) if role else None
                if document:
                    self._show(host, document, shown)

    def _show(self, host: str, document: Mapping[str, Any], shown: dict[str, tuple[str, float]]) -> None:
        step, done, total = str(document.get("step", "")), float(document.get("done", 0)), float(document.get("total", 0))
        if document.get("unit") == "bytes":
            detail = f"{gib(done)} of {gib(total)}"
        else:
            detail = f"{done:.0f} of {total:.0f}" if total else ""
        if self._live is not None:
            title = f"{host}  {document.get('role', '')}  {step}"
            self._live.update(self._bars[host], description=title, total=total or None, completed=done, detail=detail)
            return
        last_step, last_time = shown.get(host, ("", 0.0))
        if step != last_step or time.monotonic() - last_time > LINE_EVERY_S:
            shown[host] = (step, time.monotonic())
            self.say(
                f"{duration(time.monotonic() - self.started):>12}  {host}  {document.get('role', '')}  {step}  {detail}".rstrip()
            )
