"""bigiron's commands: parse, call the package, print. No logic lives here; imports are late so that a command pays only for its own."""

from __future__ import annotations

import time
from typing import Any

from invoke import Collection, Context

from bigiron.cli import command

INVENTORY = "inventory/lab"
HELP = {
    "host": "host name or pattern; comma lists, *, ! and & work as in Ansible",
    "group": "group name or pattern",
    "inventory": f"Ansible inventory: a file, a directory, or several with commas (default {INVENTORY})",
    "json": "print one JSON document",
}


def _targets(host: str, group: str, inventory: str) -> list[Any]:
    from bigiron import targets

    return targets.select(host, group, inventory)


@command(help={**HELP, "explain": "show every connection setting and who sets it; passwords are masked"})
def hosts(
    _c: Context, host: str = "all", group: str = "", inventory: str = INVENTORY, explain: bool = False, json: bool = False
) -> int:
    """List the hosts of the inventory and how each is reached.

    Example: ./inv hosts --inventory inventory/example
    """
    from bigiron.report import machines

    return machines.show_hosts(_targets(host, group, inventory), as_json=json, explain=explain)


@command(
    name="vars",
    help={
        "name": "a variable, to see all about it, or a part",
        "markdown": "print the README of the part's role",
        "json": HELP["json"],
    },
)
def variables(_c: Context, name: str = "", markdown: bool = False, json: bool = False) -> int:
    """List what an inventory may set (type, default, unit, meaning), or explain one variable with an example.

    Example: ./inv vars llama_server_context
    """
    from bigiron.report import variables as report

    return report.show(name, as_json=json, as_page=markdown)


@command(help=HELP)
def probe(_c: Context, host: str = "", group: str = "", inventory: str = INVENTORY, json: bool = False) -> int:
    """Show what the machines are: CPU, memory, GPUs, NVMe, system; one SSH round trip each, changes nothing.

    Example: ./inv probe --host lab01
    """
    from bigiron.fleet import survey
    from bigiron.report import console, machines

    seen = survey.look(_targets(host, group, inventory))
    if json:
        console.print_json({name: one.to_json() for name, one in seen.items()})
    else:
        machines.show(seen)
    return machines.exit_code(seen)


@command(
    help={
        **HELP,
        "exit-code": "exit 2 when something differs",
        "diff": "show file diffs (on by default)",
        "explain": "show the arithmetic of every number",
        "write": "also write the plan into this folder, as an inventory for a plain ansible-playbook",
        "machine": "a machine file instead of a host: a path, or a name in inventory/machines",
        "model": "with --machine: a name in inventory/catalogue.yml, owner/repository@commit, or a GGUF file",
        "quant": "with --machine: the quant, or auto: the best that fits",
        "context": "with --machine: tokens for each slot",
        "slots": "with --machine: requests at once",
        "cache-type": "with --machine: type of the KV cache (f16, q8_0, ...)",
    }
)
def plan(
    _c: Context,
    host: str = "",
    group: str = "",
    inventory: str = INVENTORY,
    json: bool = False,
    exit_code: bool = False,
    diff: bool = True,
    explain: bool = False,
    write: str = "",
    machine: str = "",
    model: str = "",
    quant: str = "auto",
    context: int = 32768,
    slots: int = 1,
    cache_type: str = "f16",
) -> int:
    """Show what bigiron decided for hosts (or for a machine you do not own yet), why, and what differs there; changes nothing.

    Example: ./inv plan --host lab01
    """
    from bigiron.report import plans
    from bigiron.report.console import say

    if machine or model:
        from bigiron.fleet import ahead

        return plans.show_ahead(ahead.answer(machine, model, quant, context, slots, cache_type), as_json=json, explain=explain)
    from bigiron.fleet import survey

    surveys, errors = survey.survey(_targets(host, group, inventory))
    written = []
    if write:
        from bigiron.fleet import plandir

        written = plandir.hand_over(surveys, errors, inventory, write)
    code = plans.show(surveys, errors, as_json=json, reasons=True, diffs=diff, differences_exit=exit_code, explain=explain)
    for line in written:
        say(line)
    return code


