"""What a client sees: health, the key, the model, and one completion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bigiron.report.verdict import Check

from .subject import CannotTell, Subject

PATHS = ("/props", "/v1/models", "/slots", "/metrics", "/completion")


def health(s: Subject) -> tuple[bool, str]:
    """Only /health counts: other paths may answer while the model is still loading."""
    if s.facts.get("serving", {}).get("health", {}).get("silent"):
        return False, s.facts["serving"]["health"]["error"]
    found = s.fact("serving", "health", "status")
    return found == 200, f"/health answers {found}" + (" (still loading)" if found == 503 else "")


def own_process(s: Subject) -> tuple[bool, str]:
    """The answer came from the unit's own process, not from somebody else on the port."""
    owners = s.fact("listen", "owners")
    pid = str(s.fact("process", "pid"))
    if s.fact("host", "euid") != 0:
        raise CannotTell("needs root to see who owns the port")
    return set(owners) == {
        pid
    }, f"port {s.address[1]} is served by {', '.join(f'{name} ({number})' for number, name in owners.items()) or 'nobody'}"


def refused(s: Subject, path: str) -> tuple[bool, str]:
    found = s.fact("serving", "open", path)
    return found == 401, f"{path} without a key answers {found}, planned 401"


def wrong_key(s: Subject) -> tuple[bool, str]:
    found = s.fact("serving", "wrong_key")
    return found == 401, f"a wrong key is answered with {found}, planned 401"


def admitted(s: Subject, what: str, path: str) -> tuple[bool, str]:
    found = s.fact("serving", what, "status")
    return found == 200, f"{path} with the key answers {found}"


def model(s: Subject) -> tuple[bool, str]:
    found, wanted = s.fact("serving", "props", "model_path"), f"{s.model_dir}/{s.expect['model_entry']}"
    return found == wanted, f"the server says it loaded {found}, planned {wanted}"


def alias(s: Subject) -> tuple[bool, str]:
    found = s.fact("serving", "models", "ids")
    wanted = s.argv[s.argv.index("--alias") + 1] if "--alias" in s.argv else None
    return (wanted in found) if wanted else len(found) == 1, f"it serves {', '.join(map(str, found))}" + (
        f", planned {wanted}" if wanted else ""
    )


def completed(s: Subject) -> tuple[bool, str]:
    found = s.fact("completion")
    if found.get("status") != 200:
        return False, f"a completion is answered with {found['status']}"
    if not found.get("tokens"):
        return False, "a completion returned no token"
    speeds = [
        f"{found[name]:.1f} tok/s {word}"
        for name, word in (("prefill_tps", "prefill"), ("generation_tps", "generation"))
        if found.get(name)
    ]
    return True, f"{found['tokens']} tokens in {found['seconds']:.1f} s" + (f" ({', '.join(speeds)})" if speeds else "")


def silent_completion(s: Subject) -> tuple[bool, str]:
    """`completed`, but an unanswered request is a failure, not an open question."""
    if s.facts.get("completion", {}).get("silent"):
        return False, s.facts["completion"]["error"]
    return completed(s)


def checks(s: Subject) -> Iterator[Check]:
    yield s.check("http.health", s.log, health)
    yield s.check("http.own-process", f"on {s.name}: ss -ltnp 'sport = :{s.address[1]}'", own_process)
    if s.keyed:
        for path in PATHS:
            yield s.check(f"key.refused:{path}", s.provision, refused, path)
        yield s.check("key.wrong", s.provision, wrong_key)
    restart = f"on {s.name}: systemctl restart {s.unit} (a new key is read at start only)"
    yield s.check("key.admitted:/props", restart, admitted, "props", "/props")
    yield s.check("key.admitted:/v1/models", restart, admitted, "models", "/v1/models")
    yield s.check("http.model", restart, model)
    yield s.check("http.alias", restart, alias)
    if s.completion:
        yield s.check("completion", s.log, silent_completion)


def test_serving(check: Check, judge: Any) -> None:
    judge(check)
