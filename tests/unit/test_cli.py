import json
import os
import re
import subprocess
import sys

import pytest

from bigiron.cli import guarded, load_tasks, main
from bigiron.errors import Refused, Unreachable, UsageError
from bigiron.paths import PROJECT
from fixtures.command import bigiron

COMMANDS = sorted(load_tasks().task_names)


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
    done = bigiron("plan", "--host", "lab1", "--inventory", "inventory/lab/hosts.yml", "--json")
    assert done.returncode == 64
    assert json.loads(done.stdout)["exit_code"] == 64


NUMBERS = [
    pytest.param(name, argument.names[0], id=f"{name} --{argument.names[0]}")
    for name in COMMANDS
    for argument in load_tasks()[name].get_arguments()
    if argument.kind is int
]


@pytest.mark.parametrize(("name", "option"), NUMBERS)
@pytest.mark.parametrize("value", ["x", "", "1.5", "9" * 5000])
def test_a_value_that_is_no_number_is_wrong_usage(name, option, value, capfd):
    assert main(["inv", *([name, "hi"] if name == "ask" else [name]), f"--{option}={value}"]) == 64
    out, err = capfd.readouterr()
    assert out == ""
    assert f"--{option}" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "--json", "--host"], "--host needs a value"),
        (["plan", "--nosuch", "--json"], "there is no option --nosuch of plan"),
        (["provison", "--json"], "there is no command"),
        (["--json", "provison"], "there is no command"),
        (["plan", "--context", "abc", "--json"], "no whole number"),
        (["ask", "--json"], "required positional arguments"),
        (["hosts", "--host", "a", "--host", "b", "--json"], "--host is given twice"),
        (["hosts", "--host=a", "--host=b", "--json"], "--host is given twice"),
        (["drift", "--host", "a", "--check", "--json"], "there is no option --check of drift"),
        (["drift", "--host=a", "--no-json", "--json"], "there is no option --no-json of drift"),
        (["lint", "--json"], "there is no option --json of lint"),
        (["hosts", "", "--json"], "there is no command"),
        (["hosts", "--host", "", "--json"], "no host was named"),
        (["hosts", "--group", "nosuch", "--json", "--inventory", "inventory/example"], "there is no group 'nosuch'"),
        (["drift", "--host", "x", "--inventory", "nosuch", "--json"], "there is no inventory"),
        (["drift", "--host", "x", "--inventory", "pyproject.toml", "--json"], ""),
        (["lab.up", "--host", "lab9", "--json"], "there is no host or group 'lab9'"),
        (["lab.up", "--count", "0", "--json"], "0 lab hosts"),
        (["lab.up", "--count", "-1", "--json"], "-1 lab hosts"),
        (["lab.up", "--count", "100000", "--json"], "do not fit in"),
        (["--help", "nosuch", "--json"], "there is no"),
        (["--list", "nosuch", "--json"], "there is no"),
    ],
)
def test_every_wrong_usage_is_one_json_document_on_demand(words, said, capfd):
    assert main(["inv", *words]) == 64
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert err == ""
    assert set(document) == {"error", "what", "where", "hint", "exit_code"}
    assert (document["error"], document["exit_code"]) == ("UsageError", 64)
    assert said in document["what"]


def test_json_may_stand_before_the_command(capfd):
    assert main(["inv", "--json", "hosts", "--inventory", "inventory/example"]) == 0
    assert json.loads(capfd.readouterr().out)[0]["host"] == "epyc01"


@pytest.mark.parametrize("width", [40, 60])
def test_tables_are_as_wide_as_columns_says_in_a_pipe(width):
    done = bigiron("hosts", "--inventory", "inventory/example", env={**os.environ, "COLUMNS": str(width)})
    assert max(map(len, done.stdout.splitlines())) == width


@pytest.mark.parametrize("value", ["0", "-5", "x", ""])
def test_a_useless_columns_is_no_width(value):
    done = bigiron("hosts", "--inventory", "inventory/example", env={**os.environ, "COLUMNS": value})
    assert "ssh admin@192.0.2.11 -J jump.example.net" in done.stdout


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
