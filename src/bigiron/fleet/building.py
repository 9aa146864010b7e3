"""Makes the releases that hosts are planned to run and brings them to the controller; what runs on the hosts is left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    run = Run(inventory, say, quiet=quiet)
    run.outcomes.update({name: failure(name, error) for name, error in errors.items()})
    host_stage, needed = parts.in_stages(HOST), parts.in_stages(HOST, RELEASE)
    unnamed = {name: one for name, one in surveys.items() if not one.plan.release.fingerprint}
    if unnamed:
        say(f"{', '.join(unnamed)}: installing the toolchain, then planning again")
        run.apply(unnamed, only=host_stage)
        surveys = run.again(surveys)
    work = {name: one for name, one in surveys.items() if _is_builder(one)}
    marks = {name: one.plan.release.fingerprint for name, one in work.items()}
    instead = {
        name: {"llama_cpp_activate": False, "llama_cpp_fetch_to": str(survey.release_archive(mark))}
        for name, mark in marks.items()
    }
    run.apply(work, needed, [name for name in needed if name not in host_stage], instead)
    for name, one in surveys.items():
        if name not in run.outcomes:
            _end(run, name, one, marks)
    return [run.outcomes[target.name] for target in targets]


def _is_builder(one: Survey) -> bool:
    """The release is made or packed on this host: it is not on the controller, and no other host brings it."""
    return one.plan.release.archive is None and one.plan.release.build_from in (HERE, INSTALLED)


def _end(run: Run, name: str, one: Survey, marks: Mapping[str, str]) -> None:
    release = one.plan.release
    if name in marks:
        there = any(each.fingerprint == release.fingerprint for each in survey.cached_releases())
        error = (
            None
            if there
            else BigironError(f"the release {release.fingerprint} did not arrive", where=name, hint=f"see {run.folder}")
        )
        run.end(name, BUILT if there else "failed", error)
    elif release.archive:
        run.end(name, PACKED)
    else:
        builder = run.outcomes.get(release.build_from)
        if builder is None and release.build_from in marks:
            _end_of_builder = any(each.fingerprint == release.fingerprint for each in survey.cached_releases())
            run.end(name, BUILT if _end_of_builder else "failed")
        elif builder and builder.error:
            what = f"not attempted: {release.build_from}, which builds its release, {builder.status}"
            run.end(name, "failed", BigironError(what, where=name))
        else:
            run.end(name, BUILT)
