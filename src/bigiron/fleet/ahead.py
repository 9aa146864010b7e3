"""The plan for a machine that has no host: a machine file and a model by name, answered before anything is bought or downloaded."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bigiron.errors import UsageError
from bigiron.gguf.facts import ModelFacts, model_facts
from bigiron.gguf.sets import inspect_set
from bigiron.hub import headers, tree
from bigiron.machine import machinefile
from bigiron.paths import PROJECT
from bigiron.plan import catalogue
from bigiron.plan.choose import AUTO, ModelPlan, Wish, choose

CATALOGUE = PROJECT / "inventory" / "catalogue.yml"
MACHINES = PROJECT / "inventory" / "machines"


def answer(machine: str, model: str, quant: str, context: int, slots: int, cache_type: str) -> ModelPlan:
    """`plan` for the words of the command line; ``context`` in tokens for each of ``slots``. Raises UsageError when one is missing."""
    if not machine or not model:
        raise UsageError(
            f"--{'machine' if machine == '' else 'model'} is missing", hint="./inv plan --machine epyc-9354p --model kimi-k2"
        )
    if context < 1 or slots < 1:
        raise UsageError(f"{context} tokens for {slots} slots is no context", hint="both are at least 1")
    wish = Wish(
        context=context * slots,
        slots=slots,
        quant=AUTO if quant.lower() == AUTO else quant,
        type_k=cache_type,
        type_v=cache_type,
    )
    return plan(machine, model, wish)


def plan(machine: str, model: str, wish: Wish) -> ModelPlan:
    """The plan for ``wish`` on the machine file ``machine`` (a path, or the name of one in inventory/machines).

    ``model`` is a name in inventory/catalogue.yml, ``owner/repository@commit``, or a local GGUF file or folder. Raises UsageError for an
    unknown name, GgufError for a file that is no GGUF, BigironError when the hub does not answer and nothing is cached.
    """
    wish.check()
    hardware = machinefile.read(_machine_file(machine))
    facts, notes = _facts(model, wish.quant)
    found = choose(hardware, facts, wish)
    return replace(found, warnings=(*notes, *found.warnings))


def _machine_file(name: str) -> Path:
    path = Path(name)
    known = MACHINES / f"{name}.yml"
    if not path.exists() and not path.suffix and not known.exists():
        names = [each.stem for each in sorted(MACHINES.glob("*.yml"))]
        near = difflib.get_close_matches(name, names, cutoff=0.4) or names
        raise UsageError(
            f"there is no machine {name!r}", where="inventory/machines", hint=f"there are: {', '.join(near)}; or give a path"
        )
    return known if not path.exists() and known.exists() else path


def _facts(model: str, quant: str) -> tuple[Mapping[str, ModelFacts], tuple[str, ...]]:
    """The facts of each quant that comes into question, and where they are from when that should be known."""
    local = Path(model)
    if local.exists():
        report = inspect_set(local)
        wrong = [finding.detail for finding in report.findings if not finding.ok]
        if wrong:
            more = [f"{len(wrong) - 3} more"] if len(wrong) > 3 else []
            raise UsageError(
                "; ".join([*wrong[:3], *more]),
                where=model,
                hint="name a GGUF file, shard 1 of a split set, or a folder with one model",
            )
        found = model_facts(report.headers)
        return {found.quant if quant == AUTO else quant: found}, ()
    repo, commit, endpoint, notes = _repository(model)
    token = os.environ.get("HF_TOKEN")
    listing = tree.list_files(endpoint, repo, commit, token)
    candidates = headers.candidates(listing, None if quant == AUTO else quant, token)
    return candidates.facts, (*notes, *listing.notes, *candidates.left_out)


def _repository(model: str) -> tuple[str, str, str, tuple[str, ...]]:
    """(repository, commit, endpoint, notes); a catalogue entry without a commit asks the hub for today's."""
    if match := re.fullmatch(r"(?P<repo>[\w.-]+/[\w.-]+)@(?P<commit>[0-9a-fA-F]{40})", model):
        return match["repo"], match["commit"].lower(), "", ()
    if "/" in model:
        raise UsageError(
            f"{model!r} is no pinned repository", where="--model", hint="write owner/repository@commit (40 hex digits)"
        )
    entry = catalogue.find(catalogue.read(CATALOGUE), model)
    if entry.revision:
        return entry.repo, entry.revision, entry.endpoint, ()
    commit, note = tree.commit_of(entry.endpoint, entry.repo, entry.branch, os.environ.get("HF_TOKEN"))
    return entry.repo, commit, entry.endpoint, (f"{note}; pin it in inventory/catalogue.yml",)
