import json
import os
import re
import subprocess
import sys

import pytest

from bigiron.cli import guarded, load_tasks
from bigiron.errors import Refused, Unreachable, UsageError
from bigiron.paths import PROJECT

COMMANDS = sorted(load_tasks().task_names)


def bigiron(*words, **options):
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(
        [sys.executable, "-m", "bigiron", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
        timeout=60,
        **options,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name):
    task = load_tasks()[name]
    words = re.search(r"Example: \./inv (\S+)", task.__doc__)
    assert words
    assert words[1] == name
    shown = bigiron(name, "--help")
    assert shown.returncode == 0, shown.stderr
    assert words[0] in shown.stdout


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["provison"], "provision"),
        (["lab_up"], "lab.up"),
        (["provision", "--hosts", "x"], "--host"),
        (["mirror-status"], "mirror.status"),
    ],
)
def test_a_typo_is_exit_64_with_near_names(words, near):
    done = bigiron(*words)
    assert done.returncode == 64
    assert near in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_host_is_exit_64_with_near_names_and_runs_nothing():
    done = bigiron("plan", "--host", "lab1", "--inventory", "inventory/lab/hosts.yml")
    assert done.returncode == 64
    assert "lab01" in done.stderr


def test_no_host_is_wrong_usage():
    done = bigiron("provision")
    assert done.returncode == 64
    assert "--host" in done.stderr


@pytest.mark.parametrize("missing", ["no/such/inventory", ""])
def test_missing_inventory_is_wrong_usage(missing):
    done = bigiron("plan", "--host", "x", "--inventory", missing)
    assert done.returncode == 64
    assert "Traceback" not in done.stderr


def test_example_inventory_says_what_is_left_to_fill_in():
    done = bigiron("plan", "--host", "epyc01", "--inventory", "inventory/example")
    assert done.returncode == 64
    assert "llama_cpp_source_sha256" in done.stderr


def test_json_error_is_one_document():
    import json

    done = bigiron("plan", "--host", "lab1", "--inventory", "inventory/lab/hosts.yml", "--json")
    assert done.returncode == 64
    assert json.loads(done.stdout)["exit_code"] == 64


@pytest.mark.parametrize(("error", "code"), [(Refused("no"), 4), (Unreachable("gone"), 3), (UsageError("what"), 64)])
def test_guarded_turns_errors_into_exit_codes(error, code, capsys):
    from invoke import Exit

    def task(context):
        raise error

    with pytest.raises(Exit) as caught:
        guarded(task)(None)
    assert caught.value.code == code
    assert str(error) in capsys.readouterr().err


def test_closed_standard_streams():
    done = subprocess.run(
        f"{sys.executable} -m bigiron hosts --inventory inventory/example <&- | head -1", shell=True, capture_output=True, text=True, check=False,
        cwd=PROJECT,
    )  # fmt: skip
    assert done.stderr == ""
    assert subprocess.run(
        f"{sys.executable} -m bigiron --list <&- >&- 2>&-", shell=True, check=False, cwd=PROJECT
    ).returncode in (0, 1)


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LANG": "xx_YY.UTF-8"}, {"LC_ALL": "POSIX"}, {}])
def test_any_locale(locale):
    done = bigiron(
        "hosts", "--inventory", "inventory/example", env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **locale}
    )
    assert done.returncode == 0, done.stderr
    assert "epyc01" in done.stdout


def documented():
    pages = [PROJECT / "README.md", *(PROJECT / "docs").glob("*.md"), *(PROJECT / "inventory").rglob("*.md")]
    for page in pages:
        for command in re.findall(r"\./inv ((?:[\w.]+)(?: --?[\w-]+)*)", page.read_text(encoding="utf-8")):
            yield pytest.param(command, id=f"{page.name}: {command}")


@pytest.mark.parametrize("command", sorted(set(documented()), key=str))
def test_documented_commands_and_options_exist(command):
    name, *options = command.split()
    collection = load_tasks()
    assert name in COMMANDS
    known = {flag for argument in collection[name].get_arguments() for flag in (f"--{argument.name.replace('_', '-')}",)}
    for option in options:
        if option.startswith("--"):
            assert option in known | {"--help"}


@pytest.mark.parametrize(
    "words", [["vars", "model_root", "--json"], ["vars", "--json", "model_root"], ["vars", "--name", "model_root", "-j"]]
)
def test_the_name_of_a_variable_needs_no_flag(words):
    shown = bigiron(*words)
    assert (shown.returncode, list(json.loads(shown.stdout))) == (0, ["model_root"]), shown.stderr
