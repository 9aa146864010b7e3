"""Makes the releases that hosts are planned to run and brings them to the controller; what runs on the hosts is left alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bigiron import parts
from bigiron.errors import BigironError
from bigiron.fleet import play, survey
from bigiron.fleet.applying import Outcome, Run, failure, raise_refusals
from bigiron.fleet.inventory import Target
from bigiron.fleet.play import Say
from bigiron.fleet.survey import Survey
from bigiron.parts.part import HOST, RELEASE
from bigiron.plan.releases import HERE, INSTALLED

BUILT, PACKED = "built", "packed already"


@play.one_per_host
def build(targets: Sequence[Target], inventory: str, say: Say, *, quiet: bool = False) -> list[Outcome]:
    """Have each release of ``targets`` built once and packed on the controller. One outcome per target, in their order.

    ``current`` and the services stay as they are; what the build itself needs of the host (packages, toolchains, the user that proves it) is
    installed. Raises Refused, before anything is touched, when one of the hosts cannot be planned.
    """
    surveys, errors = survey.survey(targets)
    raise_refusals(surveys, errors, say)
    failed = {name: failure(name, error) for name, error in errors.items()}
    if not surveys:
        return [failed[target.name] for target in targets]
    run = Run(inventory, say, quiet=quiet)
    run.outcomes.update(failed)
    unnamed = {name: one for name, one in surveys.items() if not one.plan.release.fingerprint}
    if unnamed:
        say(f"{', '.join(unnamed)}: installing the toolchain, then planning again")
        run.apply(unnamed, only=parts.in_stages(HOST))
        surveys = run.again(surveys)  # all of them: who builds for whom may be another one now
    here = {name: one for name, one in surveys.items() if _made_here(one)}
    instead = {name: _only_packed(one) for name, one in here.items()}
    run.apply(here, parts.in_stages(HOST, RELEASE), parts.in_stages(RELEASE), instead)
    packed = {one.fingerprint for one in survey.cached_releases()}
    for name, one in surveys.items():
        if name not in run.outcomes:
            _end(run, one, packed)
    return [run.outcomes[target.name] for target in targets]


def _made_here(one: Survey) -> bool:
    """The release is compiled or packed on this host: the controller has none, and no other host brings it."""
    return one.plan.release.archive is None and one.plan.release.build_from in (HERE, INSTALLED)


def _only_packed(one: Survey) -> Mapping[str, Any]:
    return {"llama_cpp_activate": False, "llama_cpp_fetch_to": str(survey.release_archive(one.plan.release.fingerprint))}


def _end(run: Run, one: Survey, packed: Collection[str]) -> None:
    release, builder = one.plan.release, run.outcomes.get(one.plan.release.build_from)
    if release.archive:
        run.end(one.name, PACKED)
    elif release.fingerprint in packed:
        run.end(one.name, BUILT)
    else:
        because = f"{release.build_from}, which builds its release, {builder.status}" if builder else f"see {run.folder}"
        error = BigironError(f"the release {release.fingerprint} did not come to the controller", where=one.name, hint=because)
        run.end(one.name, "failed", error)
