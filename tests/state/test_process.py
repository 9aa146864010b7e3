"""The running server as the kernel sees it: /proc/PID, never the unit's text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from bigiron.report.verdict import Check
from bigiron.units import gib

from . import unitfile
from .subject import CannotTell, Subject

SECRET_NAMES = re.compile(r"API_KEY|TOKEN|SECRET|PASSW", re.IGNORECASE)
STRAY_NAMES = re.compile(r"^(LLAMA_|GGML_|HF_|LD_|CUDA_VISIBLE)")
LIMITS = {
    "LimitMEMLOCK": "Max locked memory",
    "LimitNOFILE": "Max open files",
    "LimitCORE": "Max core file size",
    "LimitNPROC": "Max processes",
}


def running(s: Subject) -> tuple[bool, str]:
    if s.missing("process"):
        return False, s.facts["process"]["error"]
    return True, f"process {s.fact('process', 'pid')}"


def program(s: Subject) -> tuple[bool, str]:
    found, wanted = s.fact("process", "exe"), f"{s.release}/bin/llama-server"
    if found.endswith(" (deleted)"):
        return False, f"it runs a file that was removed since: {found.removesuffix(' (deleted)')}"
    return found == wanted, f"it runs {found}, planned {wanted}"


def user(s: Subject) -> tuple[bool, str]:
    ids = set(s.fact("process", "status", "Uid").split())
    return ids == {
        str(s.fact("user", "uid"))
    }, f"its user ids are {', '.join(sorted(ids))}, {s.expect['llama_server_user']} is {s.fact('user', 'uid')}"


def group(s: Subject) -> tuple[bool, str]:
    ids = set(s.fact("process", "status", "Gid").split())
    return ids == {
        str(s.fact("user", "gid"))
    }, f"its group ids are {', '.join(sorted(ids))}, {s.expect['llama_server_user']} is {s.fact('user', 'gid')}"


def arguments(s: Subject) -> tuple[bool, str]:
    found, wanted = s.fact("process", "cmdline"), s.argv
    if found == wanted:
        return True, f"its {len(wanted)} arguments are the planned ones"
    for at, (have, want) in enumerate(zip(found, wanted, strict=False)):
        if have != want:
            return False, f"argument {at} is {have!r}, planned {want!r}"
    return False, f"it has {len(found)} arguments, planned {len(wanted)}"


def environment(s: Subject) -> tuple[bool, str]:
    """Exactly the planned names and values; ``env -i`` leaves nothing of the manager's."""
    wanted = dict(s.expect.get("llama_server_environment", {}))
    names = set(s.fact("process", "environ", "names"))
    extra, lost = sorted(names - set(wanted)), sorted(set(wanted) - names)
    wrong = sorted(name for name, value in s.fact("process", "environ", "planned").items() if value != wanted[name])
    problems = [
        f"{word} {', '.join(found)}"
        for word, found in (("unplanned", extra), ("missing", lost), ("other values:", wrong))
        if found
    ]
    return not problems, "; ".join(problems) or f"exactly the {len(wanted)} planned variables"


def strays(s: Subject) -> tuple[bool, str]:
    planned = s.expect.get("llama_server_environment", {})
    found = [
        name
        for name in s.fact("process", "environ", "names")
        if name not in planned and (STRAY_NAMES.match(name) or SECRET_NAMES.search(name))
    ]
    return (
        not found,
        f"variables that change the server or hold a secret: {', '.join(found)}"
        if found
        else "no variable that could change it",
    )


def _limit(text: str) -> int | None:
    return None if text == "unlimited" else int(text)


def _at_least(found: int | None, wanted: int | None) -> bool:
    return found is None or (wanted is not None and found >= wanted)


def limit(s: Subject, key: str, planned: str) -> tuple[bool, str]:
    """The effective limit. A container's own hard limit may cap it: that is no fault of the unit."""
    name = LIMITS[key]
    found = s.fact("process", "limits", name)[1]
    wanted = unitfile.size(planned.rpartition(":")[2])
    if (_limit(found)) == wanted:
        return True, f"{name}: {found}"
    ceiling = _limit(s.fact("process", "caps", name)[1])
    capped = ceiling is not None and not _at_least(ceiling, wanted) and _limit(found) == ceiling
    return capped, f"{name}: {found}, planned {planned}" + (": the container's own limit caps it" if capped else "")


def locks_memory(s: Subject) -> bool:
    return any("mlock" in word for word in s.argv)


