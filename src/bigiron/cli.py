"""The command line: invoke's own parser, with bigiron's exit codes and one place that prints errors."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from invoke import Collection, Exit, ParseError, Program, UnexpectedExit, task

from bigiron import __version__
from bigiron.errors import EXIT_FAILED, EXIT_USAGE, BigironError, UsageError
from bigiron.paths import PROJECT, state_dir

INTERRUPTED = 130


def report_error(error: BigironError, *, as_json: bool = False) -> None:
    """Print ``error`` for a person (stderr: what and where, then what to do next) or for a program (stdout: one JSON object)."""
    if as_json:
        print(json.dumps(error.to_json()))
        return
    print(f"error: {error}", file=sys.stderr)
    if error.hint:
        print(f"  {error.hint}", file=sys.stderr)


def guarded(function: Callable[..., int]) -> Callable[..., None]:
    """Wrap a task: its return value becomes the exit code, a BigironError becomes two lines and its exit code."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            code = function(*args, **kwargs)
        except BigironError as error:
            report_error(error, as_json=bool(kwargs.get("json")))
            code = error.exit_code
        sys.stdout.flush()
        if code:
            raise Exit(code=code)

    return run


def command(**options: Any) -> Callable[[Callable[..., int]], Any]:
    """`invoke.task` around a `guarded` function; ``options`` are invoke's (name, help, positional)."""
    return lambda function: task(**options)(guarded(function))


class FrontDoor(Program):  # type: ignore[misc]  # invoke ships no types for Program's base
    """`invoke.Program` that answers a wrong command line with exit 64 and the near names."""

    def run(self, argv: Sequence[str] | None = None, exit: bool = True) -> None:  # noqa: A002 - invoke's own signature
        """Parse and run; see `invoke.Program.run`."""
        try:
            self.create_config()
            self.parse_core(argv)
            self.parse_collection()
            self.parse_tasks()
            self.parse_cleanup()
            self.update_config()
            self.execute()
        except ParseError as error:
            report_error(self.explain(error))
            self._leave(EXIT_USAGE, exit)
        except Exit as error:
            if error.message:
                print(error.message, file=sys.stderr)
            self._leave(error.code, exit)
        except UnexpectedExit as error:
            print(error, file=sys.stderr)
            self._leave(error.result.exited, exit)

    @staticmethod
    def _leave(code: int, leave: bool) -> None:
        if leave:
            sys.exit(code)

    def explain(self, error: ParseError) -> UsageError:
        """The near commands for an unknown one, the near flags for an unknown flag."""
        text = str(error)
        named = re.search(r"No idea what '(.+?)' is", text)
        if not named:
            return UsageError(text, hint="./inv --list shows the commands, ./inv --help COMMAND its options")
        word = named[1]
        if word.startswith("-"):
            flags = sorted(error.context.flag_names()) if error.context else []
            near = difflib.get_close_matches(word, flags, cutoff=0.5) or [flag for flag in flags if flag.startswith("--")]
            owner = f" of {error.context.name}" if error.context and error.context.name else ""
            return UsageError(f"there is no option {word}{owner}", hint=f"near it: {', '.join(near)}" if near else None)
        names = sorted(self.collection.task_names)
        near = difflib.get_close_matches(word.replace("_", "-"), names, n=4, cutoff=0.5)
        return UsageError(
            f'there is no command "{word}"', hint=f"near it: {', '.join(near)}" if near else "./inv --list shows the commands"
        )


def load_tasks() -> Collection:
    """The collection of the project's ``tasks.py``, wherever the command was started."""
    spec = importlib.util.spec_from_file_location("tasks", PROJECT / "tasks.py")
    if spec is None or spec.loader is None:
        raise UsageError("tasks.py is missing", where=str(PROJECT))
    module = importlib.util.module_from_spec(spec)
    sys.modules["tasks"] = module
    spec.loader.exec_module(module)
    return module.ns


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Survives a closed stdin and a reader that stops reading (``| head -1``)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - lives as long as the process
    try:
        tasks = load_tasks()
        program = FrontDoor(name="bigiron", binary="inv", version=__version__, namespace=tasks)
        words = list(sys.argv if argv is None else argv)[1:]
        asked = next((word for word in words if not word.startswith("-")), "")
        if "--help" in words and asked in tasks.task_names:  # invoke takes it for the value of a positional argument
            words = ["--help", asked]
        program.run(["inv", *_named(words)], exit=True)
        sys.stdout.flush()
    except SystemExit as leaving:
        return _code(leaving.code)
    except BrokenPipeError:
        # the reader has what it wanted; python would complain once more when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print("\ninterrupted; the same command carries on where this one stopped", file=sys.stderr)
        return INTERRUPTED
    except BigironError as error:
        report_error(error)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the one place where a defect of ours becomes a sentence
        report_error(_defect(error))
        return EXIT_FAILED
    return 0


def _named(words: list[str]) -> list[str]:
    """``vars NAME`` as ``vars --name NAME``: invoke knows no positional argument that may be left out."""
    for at, word in enumerate(words[1:], start=1):
        if words[0] == "vars" and not word.startswith("-") and words[at - 1] != "--name":
            return [*words[:at], "--name", *words[at:]]
    return words


def _defect(error: Exception) -> BigironError:
    report = state_dir() / "traceback.txt"
    report.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return BigironError(
        f"bigiron itself failed: {type(error).__name__}: {error}",
        hint=f"a defect, please report it; the traceback is in {report}",
    )


def _code(code: object) -> int:
    if code is None:
        return 0
    return code if isinstance(code, int) else EXIT_FAILED
