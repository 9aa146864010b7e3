"""Debian packages: what is missing, installing and holding it, and a record of exactly what that brought, so that it can be removed.

Standard library only: this file also runs on hosts. ``ansible.builtin.apt`` needs python3-apt in the right interpreter and
cannot check a virgin host without it (ansible#73075); apt-get itself is on every Debian.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any, Callable, Optional

from ..errors import BigironError
from .apt import Apt, Run, reason, run, states
from .progress import write_atomic

RECORD = Path("/var/lib/bigiron/packages.json")


def installed(runner: Run = run) -> dict[str, str]:
    """``{name: version}`` of the packages that are completely installed."""
    return {name: state.version for name, state in states(runner).items() if state.have == "i"}


def simulated(output: str, word: str = "Inst") -> dict[str, str]:
    """``{name: version}`` of what ``apt-get -s`` would newly install, or remove with ``word="Remv"``.

    A line with a version in brackets before the parenthesis is an upgrade of something that is there: not new.
    """
    found = {}
    for line in output.splitlines():
        match = re.match(rf"{word} (\S+?)(?::\w+)? (\[[^\]]*\] )?(?:\((\S+))?", line)
        if match and (word == "Remv" or not match.group(2)):
            found[match.group(1)] = match.group(3) or ""
    return found


def missing(wanted: list[str], have: dict[str, str]) -> list[str]:
    """The wanted packages (``name`` or ``name=version``) that are not there, or there in another version."""
    absent = []
    for item in wanted:
        name, _, version = item.partition("=")
        if name not in have or (version and have[name] != version):
            absent.append(item)
    return absent


def recorded(record: Path = RECORD, key: str = "installed_packages") -> list[str]:
    """The packages that bigiron brought to this host; with ``key="held_packages"`` those that it holds."""
    try:
        names = json.loads(record.read_text(encoding="utf-8")).get(key, [])
        return sorted(str(name) for name in names)
    except FileNotFoundError:
        return []
    except (ValueError, AttributeError, TypeError) as error:
        raise BigironError(f"the package record is not readable: {error}", where=str(record)) from error


def _write_record(record: Path, brought: list[str], held: list[str]) -> None:
    record.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    document = {"installed_packages": sorted(set(brought)), **({"held_packages": sorted(set(held))} if held else {})}
    write_atomic(record, json.dumps(document, indent=1) + "\n")


def ensure(
    wanted: list[str],
    *,
    hold: Optional[list[str]] = None,
    lock_timeout_s: int = 300,
    check: bool = False,
    record: Path = RECORD,
    runner: Run = run,
) -> dict[str, Any]:
    """Install what is missing, without recommends, and hold the packages named in ``hold``.

    Returns ``{"changed", "installed": [name], "updated_lists", "held": [name], "unheld": [name]}``. A held package that is wanted in another
    version is let go, changed and held again; one that bigiron held and that is not in ``hold`` any more is let go (None: no hold is looked at).
    The record is written before apt starts, from its own simulation, so that a killed run forgets nothing.
    """
    found = states(runner)
    have = {name: state.version for name, state in found.items() if state.have == "i"}
    held = {name for name, state in found.items() if state.want == "h"}
    absent = missing(wanted, have)
    ours = recorded(record, "held_packages")
    holds = hold or []
    to_hold = sorted(set(holds) - held)
    dropped = sorted(set(ours) & held - set(holds)) if hold is not None else []
    answer: dict[str, Any] = {"changed": bool(absent or to_hold or dropped), "installed": [], "updated_lists": False}
    answer.update(held=to_hold, unheld=dropped)
    if not answer["changed"]:
        return answer
    if check:
        return {**answer, "installed": sorted(name.partition("=")[0] for name in absent)}
    apt = Apt(runner, lock_timeout_s)
    if absent and apt.repair():
        absent = missing(wanted, installed(runner))
    # a hold on a package that was not there is ours from now on: it is made anew for what is installed
    kept = [name for name in {*ours, *to_hold, *(set(holds) - have.keys())} if name not in dropped]
    apt.mark("unhold", sorted({*dropped, *(held & set(holds) & {name.partition("=")[0] for name in absent})}))
    if absent:
        new, answer["updated_lists"] = _install(apt, absent, lambda new: _write_record(record, [*recorded(record), *new], kept))
        still = missing(wanted, installed(runner))
        if still:
            raise BigironError(f"apt reported success but these are not installed: {', '.join(still)}", where="base_packages")
        answer["installed"] = new
    elif kept != ours:
        _write_record(record, recorded(record), kept)
    apt.mark("hold", sorted(holds) if absent else to_hold)
    return answer


def _install(apt: Apt, absent: list[str], note: Callable[[list[str]], None]) -> tuple[list[str], bool]:
    """Install ``absent``, telling ``note`` before what will be new; that, and whether the lists had to be fetched."""
    # a version that was named may be the older one; apt takes no other package back for it
    back = ["--allow-downgrades"] if any("=" in each for each in absent) else []
    arguments = ("install", "--no-install-recommends", *back, *absent)
    plan = apt.runner(apt.argv("-s", *arguments))
    updated = plan.returncode != 0
    if updated:  # no lists yet, or lists too old to know the package
        apt.call("update")
        plan = apt.runner(apt.argv("-s", *arguments))
        if plan.returncode != 0:
            raise BigironError(
                f"apt cannot install {', '.join(absent)}: {reason(plan)}",
                where="base_packages",
                hint="check the names and /etc/apt/sources.list*",
            )
    new = sorted(simulated(plan.stdout))
    note(new)
    try:
        apt.call("-y", *arguments)
    except BigironError as error:
        if updated or "Failed to fetch" not in str(error):
            raise
        apt.call("update")  # the lists named versions that the archive has replaced since
        apt.call("-y", *arguments)
        updated = True
    return new, updated


def remove(*, lock_timeout_s: int = 300, check: bool = False, record: Path = RECORD, runner: Run = run) -> dict[str, Any]:
    """Remove the recorded packages as far as nothing else goes with them, and let go what bigiron held.

    Returns ``{"changed", "removed": [name], "kept": [{"name", "because"}]}``; a package that something else needs by now stays.
    """
    found = states(runner)
    ours = [name for name in recorded(record) if name in found and found[name].have == "i"]
    holds = [name for name in recorded(record, "held_packages") if name in found and found[name].want == "h"]
    theirs = [name for name in ours if found[name].want == "h" and name not in holds]
    removable, kept = _removable([name for name in ours if name not in theirs], runner)
    kept += [{"name": name, "because": "somebody holds it (apt-mark showhold)"} for name in theirs]
    if not check:
        apt = Apt(runner, lock_timeout_s)
        apt.mark("unhold", holds)
        if removable:
            apt.call("-y", "purge", *removable)
        with contextlib.suppress(FileNotFoundError):
            record.unlink()
    return {"changed": bool(removable or holds), "removed": removable, "kept": kept}


def _removable(ours: list[str], runner: Run) -> tuple[list[str], list[dict[str, str]]]:
    """Try all at once; where more than ours would go, find by halves which of ours drag it along."""
    if not ours:
        return [], []
    answer = runner(["apt-get", "-s", "--allow-change-held-packages", "purge", *ours])
    going = set(simulated(answer.stdout, "Remv")) | set(simulated(answer.stdout, "Purg"))
    foreign = sorted(going - set(ours))
    if answer.returncode == 0 and not foreign:
        return ours, []
    because = f"removing it would also remove {', '.join(foreign[:4])}" if foreign else reason(answer)
    if len(ours) == 1:
        return [], [{"name": ours[0], "because": because}]
    removable, kept = [], []
    for half in (ours[: len(ours) // 2], ours[len(ours) // 2 :]):
        part = _removable(half, runner)
        removable += part[0]
        kept += part[1]
    # halves that are harmless alone may not be harmless together
    answer = runner(["apt-get", "-s", "--allow-change-held-packages", "purge", *removable]) if removable else answer
    extra = (set(simulated(answer.stdout, "Remv")) | set(simulated(answer.stdout, "Purg"))) - set(removable)
    if removable and extra:
        return [], [*kept, *({"name": name, "because": f"removing it would also remove {min(extra)}"} for name in removable)]
    return removable, kept