@command(help=HELP)
def drift(_c: Context, host: str = "", group: str = "", inventory: str = INVENTORY, json: bool = False) -> int:
    """Show what differs from the plan on the hosts; exit 2 when something does.

    Example: ./inv drift --host lab01
    """
    from bigiron.fleet import survey
    from bigiron.report import plans

    surveys, errors = survey.survey(_targets(host, group, inventory))
    return plans.show(surveys, errors, as_json=json, reasons=False, diffs=True, differences_exit=True)


@command(
    help={
        **HELP,
        "check": "show what would change; change nothing",
        "reboot": "reboot the hosts that need it, and carry on (never this machine)",
    }
)
def provision(
    _c: Context,
    host: str = "",
    group: str = "",
    inventory: str = INVENTORY,
    check: bool = False,
    reboot: bool = False,
    json: bool = False,
) -> int:
    """Bring hosts to their plan: apply only what differs, verify, measure one completion, write the lock. Exit 5: done, but a reboot is pending.

    Example: ./inv provision --host lab01
    """
    from bigiron import targets
    from bigiron.fleet import applying
    from bigiron.fleet import provision as work
    from bigiron.report import plans
    from bigiron.report.console import say

    started = time.monotonic()
    if check:
        from bigiron.fleet import survey

        surveys, errors = survey.survey(_targets(host, group, inventory))
        return plans.show(surveys, errors, as_json=json, reasons=True, diffs=True, differences_exit=False)
    chosen = targets.select(host, group, inventory, boot=say)
    outcomes = work.provision(chosen, inventory, say, quiet=json, may_reboot=reboot)
    plans.show_outcomes(outcomes, time.monotonic() - started, as_json=json)
    return applying.exit_code(outcomes)


@command(
    help={
        **HELP,
        "deep": "hash every file of the release and the model again",
        "completion": "ask the server for one completion (on by default)",
        "junit": "also write JUnit XML to this file",
    }
)
def verify(
    _c: Context,
    host: str = "",
    group: str = "",
    inventory: str = INVENTORY,
    deep: bool = False,
    completion: bool = True,
    junit: str = "",
    json: bool = False,
) -> int:
    """Compare hosts with their plan, independently of what made them (testinfra); the verdict names each check, and a remedy for each failure.

    Example: ./inv verify --host lab01 --deep
    """
    from bigiron import judge
    from bigiron.report import verdicts

    verdicts_, errors = judge.hosts(_targets(host, group, inventory), deep=deep, completion=completion, junit=junit or None)
    return verdicts.show(verdicts_, errors, as_json=json)


@command(help=HELP)
def rollback(_c: Context, host: str = "", group: str = "", inventory: str = INVENTORY, json: bool = False) -> int:
    """Put the previous release and unit of hosts back, together, and prove that they serve; `drift` then says what differs.

    Example: ./inv rollback --host lab01
    """
    from bigiron.fleet import applying
    from bigiron.fleet import rollback as back
    from bigiron.report import plans
    from bigiron.report.console import say

    started = time.monotonic()
    outcomes = back.rollback(_targets(host, group, inventory), inventory, say, quiet=json)
    plans.show_outcomes(outcomes, time.monotonic() - started, as_json=json)
    return applying.exit_code(outcomes)


@command(help=HELP)
def status(_c: Context, host: str = "", group: str = "", inventory: str = INVENTORY, json: bool = False) -> int:
    """Show each host's service: state, release, model, and whether it is in sync with the plan.

    Example: ./inv status --group lab
    """
    from bigiron.fleet import survey
    from bigiron.report import plans

    surveys, errors = survey.survey(_targets(host, group, inventory))
    return plans.show_status(surveys, errors, as_json=json)


@command(positional=["prompt"], help={**HELP, "prompt": "the text to continue", "tokens": "how many tokens at most"})
def ask(
    _c: Context, prompt: str, host: str = "", group: str = "", inventory: str = INVENTORY, tokens: int = 64, json: bool = False
) -> int:
    """Ask a host's server for one completion, over SSH, with the key that only the host knows.

    Example: ./inv ask "The capital of France is" --host lab01
    """
    from bigiron.fleet import measure
    from bigiron.report import console

    answer = measure.ask(_targets(host, group, inventory), prompt, tokens)
    if json:
        console.print_json(answer)
    else:
        print(answer["content"])
        console.say(console.speeds(answer))
    return 0


