"""The files of a pinned model revision, proved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bigiron.errors import Refused
from bigiron.onhost.kinds.shard import PROOF
from bigiron.parts import base
from bigiron.parts.part import MODEL, Facts, Planned, Reason, Resource, Space, Watched
from bigiron.plan.choose import AUTO
from bigiron.plan.places import check_folder, check_resolved
from bigiron.units import count, gib

STAGE = MODEL
TOKEN = "model_token"  # noqa: S105 - the name of a variable
"""The variable with the hub's access token."""


@dataclass(frozen=True)
class Repository:
    """What is asked of the hub; ``quant`` None when the plan is to choose."""

    endpoint: str
    repo: str
    revision: str
    quant: str | None


def repository(wish: Mapping[str, Any]) -> Repository:
    """The pinned repository and the quant that was asked for."""
    quant = wish["model_quant"]
    chosen = None if quant.lower() == AUTO else quant
    return Repository(wish["model_endpoint"].rstrip("/"), wish["model_repo"], wish["model_revision"], chosen)


def revision(wish: Mapping[str, Any]) -> str:
    """``org/repo/commit``: the folder of the files below the root."""
    return f"{wish['model_repo']}/{wish['model_revision']}"


def folder(wish: Mapping[str, Any]) -> str:
    """Where the files stand on the host."""
    return f"{wish['model_root']}/{revision(wish)}"


def proof(wish: Mapping[str, Any]) -> str:
    """The record of what was hashed; a server older than it may have other bytes mapped."""
    return f"{folder(wish)}/{PROOF}"


def directories(wish: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"path": wish["model_root"], "owner": "root", "group": "root", "mode": "0755", "keep": True}]


def watch(wish: Mapping[str, Any]) -> Watched:
    return {"shard": {revision(wish): wish["model_root"]}, "disk": [wish["model_root"]]}


def plan(facts: Facts, _so_far: Planned) -> Planned:
    wish, files = facts.wish, facts.files
    variables = {
        "model_files": [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in files.files],
        "model_entry": files.entry,
        "model_repo": wish["model_repo"],
        "model_revision": wish["model_revision"],
        "model_quant": facts.served.quant,
        "model_root": wish["model_root"],
    }
    want = {"revision": revision(wish)}
    resources = [
        Resource("shard", each.path, "model", {**want, "size": each.size, "sha256": each.sha256}) for each in files.files
    ]
    what = f"{facts.served.quant}, {count(len(files.files), 'file')}, {gib(files.total_bytes)}"
    reason = Reason("model", what, f"{wish['model_repo']} at {wish['model_revision'][:12]}")
    refusals = []
    try:
        facts.served.require()
    except Refused as refusal:
        refusals.append(Refused(refusal.what, hint=refusal.hint))
    refusals += _root(facts)
    space = Space(wish["model_root"], "model", _missing_bytes(facts), "model_root")
    return Planned(variables, resources, [reason], refusals, space=[space])


def _root(facts: Facts) -> list[Refused]:
    """Why the folder that ``model_root`` turns out to be on the host cannot hold the models."""
    root = facts.wish["model_root"]
    real = str(facts.observed["disks"].get(root, {}).get("real") or root)
    kind = facts.observed["paths"].get(root, {}).get("type", "directory")
    if wrong := check_resolved(root, real):
        return [Refused(f"model_root {wrong}", hint="name a folder outside such places, or mount the drive there")]
    if kind != "directory":
        # the role would keep a link, and no later run would find the folder that is planned
        hint = f"set model_root: {real}" if kind == "link" else "move it away, or name another folder"
        return [Refused(f"model_root is {root}, a {kind} and no folder", hint=hint)]
    if wrong := check_folder(root, facts.observed, base.USER):
        return [Refused(f"model_root {wrong}", hint=f"on the host: chmod o+rx {root}")]
    return []


def _missing_bytes(facts: Facts) -> int:
    state = facts.observed["models"].get(revision(facts.wish), {})
    have, partial = state.get("files", {}), state.get("partial", {})
    return sum(
        file.size - min(file.size, int(partial.get(file.path, 0)))
        for file in facts.files.files
        if have.get(file.path, {}).get("size") != file.size
    )


def lock(_facts: Facts, variables: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": {name: variables[f"model_{name}"] for name in ("repo", "revision", "quant", "files")}}


def status(wish: Mapping[str, Any], _observed: Mapping[str, Any]) -> dict[str, str]:
    return {"model": f"{wish['model_repo']}:{wish['model_quant']}"}


def remove(wish: Mapping[str, Any], models: bool) -> dict[str, Any]:
    return {"model_root": wish["model_root"], "model_remove": models}
