"""The way back: the previous release and unit of a host, together, in one command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bigiron.errors import BigironError, Refused, Unreachable
from bigiron.fleet import measure, plandir, play, survey
from bigiron.fleet.applying import Outcome
from bigiron.fleet.inventory import Target
from bigiron.fleet.play import Say
from bigiron.fleet.ssh import run_many
from bigiron.fleet.survey import Look
from bigiron.parts import llama_cpp, llama_server
from bigiron.report.live import Progress

PROMPT, TOKENS = "The capital of France is", 8
"""Enough to see that it answers: a way back is taken in a hurry, and the role has proved one completion already."""


@play.one_per_host
def rollback(targets: Sequence[Target], inventory: str, say: Say, *, quiet: bool = False) -> list[Outcome]:
    """Put the previous release and unit of ``targets`` back and prove that they serve. One outcome per target, in their order.

    Raises Refused, before anything is touched on any host, when one of them has nothing to go back to.
    """
    seen = survey.look(targets)
    looks = {name: one for name, one in seen.items() if isinstance(one, Look)}
    outcomes = {
        name: Outcome(name, "unreachable" if isinstance(one, Unreachable) else "failed", error=one)
        for name, one in seen.items()
        if isinstance(one, BigironError)
    }
    refusals = [refusal for name, one in looks.items() if (refusal := _refused(name, one))]
    for refusal in refusals[1:]:
        say(f"error: {refusal}")
    if refusals:
        raise refusals[0]
    if looks:
        outcomes.update(_back(looks, inventory, quiet=quiet))
    return [outcomes[target.name] for target in targets]


def _record(one: Look) -> Mapping[str, Any]:
    return one.observed["rollbacks"].get(llama_server.rollback_path(one.wish)) or {"kept": None, "rolled_back": None}


def _refused(name: str, one: Look) -> Refused | None:
    """Why this host cannot go back."""
    record = _record(one)
    if "error" in record:
        return Refused(f"the way back cannot be read: {record['error']}", where=name)
    if record["kept"]:
        return None
    if done := record["rolled_back"]:
        what = f"it was rolled back already, on {done['at']}, and nothing older is kept"
        return Refused(what, where=name, hint=f"./inv provision --host {name} brings the plan back")
    what = "nothing is kept to go back to"
    return Refused(
        what, where=name, hint="a release and unit are kept once their successor proved ready; ./inv status shows what runs"
    )


def _back(looks: Mapping[str, Look], inventory: str, *, quiet: bool) -> dict[str, Outcome]:
    variables = {
        name: {
            "llama_server_service": one.wish["llama_server_service"],
            "llama_server_prefix": llama_cpp.PREFIX,
            "llama_server_config_dir": llama_server.CONFIG_DIR,
            "llama_server_depends_on": llama_server.depends_on(one.wish),
        }
        for name, one in looks.items()
    }
    folder = play.new_run()
    inventories: list[str | Path] = [*inventory.split(","), plandir.write(folder / "plan", variables)]
    progress = Progress(list(looks), lambda _host, _role: None, quiet=quiet)
    with progress.running():
        result = play.run("rollback", inventories, list(looks), folder, progress.on_event)
    outcomes = {}
    for name in looks:
        error: BigironError | None = None
        if name in result.unreachable:
            error = Unreachable(result.unreachable[name], where=name, hint="run the same command again")
        elif name in result.failed:
            error = BigironError(result.failed[name], where=name, hint=f"the whole log: {result.log}")
        status = "unreachable" if isinstance(error, Unreachable) else "failed" if error else "rolled back"
        outcomes[name] = Outcome(name, status, ["llama_server"], result.changed.get(name, []), error)
    _prove({name: looks[name] for name, one in outcomes.items() if not one.error}, outcomes)
    return outcomes


def _prove(looks: Mapping[str, Look], outcomes: Mapping[str, Outcome]) -> None:
    """One completion of each, where the previous unit listens."""

    def one_host(target: Target) -> dict[str, Any]:
        one = looks[target.name]
        kept = _record(one)["kept"]
        return measure.complete(target, one.wish, PROMPT, TOKENS, host=kept["host"], port=kept["port"])

    for name, answer in run_many([one.target for one in looks.values()], one_host).items():
        if isinstance(answer, BigironError):
            outcomes[name].status, outcomes[name].error = "failed", answer
        else:
            outcomes[name].measured = answer