@command(help={**HELP, "models": "also remove the model files"})
def teardown(
    _c: Context, host: str = "", group: str = "", inventory: str = INVENTORY, models: bool = False, json: bool = False
) -> int:
    """Remove what provision made on the hosts: service, release, settings, user, and the packages it installed itself.

    Example: ./inv teardown --host lab01 --models
    """
    from bigiron.fleet import applying
    from bigiron.fleet import provision as work
    from bigiron.report import plans
    from bigiron.report.console import say

    started = time.monotonic()
    outcomes = work.teardown(_targets(host, group, inventory), inventory, say, models=models, quiet=json)
    plans.show_outcomes(outcomes, time.monotonic() - started, as_json=json)
    return applying.exit_code(outcomes)


@command(
    name="up",
    help={"count": "how many hosts (lab01, lab02, ...)", "host": "these instead, by name or pattern", "json": HELP["json"]},
)
def lab_up(_c: Context, count: int = 1, host: str = "", json: bool = False) -> int:
    """Bring up the lab on this machine: containers booted with systemd, reached over SSH, and a model mirror.

    Example: ./inv lab.up --count 2
    """
    from bigiron import targets
    from bigiron.lab import lab
    from bigiron.report import labs
    from bigiron.report.console import say

    names, releases = targets.of_lab(host)
    return labs.show(lab.up(count, say, names, releases), as_json=json)


@command(name="down", help={"json": HELP["json"]})
def lab_down(_c: Context, json: bool = False) -> int:
    """Take the lab down; nothing stays behind but the cached base system.

    Example: ./inv lab.down
    """
    from bigiron.lab import lab
    from bigiron.report import labs
    from bigiron.report.console import say

    return labs.show(lab.down(say), as_json=json)


@command(name="status", help={"json": HELP["json"]})
def lab_status(_c: Context, json: bool = False) -> int:
    """Show the lab's hosts, network and mirror.

    Example: ./inv lab.status
    """
    from bigiron.lab import lab
    from bigiron.report import labs

    return labs.show(lab.status(), as_json=json)


@command(name="ssh", positional=["name"], help={"name": "a lab host: lab01"})
def lab_ssh(_c: Context, name: str) -> int:
    """Open a shell on a lab host.

    Example: ./inv lab.ssh lab01
    """
    import os

    from bigiron.lab import lab

    argv = lab.ssh_argv(name)
    os.execvp(argv[0], argv)  # noqa: S606 - hands the terminal over


@command(name="up", help={"json": HELP["json"]})
def mirror_up(_c: Context, json: bool = False) -> int:
    """Seed and start the lab's mirror: the hub's HTTP API and the source archive, served by nginx.

    Example: ./inv mirror.up
    """
    from bigiron.lab import lab, mirror
    from bigiron.report import labs
    from bigiron.report.console import say

    lab.up(0, say, names=[])
    return labs.show_mirror(mirror.status(), as_json=json)


@command(name="status", help={"json": HELP["json"]})
def mirror_status(_c: Context, json: bool = False) -> int:
    """Show what the lab's mirror serves.

    Example: ./inv mirror.status
    """
    from bigiron.lab import mirror
    from bigiron.report import labs

    return labs.show_mirror(mirror.status(), as_json=json)


@command(name="list", help={**HELP, "host": "ask these hosts too (their locks are read anyway): a name or a pattern"})
def builds_list(_c: Context, host: str = "", group: str = "", inventory: str = INVENTORY, json: bool = False) -> int:
    """List the releases that are packed on this controller, named by a lock, or (with --host) installed on hosts, and who uses them.

    Example: ./inv builds.list --host lab01
    """
    from bigiron import targets
    from bigiron.fleet import builds
    from bigiron.report import builds as report

    return report.show_list(*builds.known(targets.some(host, group, inventory), inventory), as_json=json)