def mlock(s: Subject) -> tuple[bool, str]:
    """Can the model be locked in memory? Too little memory and too low a limit are different faults (llama.cpp#888)."""
    weights, total = int(s.expect["llama_server_weight_bytes"]), s.fact("model", "memory_total")
    if weights > total:
        return False, f"locking is impossible: the model has {gib(weights)}, the machine {gib(total)}"
    found = s.fact("process", "limits", "Max locked memory")[1]
    enough = _at_least(_limit(found), weights)
    return (
        enough,
        f"it may lock {found} bytes, the model has {gib(weights)}" if not enough else f"the limit ({found}) covers the model",
    )


def privileges(s: Subject) -> tuple[bool, str]:
    found = s.fact("process", "status", "NoNewPrivs")
    return found == "1", f"NoNewPrivs is {found}"


def capabilities(s: Subject, name: str) -> tuple[bool, str]:
    found = s.fact("process", "status", name)
    return int(found, 16) == 0, f"{name} is {found}"


def seccomp(s: Subject) -> tuple[bool, str]:
    found = s.fact("process", "status", "Seccomp")
    return found == "2", f"Seccomp mode is {found} (2: a filter is active)"


def killable(s: Subject) -> tuple[bool, str]:
    wanted = s.planned_unit.get("Service", {}).get("OOMScoreAdjust", ["0"])[-1]
    found = s.fact("process", "oom_score_adj")
    return found == int(wanted), f"oom_score_adj is {found}, planned {wanted}"


def _own(s: Subject) -> list[tuple[str, int]]:
    mine = set(s.fact("process", "sockets"))
    return sorted((entry["address"], entry["port"]) for entry in s.fact("listen", "sockets") if entry["inode"] in mine)


def listening(s: Subject) -> tuple[bool, str]:
    own, (address, port) = _own(s), s.address
    if (address, port) in own or (address == "localhost" and ("127.0.0.1", port) in own):
        return True, f"its process listens on {address}:{port}"
    owners = s.fact("listen", "owners")
    others = [f"{name} ({pid})" for pid, name in owners.items() if pid != str(s.fact("process", "pid"))]
    said = f"; port {port} belongs to {', '.join(others)}" if others else ""
    elsewhere = ", ".join(f"{at}:{number}" for at, number in own) or "nowhere"
    return False, f"it listens {elsewhere}, planned {address}:{port}{said}"


def only_there(s: Subject) -> tuple[bool, str]:
    extra = [f"{address}:{port}" for address, port in _own(s) if port != s.address[1]]
    return not extra, f"it also listens on {', '.join(extra)}" if extra else "it listens nowhere else"


def guarded(s: Subject) -> tuple[bool, str]:
    """Anything but loopback only with a key (design, law 5)."""
    loopback = all(address.startswith("127.") or address == "::1" for address, _ in _own(s))
    if not _own(s):
        raise CannotTell("it listens nowhere")
    return loopback or s.keyed, "loopback only" if loopback else "reachable from the network" + (
        " with a key" if s.keyed else " without a key"
    )


def checks(s: Subject) -> Iterator[Check]:
    restart = f"on {s.name}: systemctl restart {s.unit}; if it stays: {s.provision}"
    yield s.check("process.running", s.log, running)
    yield s.check("process.program", restart, program)
    yield s.check("process.user", restart, user)
    yield s.check("process.group", restart, group)
    yield s.check("process.arguments", restart, arguments)
    yield s.check("process.environment", restart, environment)
    yield s.check("process.strays", restart, strays)
    for key, planned in s.planned_unit.get("Service", {}).items():
        if key in LIMITS and planned:
            yield s.check(f"process.limit:{key}", restart, limit, key, planned[-1])
    if locks_memory(s):
        yield s.check(
            "process.mlock", "take mlock out of llama_server_extra_args, or raise the container's memlock limit", mlock
        )
    yield s.check("process.no-new-privileges", restart, privileges)
    for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"):
        yield s.check(f"process.capabilities:{name}", restart, capabilities, name)
    yield s.check("process.seccomp", restart, seccomp)
    yield s.check("process.oom-score", restart, killable)
    yield s.check("listener.address", f"on {s.name}: ss -ltnp; then {s.provision}", listening)
    yield s.check("listener.alone", s.provision, only_there)
    yield s.check("listener.guarded", s.provision, guarded)


def test_process(check: Check, judge: Any) -> None:
    judge(check)
