"""Ansible's events as JSON lines for bigiron, and a readable log beside them."""

# ruff: noqa: SLF001 (the callback API hands out results and roles by these names)
from __future__ import annotations

DOCUMENTATION = r"""
name: events
type: stdout
short_description: One JSON object a line
description:
  - Prints C({"event", "host", "role", "task", "msg", "time"}) per event, and no module arguments or results at any verbosity.
  - Only what a module says in words when it fails is passed on, and nothing of a task with C(no_log).
options:
  log:
    type: str
    description: File that gets a readable log, diffs included.
    env: [{name: ANSIBLE_BIGIRON_LOG}]
    ini: [{section: callback_events, key: log}]
  lifeline:
    type: int
    description:
      - Read end of a pipe whose other end the program that started Ansible holds.
      - When that program ends, however it does, the play ends with it.
    env: [{name: ANSIBLE_BIGIRON_LIFELINE}]
author: bigiron
"""

import json
import os
import signal
import sys
import threading
import time

from ansible.plugins.callback import CallbackBase

HIDDEN = "(hidden: the task handles a secret)"


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "bigiron.host.events"

    def __init__(self):
        super().__init__()
        self._log = None
        self._broken = False

    def set_options(self, task_keys=None, var_options=None, direct=None):
        super().set_options(task_keys=task_keys, var_options=var_options, direct=direct)
        path = self.get_option("log")
        if path:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._log = os.fdopen(handle, "a", encoding="utf-8", errors="replace")
        lifeline = self.get_option("lifeline")
        if lifeline is not None:
            end_with(lifeline)
            # each worker leads a session of its own, and a thread does not survive a fork
            os.register_at_fork(after_in_child=lambda: end_with(lifeline))

    def _emit(self, event, host="", task=None, msg=""):
        role = ""
        name = ""
        if task is not None:
            role = task._role.get_name(include_role_fqcn=False) if task._role else ""
            name = task.name or task.action
        line = {"event": event, "host": host, "role": role, "task": name, "msg": msg, "time": round(time.time(), 3)}
        if not self._broken:
            try:
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()
            except BrokenPipeError:
                self._broken = True  # whoever listened has gone; the play goes on and the log has it all
        self._note(
            " ".join(
                part for part in (time.strftime("%H:%M:%S"), event.ljust(11), host, f"{role}: {name}" if role else name) if part
            )
        )
        if msg:
            self._note("\n".join(f"    {part}" for part in msg.splitlines()))

    def _note(self, text):
        if self._log:
            self._log.write(text + "\n")
            self._log.flush()

    def _result(self, event, result, msg=""):
        self._emit(event, result.host.get_name(), result.task, msg)

    @staticmethod
    def _hidden(result):
        return bool(result.task.no_log or result._result.get("_ansible_no_log") or result._result.get("censored"))

    def _words(self, result):
        """What a failing task says: message, hint, and the last lines of a command."""
        if self._hidden(result):
            return HIDDEN
        return words(result._result)

    def v2_playbook_on_play_start(self, play):
        self._emit("play", msg=play.get_name())

    def v2_playbook_on_task_start(self, task, is_conditional):  # noqa: ARG002 (the API passes it by position)
        self._emit("task", task=task)

    def v2_playbook_on_handler_task_start(self, task):
        self._emit("task", task=task)

    def v2_playbook_on_no_hosts_matched(self):
        self._emit("failed", msg="no host of the inventory matches")

    def v2_playbook_on_no_hosts_remaining(self):
        self._note("no hosts are left")

    def v2_runner_on_ok(self, result):
        findings = [] if self._hidden(result) else result._result.get("findings") or []
        self._result("changed" if result._result.get("changed") else "ok", result, "\n".join(map(str, findings)))

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._result("ok" if ignore_errors else "failed", result, self._words(result))

    def v2_runner_on_unreachable(self, result):
        self._result("unreachable", result, self._words(result))

    def v2_runner_on_skipped(self, result):
        self._result("skipped", result)

    def v2_on_file_diff(self, result):
        if self._log and not self._hidden(result):
            diffs = [
                one.get("diff")
                for one in result._result.get("results", [result._result])
                if one.get("diff") and one.get("changed")
            ]
            for diff in diffs:
                self._note(self._get_diff(diff).rstrip())

    def v2_playbook_on_stats(self, stats):
        for host in sorted(stats.processed):
            summary = stats.summarize(host)
            self._emit("stats", host, msg=" ".join(f"{name}={summary[name]}" for name in sorted(summary) if summary[name]))


def end_with(lifeline):
    """Kill this process and its group (ssh among it) once nobody holds the other end of the pipe ``lifeline``."""

    def watch():
        os.read(lifeline, 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def words(result):
    """One text from a failed result: of a loop, the items that failed; never arguments or output of a module that worked."""
    items = [
        item for item in result.get("results", []) if isinstance(item, dict) and (item.get("failed") or item.get("unreachable"))
    ]
    if items:
        return "\n".join(
            dict.fromkeys(HIDDEN if item.get("censored") or item.get("_ansible_no_log") else words(item) for item in items)
        )
    said = str(result.get("msg") or "").strip()
    parts = [said or "failed without a message"]
    last_lines = str(result.get("stderr") or result.get("module_stderr") or "").strip().splitlines()[-3:]
    if last_lines and last_lines[-1] not in said:
        parts.append("\n".join(last_lines))
    if result.get("hint"):
        parts.append(f"hint: {result['hint']}")
    return "\n".join(parts)