@command(name="build", help=HELP)
def builds_build(_c: Context, host: str = "", group: str = "", inventory: str = INVENTORY, json: bool = False) -> int:
    """Build the planned release of hosts, once per platform, and pack it here; what runs there is left alone.

    Example: ./inv builds.build --host lab01
    """
    from bigiron.fleet import applying, building
    from bigiron.report import plans
    from bigiron.report.console import say

    started = time.monotonic()
    outcomes = building.build(_targets(host, group, inventory), inventory, say, quiet=json)
    plans.show_outcomes(outcomes, time.monotonic() - started, as_json=json)
    return applying.exit_code(outcomes)


@command(
    name="prune",
    help={
        **HELP,
        "keep": "how many of the newest releases that nothing names are kept too",
        "check": "show what would go; remove nothing",
    },
)
def builds_prune(
    _c: Context,
    host: str = "all",
    group: str = "",
    inventory: str = INVENTORY,
    keep: int = 3,
    check: bool = False,
    json: bool = False,
) -> int:
    """Remove the packed releases on this controller that no lock and no host names; hosts are asked, and nothing is removed there.

    Example: ./inv builds.prune --keep 1 --check
    """
    from bigiron.fleet import builds
    from bigiron.report import builds as report

    gone, kept = builds.prune(_targets(host, group, inventory), inventory, keep, check=check)
    return report.show_pruned(gone, kept, check=check, as_json=json)


@command(name="explain", help={**HELP, "with": "only compare with this release: its fingerprint, or how it begins"})
def builds_explain(
    _c: Context, host: str = "", group: str = "", inventory: str = INVENTORY, with_: str = "", json: bool = False
) -> int:
    """Explain why the planned release of a host has another fingerprint than those that are there.

    Example: ./inv builds.explain --host lab01
    """
    from bigiron.fleet import builds, survey
    from bigiron.report import builds as report

    surveys, errors = survey.survey(_targets(host, group, inventory))
    found = {name: builds.explain(one, with_) for name, one in surveys.items()}
    return report.show_explained(surveys, found, errors, as_json=json)


@command(
    name="bump",
    help={
        "to": "a build of llama.cpp: a tag like b11500, or a commit",
        "number": "its build number, where --to does not say it",
        "url": "its archive or repository, where that does not follow from the present one",
        "sha256": "the SHA-256 of the archive; else it is fetched and summed",
        "file": "the file that pins llama.cpp, where several do",
        "check": "show the lines; write nothing",
        "inventory": HELP["inventory"],
        "json": HELP["json"],
    },
)
def builds_bump(
    _c: Context,
    to: str = "",
    number: int = 0,
    url: str = "",
    sha256: str = "",
    file: str = "",
    check: bool = False,
    inventory: str = INVENTORY,
    json: bool = False,
) -> int:
    """Pin another llama.cpp in the inventory, and show which of its flag changes touch the hosts' plans.

    Example: ./inv builds.bump --to b11500 --inventory inventory/example
    """
    from bigiron.fleet import bump
    from bigiron.report import builds as report

    return report.show_bump(bump.bump(inventory, bump.Step(to, url, sha256, number), file=file, check=check), as_json=json)


@command()
def lint(_c: Context) -> int:
    """Check style and types: ruff, mypy --strict, yamllint, ansible-lint (profile production).

    Example: ./inv lint
    """
    from bigiron import selftest

    return selftest.lint()


@command(
    help={
        "fast": "under a minute, no root: style, types and unit tests",
        "slow": "also what takes long: a compile on Debian 13, and all of it under the newest Python and ansible-core",
        "only": "pytest expression (-k)",
        "junit": "write JUnit XML here",
    }
)
def test(_c: Context, fast: bool = False, slow: bool = False, only: str = "", junit: str = "") -> int:
    """Run everything: lint, types, unit, roles, state and the lab end to end. pytest's own summary comes last.

    Example: ./inv test --fast
    """
    from bigiron import selftest

    return selftest.test(fast=fast, slow=slow, only=only, junit=junit)


ns = Collection(hosts, variables, probe, plan, drift, provision, verify, rollback, status, ask, teardown, lint, test)
ns.add_collection(Collection("lab", up=lab_up, down=lab_down, status=lab_status, ssh=lab_ssh))
ns.add_collection(
    Collection("builds", list=builds_list, build=builds_build, prune=builds_prune, explain=builds_explain, bump=builds_bump)
)
ns.add_collection(Collection("mirror", up=mirror_up, status=mirror_status))
