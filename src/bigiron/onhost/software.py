"""Software of a host: installed packages, what the package index offers, the compiler.

Runs on hosts: standard library only.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Iterable, Optional

from .system import Output, Start, Tree

TOOLCHAIN = ("build-essential", "g++", "gcc", "cmake", "ninja-build", "ccache", "libssl-dev", "pkg-config", "git")


def packages(tree: Tree, wanted: Optional[Iterable[str]] = None) -> Dict[str, Any]:
    """Installed Debian packages and versions from dpkg's status file; only the ``wanted`` when given.

    A wanted name that is virtual (``awk``) has the version of an installed package that provides it.
    """
    name = "/var/lib/dpkg/status"
    data = tree.data(name)
    if data is None:
        return {"error": f"{name}: {tree.unreadable[name]}"} if name in tree.unreadable else {}
    if wanted is None:
        stanzas = (_stanza(each) for each in data.split(b"\n\n"))
        return {facts["Package"]: facts["Version"] for facts in stanzas if facts}
    # looked up one by one: a workstation's status file has megabytes, and this runs every time
    text = b"\n\n" + data
    found = {each: _find(text, each.split(":")[0]) for each in wanted}
    return {each: version for each, version in found.items() if version}


def _stanza(stanza: bytes) -> Dict[str, str]:
    """Package, Version and Provides of an installed package; {} for one that is removed or half installed."""
    if b" ok installed\n" not in stanza:
        return {}
    facts = re.findall(r"^(Package|Version|Provides): (.*)$", stanza.decode(errors="replace"), re.MULTILINE)
    return {"Package": "", "Version": "", **dict(facts)}


def _find(text: bytes, name: str) -> Optional[str]:
    def around(at: int) -> Dict[str, str]:
        end = text.find(b"\n\n", at)
        return _stanza(text[text.rfind(b"\n\n", 0, at) + 2 : end if end >= 0 else len(text)])

    at = text.find(b"\nPackage: %s\n" % name.encode())
    while at >= 0:  # one stanza for each architecture
        facts = around(at + 1)
        if facts:
            return facts["Version"]
        at = text.find(b"\nPackage: %s\n" % name.encode(), at + 1)
    for match in re.finditer(rb"\nProvides: [^\n]*(?<![\w.+-])%s(?![\w.+-])" % re.escape(name.encode()), text):
        facts = around(match.start() + 1)
        if facts:
            return facts["Version"]
    return None


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


def toolchain(tree: Tree, begin: Start) -> Callable[[], Dict[str, Any]]:
    """Ask for the compiler, or without one for what apt would install; the returned function waits for the answer.

    Keys: apt_lists, compiler, compiler_candidate, package_candidates, and compiler_error when g++ is broken.
    """
    lists = any("_Packages" in name for name in tree.names("/var/lib/apt/lists"))
    there = tree.exists("/usr/bin/g++")
    waiting = None
    if there:
        waiting = begin(["/usr/bin/g++", "-dumpfullversion"])
    elif tree.exists("/usr/bin/apt-cache"):
        waiting = begin(["apt-cache", "policy", *TOOLCHAIN])

    def finish() -> Dict[str, Any]:
        facts: Dict[str, Any] = {"apt_lists": lists, "compiler": None, "compiler_candidate": None, "package_candidates": {}}
        answer = waiting() if waiting else None
        if answer is None:
            return facts
        if not there:
            offered = candidates(answer)
            # asked second and alone: apt takes a name it does not know for a pattern, which costs ten times as much
            second = versioned_compiler(offered)
            named = candidates(begin(["apt-cache", "policy", second])()) if second else {}
            offered.update({name: version for name, version in named.items() if name == second})
            return {**facts, "package_candidates": offered, "compiler_candidate": compiler_candidate(offered)}
        known = answer.rc == 0 and re.fullmatch(r"\d+(\.\d+)+", answer.out.strip())
        if not known:
            return {**facts, "compiler_error": answer.err or "g++ -dumpfullversion gave no version"}
        return {**facts, "compiler": f"g++ {answer.out.strip()}"}

    return finish
