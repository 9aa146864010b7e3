"""The plan as a folder that Ansible reads as an inventory beside the person's own: ``hosts.yml`` and ``host_vars/<host>.json``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bigiron import parts
from bigiron.errors import BigironError, Refused, UsageError
from bigiron.fleet.survey import Survey
from bigiron.paths import write_atomic
from bigiron.plan.releases import ARCHIVE, HERE, INSTALLED

HEADER = "# Written by bigiron: a plan for Ansible, replaced as a whole the next time.\n"


def write(folder: Path, variables: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write ``variables`` of each host into ``folder`` in the place of an earlier plan.

    Raises UsageError, and writes nothing, when the folder holds something else.
    """
    hosts = folder / "hosts.yml"
    earlier = hosts.is_file() and hosts.read_text(encoding="utf-8", errors="replace").startswith(HEADER)
    if folder.exists() and not earlier and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError("is no folder of an earlier plan, and not empty", where=str(folder), hint="name a new folder")
    write_atomic(hosts, HEADER + json.dumps({"all": {"hosts": {name: {} for name in variables}}}) + "\n")
    for name, values in variables.items():
        write_atomic(folder / "host_vars" / f"{name}.json", json.dumps(values, indent=1) + "\n")
    for file in folder.glob("host_vars/*.json"):
        if file.stem not in variables:
            file.unlink()
    return folder


def hand_over(surveys: Mapping[str, Survey], errors: Mapping[str, BigironError], inventory: str, folder: str) -> list[str]:
    """Write what a plain ``ansible-playbook`` needs to bring the surveyed hosts to their plan from nothing.

    Nothing is written when a host has no plan or a reason not to start. No secret is written: a variable that the inventory keeps sealed is
    left to the inventory. Returns lines for a person: the command to run, or why nothing was written. Raises Refused when a host waits for
    another one's build, which only `bigiron.fleet.provision` can order; UsageError as `write`.
    """
    if errors or any(one.refusals for one in surveys.values()):
        return [f"nothing was written to {folder}: a plan that cannot be applied is not handed over"]
    variables, lines = {}, []
    for name, one in surveys.items():
        if one.plan.release.build_from not in (HERE, INSTALLED, ARCHIVE):
            raise Refused(
                f"its release comes from {one.plan.release.build_from}, which has not brought it to the controller yet",
                where=name,
                hint=f"./inv provision --host {one.plan.release.build_from} first; or plan {name} alone, then it builds for itself",
            )
        if not one.plan.arguments_proved:
            lines.append(
                f"{name}: no build could be asked for its options yet; role llama_server asks before it touches the service"
            )
        sealed = one.target.vars.pending()
        variables[name] = {key: value for key, value in one.plan.variables.items() if key not in sealed}
        variables[name]["bigiron_parts"] = list(parts.NAMES)
    write(Path(folder), variables)
    sources = " ".join(f"-i {shlex.quote(one)}" for one in [*inventory.split(","), folder] if one)
    return [*lines, f"written; apply it with: ansible-playbook {sources} --limit {','.join(surveys)} playbooks/provision.yml"]
