"""A local account: there, with its group, home and shell."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, Mapping, Tuple

from ..reader import Reader

SECTION = "users"


def observe(reader: Reader, names: Iterable[str]) -> Dict[str, Any]:
    """uid, gid, group, groups, home and shell of the accounts that exist."""
    return {name: facts for name in names if (facts := reader.accounts.user(name))}


def differs(_name: str, want: Mapping[str, Any], have: Any) -> Iterator[Tuple[str, str]]:
    """``want``: any of the observed fields; being in more ``groups`` than the wanted ones is no difference."""
    if have is None:
        yield "no such user", ""
        return
    for key, value in want.items():
        if key == "groups":
            missing = [group for group in value if group not in (*have.get("groups", ()), have.get("group"))]
            if missing:
                yield f"is not in {', '.join(missing)}", ""
        elif have.get(key) != value:
            yield f"{key} is {have.get(key)}, not {value}", ""
