"""The compiler: which one is there, or which one installing it would bring. It is part of a release's name."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Iterable, Optional

from ..reader import Reader
from ..system import Output

SECTION = "compilers"


def candidates(answer: Output) -> Dict[str, str]:
    """``apt-cache policy``'s candidates by package."""
    pairs = re.findall(r"^(\S+):\n(?: .*\n)*?  Candidate: (\S+)$", answer.out, re.MULTILINE)
    return {name: version for name, version in pairs if version != "(none)"}


def versioned_compiler(offered: Dict[str, str]) -> Optional[str]:
    """The package that ``g++`` stands for: its candidate ``4:12.2.0-3`` depends on ``g++-12``."""
    major = re.match(r"(?:\d+:)?(\d+)\.", offered.get("g++", ""))
    return f"g++-{major.group(1)}" if major else None


def compiler_candidate(offered: Dict[str, str]) -> Optional[str]:
    """The compiler that installing ``g++`` would bring, as ``compiler`` will read then: ``"g++ 12.2.0"``."""
    # the version of g++ itself lags behind: on Ubuntu 24.04 4:13.2.0 brings g++-13 at 13.3.0
    version = re.match(r"(?:\d+:)?(\d+\.\d+\.\d+)", offered.get(versioned_compiler(offered) or "", ""))
    return f"g++ {version.group(1)}" if version else None


def observe(reader: Reader, names: Iterable[str]) -> Callable[[], Dict[str, Any]]:
    """By name (``g++``): ``{"version": "g++ 12.2.0"}``, or ``{"candidate": ...}`` of the package index, or ``{"error": why}``."""
    waiting = {}
    for name in names:
        if reader.tree.exists(f"/usr/bin/{name}"):
            waiting[name] = reader.begin([f"/usr/bin/{name}", "-dumpfullversion"])
        elif reader.tree.exists("/usr/bin/apt-cache"):
            waiting[name] = reader.begin(["apt-cache", "policy", name])
    return lambda: {name: _facts(reader, name, wait()) for name, wait in waiting.items()}


def _facts(reader: Reader, name: str, answer: Output) -> Dict[str, str]:
    if reader.tree.exists(f"/usr/bin/{name}"):
        if answer.rc == 0 and re.fullmatch(r"\d+(\.\d+)+", answer.out.strip()):
            return {"version": f"{name} {answer.out.strip()}"}
        return {"error": answer.err or f"{name} -dumpfullversion gave no version"}
    offered = candidates(answer)
    # asked second and alone: apt takes a name it does not know for a pattern, which costs ten times as much
    second = versioned_compiler(offered)
    if second:
        offered.update(candidates(reader.begin(["apt-cache", "policy", second])()))
    candidate = compiler_candidate(offered)
    return {"candidate": candidate} if candidate else {}
