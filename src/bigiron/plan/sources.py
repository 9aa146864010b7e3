"""Where llama.cpp's source comes from, and what pins it: a git repository, an archive, or a folder on the controller."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

GIT, TREE, ARCHIVE = "git", "tree", "archive"
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Source:
    """A llama.cpp source. ``url`` and ``mirrors`` may change; what pins it may not.

    Pinned is an archive by ``sha256``, a git repository by ``commit`` (40 hex digits), a folder by the ``sha256`` of what `bigiron.fleet.pinning`
    packed of it, which then lies in ``packed`` on the controller.
    """

    url: str
    sha256: str
    subdir: str
    build_number: int
    commit: str
    mirrors: tuple[str, ...] = ()
    packed: str = ""

    @property
    def kind(self) -> str:
        return kind(self.url)

    def identity(self) -> dict[str, str]:
        """What of a release's identity the source is: exactly one of ``source_sha256`` and ``source_commit``."""
        return {"source_commit": self.commit} if self.kind == GIT else {"source_sha256": self.sha256}

    @property
    def found(self) -> dict[str, str]:
        """Role variables that pinning found out, where the inventory could not say them."""
        if self.kind == TREE:
            return {"llama_cpp_source_url": "", "llama_cpp_source_sha256": self.sha256, "llama_cpp_source_packed": self.packed}
        return {"llama_cpp_commit": self.commit} if self.kind == GIT else {}

    def told(self) -> str:
        """For a person: ``git b11434 (https://...)``."""
        return f"{self.kind} {self.commit[:12] if COMMIT.fullmatch(self.commit) else self.commit} ({self.url})"


def kind(url: str) -> str:
    """``git+https://...`` is a repository, ``/...`` a folder on the controller, everything else an archive."""
    return GIT if url.startswith("git+") else TREE if url.startswith("/") else ARCHIVE


def read(wish: Mapping[str, Any]) -> Source:
    """The source a person asked for, once it is pinned."""
    return Source(
        url=wish["llama_cpp_source_url"],
        sha256=wish["llama_cpp_source_sha256"],
        subdir=wish["llama_cpp_source_subdir"],
        build_number=wish["llama_cpp_build_number"],
        commit=wish["llama_cpp_commit"],
        mirrors=tuple(wish["llama_cpp_source_mirrors"]),
        packed=str(wish.get("llama_cpp_source_packed") or ""),
    )


def problems(wish: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What is wrong with the variables of the source together, each right on its own: ``(variable, what, hint)``."""
    url, sha256, commit = wish["llama_cpp_source_url"], wish["llama_cpp_source_sha256"], wish["llama_cpp_commit"]
    if not url or not commit:
        return  # told already
    of = kind(url)
    if of == ARCHIVE and not sha256:
        hint = (
            "set it in the inventory (group_vars/<group>/llama_cpp.yml); it must be 64 lower-case hex digits, the SHA-256 of the archive: "
            "curl -L URL | sha256sum"
        )
        yield "llama_cpp_source_sha256", "llama_cpp_source_sha256 is not set", hint
    if of != ARCHIVE and sha256:
        hint = "remove it: a repository is pinned by its commit, a folder by its content"
        yield "llama_cpp_source_sha256", f"llama_cpp_source_sha256 is of an archive, and the source is a {NAMES[of]}", hint
    if of == GIT and not COMMIT.fullmatch(commit) and not wish["llama_cpp_floating"]:
        what = f"llama_cpp_commit is {commit}, which moves: a branch always, a tag when somebody moves it"
        hint = (
            "set the full commit, 40 hex digits (./inv builds.bump --to TAG writes it); or llama_cpp_floating: true, and each run builds "
            "what it names then"
        )
        yield "llama_cpp_commit", what, hint
    if wish["llama_cpp_floating"] and of != GIT:
        yield "llama_cpp_floating", "llama_cpp_floating is for a git repository only", "remove it"
    if of == TREE and wish["llama_cpp_source_mirrors"]:
        yield "llama_cpp_source_mirrors", "llama_cpp_source_mirrors has no meaning for a folder on the controller", "remove it"
    for mirror in wish["llama_cpp_source_mirrors"]:
        if kind(mirror) != of:
            what = f"llama_cpp_source_mirrors holds {mirror}, which is no {NAMES[of]}"
            yield "llama_cpp_source_mirrors", what, "a mirror holds the same as the first address"


NAMES = {GIT: "git repository", TREE: "folder on the controller", ARCHIVE: "archive"}
