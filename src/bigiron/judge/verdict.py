"""The verifier's answer about one host: a list of checks, each true, false or "cannot tell", and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bigiron.units import count


@dataclass(frozen=True)
class Check:
    """One statement about a host.

    ``ok`` is None when the check could not be made; ``detail`` then says why. ``remedy`` names the command to run next.
    A check that is not ``required`` may stay open without spoiling the verdict; it spoils it when it is false.
    """

    id: str
    ok: bool | None
    detail: str
    remedy: str
    required: bool = True

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "ok": self.ok, "detail": self.detail, "remedy": self.remedy, "required": self.required}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Check:
        return cls(
            id=document["id"],
            ok=document["ok"],
            detail=document["detail"],
            remedy=document["remedy"],
            required=document.get("required", True),
        )


@dataclass(frozen=True)
class Verdict:
    """All checks of one host. ``unreachable`` when the verifier could not look at it at all (then one check says why).

    ``seconds`` is the time the collector spent looking at the host, the completion aside.
    """

    host: str
    checks: Sequence[Check]
    unreachable: bool = False
    seconds: float | None = None

    @property
    def ok(self) -> bool:
        """At least one check was made, none is false, and none that is required is open."""
        return any(check.ok for check in self.checks) and not self.failed and not any(check.required for check in self.unknown)

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.ok is False]

    @property
    def unknown(self) -> list[Check]:
        """Checks that could not be made."""
        return [check for check in self.checks if check.ok is None]

    def summary(self) -> str:
        """``"ok (104 checks)"``, or what is wrong: the first failures by name."""
        if self.ok:
            return f"ok ({count(len(self.checks), 'check')})"
        wrong = self.failed or self.unknown
        names = ", ".join(check.id for check in wrong[:4])
        more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        return f"{'failed' if self.failed else 'cannot tell'}: {names}{more}"

    def to_json(self) -> dict[str, Any]:
        """``{"ok", "host", "unreachable", "seconds", "checks": [...]}``; a check's ``ok`` is null for "cannot tell"."""
        return {
            "ok": self.ok,
            "host": self.host,
            "unreachable": self.unreachable,
            "seconds": self.seconds,
            "checks": [check.to_json() for check in self.checks],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Verdict:
        return cls(
            host=document["host"],
            checks=[Check.from_json(check) for check in document["checks"]],
            unreachable=document.get("unreachable", False),
            seconds=document.get("seconds"),
        )
