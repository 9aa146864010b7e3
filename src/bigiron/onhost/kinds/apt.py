"""apt's sources, keys, pins and settings that bigiron wrote, and who else lists a repository of ours."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, Mapping, Tuple

from ..aptsources import KEYRINGS, AptSources, same
from ..openpgp import fingerprints
from ..reader import Reader
from .file import unified

SECTION = "apt"
OTHERS = "*others"
"""The entry of what files of others list: ``[[file:line, uri, suite, signed-by]]``."""


def observe(reader: Reader, _names: Iterable[str]) -> Dict[str, Any]:
    """By path: ``{"text"}``, or of a key ``{"text", "fingerprints"}``. All files of ours, whatever ``names`` are: the names say who asks."""
    sources = AptSources(reader.tree.root)
    found: Dict[str, Any] = {OTHERS: [[one.place, one.uri, one.suite, one.signed_by] for one in sources.entries()]}
    for path in sources.ours():
        data = reader.tree.data(path)
        if data is None:
            found[path] = {"error": reader.tree.unreadable.get(path, "gone")}
            continue
        found[path] = {"text": data.decode(errors="replace")}
        if path.startswith(KEYRINGS):
            try:
                found[path]["fingerprints"] = fingerprints(data)
            except ValueError:
                found[path]["fingerprints"] = []
    return found


def find(section: Mapping[str, Any], name: str, want: Mapping[str, Any]) -> Any:
    """The file, and with it who else lists a repository that it is to list."""
    mine = {same(want["uri"], suite) for suite in want.get("suites", ())}
    twice = [each for each in section.get(OTHERS, ()) if tuple(each[1:3]) in mine]
    return {**section.get(name, {"missing": True}), "twice": twice}


def differs(name: str, want: Mapping[str, Any], have: Any) -> Iterator[Tuple[str, str]]:
    """``want``: ``{"text"}`` of a file, ``{"fingerprints"}`` of a key that is fetched; with ``{"uri", "suites"}`` who else may not list them."""
    for place, _uri, _suite, signed_by in have["twice"]:
        yield f"{place} lists the same repository, signed by {signed_by or 'any key'}: apt refuses to start with both", ""
    if have.get("missing"):
        yield "does not exist", unified(name, "", want.get("text", ""))
    elif "error" in have:
        yield f"cannot be read: {have['error']}", ""
    elif "text" in want and have["text"] != want["text"]:
        yield "content differs", unified(name, have["text"], want["text"])
    elif "fingerprints" in want and (not have["fingerprints"] or set(have["fingerprints"]) - set(want["fingerprints"])):
        yield f"holds the key {', '.join(have['fingerprints']) or 'of nobody'}, not {', '.join(want['fingerprints'])}", ""
