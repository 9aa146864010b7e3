"""Releases, what they differ in, and steps of llama.cpp for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bigiron.errors import EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, BigironError
from bigiron.fleet.builds import Build, Likeness
from bigiron.fleet.bump import Bump
from bigiron.fleet.survey import Survey
from bigiron.report import console
from bigiron.units import count, gib


def show_list(builds: Sequence[Build], errors: Mapping[str, BigironError], *, as_json: bool) -> int:
    """One row per release. Returns 3 when a host was unreachable, 1 when one failed otherwise, else 0."""
    if as_json:
        console.print_json(
            {"releases": [one.to_json() for one in builds], "errors": {name: error.to_json() for name, error in errors.items()}}
        )
    else:
        _table(builds)
        for error in errors.values():
            console.error(error)
    return _exit(errors)


def _table(builds: Sequence[Build]) -> None:
    if not builds:
        print("no release is known: ./inv builds.build --host NAME makes one")
        return
    rows = [
        (
            one.fingerprint,
            one.build,
            one.backends,
            one.platform,
            gib(one.size_bytes) if one.size_bytes else "no",
            ", ".join(one.used_by) or "nothing",
        )
        for one in builds
    ]
    console.table(("release", "llama.cpp", "backends", "platform", "packed here", "used by"), rows)


def _exit(errors: Mapping[str, BigironError]) -> int:
    codes = {error.exit_code for error in errors.values()}
    return next((code for code in (EXIT_UNREACHABLE, EXIT_FAILED) if code in codes), min(codes, default=EXIT_OK))


def show_pruned(gone: Sequence[Build], kept: Sequence[Build], *, check: bool, as_json: bool) -> int:
    """What was removed, or with ``check`` would be."""
    if as_json:
        document = {"removed": [one.to_json() for one in gone], "kept": [one.to_json() for one in kept], "check": check}
        console.print_json(document)
        return EXIT_OK
    for one in gone:
        print(f"{'would remove' if check else 'removed'} {one.fingerprint} ({one.build}, {gib(one.size_bytes)})")
    for one in kept:
        print(f"kept {one.fingerprint} ({one.build}): {', '.join(one.used_by) or 'one of the newest'}")
    print(f"{count(len(gone), 'release')}, {gib(sum(one.size_bytes for one in gone))}")
    return EXIT_OK


def show_explained(
    surveys: Mapping[str, Survey], found: Mapping[str, Sequence[Likeness]], errors: Mapping[str, BigironError], *, as_json: bool
) -> int:
    """By host, the planned release and why the others are other ones."""
    if as_json:
        document = {
            name: {
                "planned": one.plan.release.fingerprint or None,
                "identity": one.plan.release.identity.to_json(),
                "build_from": one.plan.release.build_from,
                "why": one.plan.release.why,
                "releases": [each.to_json() for each in found[name]],
            }
            for name, one in surveys.items()
        }
        console.print_json({**document, **{name: error.to_json() for name, error in errors.items()}})
        return _exit(errors)
    for name, one in surveys.items():
        release = one.plan.release
        print(
            f"{name}: planned is {release.fingerprint or 'a release that is named once the compiler is installed'}: {release.why}"
        )
        for each in found[name]:
            print(
                f"  {each.fingerprint} on {', '.join(each.where)}: {'the planned one' if not each.differences else ''}".rstrip(
                    ": "
                )
            )
            for line in each.differences:
                print(f"    {line}")
        if not found[name]:
            print("  no other release is there to compare with")
    for error in errors.values():
        console.error(error)
    return _exit(errors)


def show_bump(done: Bump, *, as_json: bool) -> int:
    """The lines that change, and per host what upstream's flag changes mean for it."""
    if as_json:
        console.print_json(done.to_json())
        return EXIT_OK
    if not done.lines:
        print(f"{done.file}: stands there already")
    for before, after in done.lines:
        print(f"{done.file}:\n- {before.strip()}\n+ {after.strip()}")
    if done.lines and not done.written:
        print("nothing was written (--check)")
    for each in done.hosts:
        if each.unknown:
            print(f"{each.host}: flags not compared: {each.unknown}")
        elif not each.changes:
            print(f"{each.host}: no flag change touches its plan")
        for change in each.changes:
            print(f"{each.host}: {change.told}")
    if not done.hosts:
        print("no host of this inventory has a lock, so there is no plan that flag changes could touch")
    return EXIT_OK
