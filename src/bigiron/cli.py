"""The command line: invoke's own parser, with bigiron's exit codes and one place that prints errors."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from invoke import Argument, Collection, Exit, ParseError, Program, Task, UnexpectedExit, task

from bigiron import __version__
from bigiron.errors import EXIT_FAILED, BigironError, UsageError
from bigiron.paths import PROJECT, state_dir

INTERRUPTED = 130
LISTED = "./inv --list shows the commands"


def report_error(error: BigironError, *, as_json: bool = False) -> None:
    """Print ``error`` for a person (stderr) or for a program (stdout: one JSON object)."""
    from bigiron.report import console

    if as_json:
        console.print_json(error.to_json())
    else:
        console.error(error)


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
    return lambda function: task(klass=Command, **options)(guarded(function))


class Option(Argument):  # type: ignore[misc]  # invoke ships no types
    """An option that says so when its value is not of its kind."""

    def set_value(self, value: Any, cast: bool = True) -> None:
        try:
            super().set_value(value, cast)
        except ValueError:
            shown = value if len(value) <= 40 else f"{value[:40]}..."
            raise UsageError(f"{shown!r} is no whole number", where=f"--{self.names[0]}") from None


class Command(Task):  # type: ignore[misc]
    """`invoke.Task` with `Option` arguments."""

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Option]:
        kept = ("names", "kind", "default", "help", "positional", "optional", "incrementable", "attr_name")
        found = super().get_arguments(ignore_unknown_help)
        return [Option(**{name: getattr(each, name) for name in kept}) for each in found]


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
            raise self.explain(error) from None
        except Exit as error:
            if error.message:  # only invoke's own: --help or --list of something unknown
                raise UsageError(error.message, hint=LISTED) from None
            self._leave(error.code, exit)
        except UnexpectedExit as error:
            print(error, file=sys.stderr)
            self._leave(error.result.exited, exit)

    @staticmethod
    def _leave(code: int, leave: bool) -> None:
        if leave:
            sys.exit(code)

    def explain(self, error: ParseError) -> UsageError:
        """A wrong command line in bigiron's words, with the near commands for an unknown one and the near flags for an unknown flag."""
        text, context = str(error), error.context
        command = context.name if context else None
        hint = f"./inv {command} --help shows its options" if command else LISTED
        if lacking := re.search(r"<\w+: (\S+).*needed value", text):
            return UsageError(f"--{lacking[1]} needs a value", where=command, hint=hint)
        unknown = re.search(r"No idea what (['\"])(.*)\1 is", text, re.DOTALL)
        if not unknown:
            return UsageError(text, hint=hint)
        word = unknown[2]
        if twice := self._given_twice(word, context):
            return UsageError(f"{twice} is given twice", where=command, hint="it takes one value; several hosts go with commas")
        if word.startswith("-"):
            flags = sorted(context.flag_names()) if context else []
            near = difflib.get_close_matches(word, flags, cutoff=0.5) or [flag for flag in flags if flag.startswith("--")]
            owner = f" of {command}" if command else ""
            return UsageError(f"there is no option {word}{owner}", hint=f"near it: {', '.join(near)}" if near else LISTED)
        names = sorted(self.collection.task_names)
        near = difflib.get_close_matches(word.replace("_", "-"), names, n=4, cutoff=0.5)
        if context and "--host" in context.flags:
            hint = f"{command} takes hosts with --host: ./inv {command} --host {word or 'lab01'}"
            return UsageError(f'there is no command "{word}"', where=command, hint=hint)
        return UsageError(f'there is no command "{word}"', hint=f"near it: {', '.join(near)}" if near else LISTED)

    def _given_twice(self, word: str, context: Any) -> str | None:
        """The flag whose second value ``word`` is: invoke takes that for a command."""
        for before, at in pairwise(self.argv):
            flag = before if at == word else at.removesuffix(f"={word}") if at.endswith(f"={word}") else ""
            option = context.flags[flag] if context and flag in context.flags else None
            if option is not None and option.takes_value and option.got_value:
                return f"--{option.names[0]}"
        return None


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
    words = list(sys.argv if argv is None else argv)[1:]
    as_json = "--json" in words
    try:
        tasks = load_tasks()
        program = FrontDoor(name="bigiron", binary="inv", version=__version__, namespace=tasks)
        asked = next((word for word in words if not word.startswith("-")), "")
        if "--help" in words and asked in tasks.task_names:  # invoke takes it for the value of a positional argument
            words = ["--help", asked]
        elif "--json" in words[: words.index(asked) if asked else None]:  # an option of every command, wherever it stands
            words.remove("--json")
            words.append("--json")
        # invoke leaves no bytecode unless it is asked to, and compiling all of this again costs each command a tenth of a second
        bytecode = [] if sys.dont_write_bytecode else ["--write-pyc"]
        program.run(["inv", *bytecode, *_named(words)], exit=True)
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
        report_error(error, as_json=as_json)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the one place where a defect of ours becomes a sentence
        report_error(_defect(error), as_json=as_json)
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
