"""What files a model repository holds, and which of them make up one quant.

Runs on the controller only. A commit never changes, so its file list is cached for good: a second look costs neither
network nor the import of ``huggingface_hub``.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from bigiron.errors import BigironError, Refused, UsageError
from bigiron.hub.quants import QuantFiles, RepoFile, group
from bigiron.paths import cache_dir, write_atomic

DEFAULT_ENDPOINT = "https://huggingface.co"
_COMMIT = re.compile(r"[0-9a-fA-F]{40}")
_SERVER_ERRORS = frozenset({500, 502, 503, 504})
_CONNECT_TIMEOUT_S = 10.0
_READ_TIMEOUT_S = 30.0
_Result = TypeVar("_Result")
Token = str | Callable[[], str] | None
"""A hub token, or the function that opens it when the hub is really asked."""


@dataclass(frozen=True)
class RepoTree:
    """Every file of ``repo`` at commit ``revision``. ``notes`` says where the list came from when it was not the hub."""

    endpoint: str
    repo: str
    revision: str
    files: tuple[RepoFile, ...]
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The repository as messages name it."""
        return f"{self.repo}@{self.revision[:12]}"


class _HubDownError(Exception):
    """The hub did not answer. Not one of the exceptions huggingface_hub retries for 23 seconds."""


def list_files(endpoint: str, repo: str, revision: str, token: Token, *, refresh: bool = False) -> RepoTree:
    """All files of ``repo`` at ``revision`` (a commit of 40 hex digits) from the hub API at ``endpoint`` ("" = the public hub).

    ``refresh`` asks again although the list is cached (a mirror that was filled later). ``token`` is never shown or stored, and
    without one the token saved on this computer is not used, because ``endpoint`` may be anybody's server.

    Raises Refused for a branch or tag (naming the commit it points to), a gated repository or a rejected token; UsageError
    for a repository or commit that does not exist; BigironError when the hub is down and nothing is cached.
    """
    base = (endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
    _check_names(base, repo, revision)
    if not _COMMIT.fullmatch(revision):
        raise _not_a_commit(base, repo, revision, opened(token))
    revision = revision.lower()
    path = _cache_path(base, repo, revision)
    if not refresh and (tree := _read_cache(path)):
        return tree
    secret = opened(token)
    try:
        files = _guard(lambda: _fetch(base, repo, revision, secret), base, repo, revision, secret)
    except _HubDownError as error:
        return _fall_back(path, base, repo, revision, str(error))
    if files:
        document = {"endpoint": base, "repo": repo, "revision": revision, "fetched": time.strftime("%Y-%m-%d", time.gmtime())}
        write_atomic(path, json.dumps({**document, "files": [asdict(file) for file in files]}))
    return RepoTree(base, repo, revision, tuple(files))


def opened(token: Token) -> str | None:
    """The token itself; UsageError when it holds what no token has."""
    secret = ((token() if callable(token) else token) or "").strip() or None
    if secret and not (secret.isascii() and secret.isprintable() and " " not in secret):
        raise UsageError("the hub token holds a line break or another character no token has", where="model_token")
    return secret


def quants(tree: RepoTree) -> dict[str, QuantFiles]:
    """The GGUF models in ``tree`` by quant name (``"UD-Q2_K_XL"``), best known spelling; see :mod:`bigiron.hub.quants`.

    Raises Refused when there is none.
    """
    found = group(tree.files)
    if not found:
        raise Refused("the repository holds no GGUF model", where=tree.where,
                      hint="name a GGUF conversion (often a second repository, …-GGUF)")  # fmt: skip
    return found


def unusable(files: QuantFiles) -> str:
    """Why ``files`` cannot be served, as far as the list of files tells; empty when nothing speaks against it."""
    if files.missing:
        return f"{len(files.missing)} of {len(files.missing) + len(files.files)} shards are missing ({files.missing[0]})"
    bare = next((file.path for file in files.files if not file.sha256), "")
    return f"the hub gives no SHA-256 for {bare}, so a copy could not be checked" if bare else ""


def select(tree: RepoTree, quant: str) -> QuantFiles:
    """The files of exactly ``quant`` (upper or lower case; ``Q2`` is never ``UD-Q2_K_XL``).

    Raises Refused when the repository has no GGUF, a shard is missing or a file has no SHA-256 to check against; UsageError,
    listing what exists, when the quant does not.
    """
    found = quants(tree)
    wanted = quant.lower()
    matches = [files for name, files in found.items() if name.lower() == wanted]
    if not matches:
        alike = [name for name, files in found.items() if files.quant.lower() == wanted]
        listing = ", ".join(f"{name} ({files.total_bytes / 1e9:.1f} GB)" for name, files in found.items())
        what = f"{quant!r} names {len(alike)} models" if alike else f"there is no quant {quant!r}"
        raise UsageError(what, where=tree.where, hint=f"choose one of: {', '.join(alike) if alike else listing}")
    chosen = matches[0]
    if why := unusable(chosen):
        raise Refused(
            f"quant {chosen.name} cannot be used: {why}", where=tree.where, hint="choose another quant, or another revision"
        )
    return chosen


def _check_names(base: str, repo: str, revision: str) -> None:
    if urlsplit(base).scheme not in {"http", "https"} or not urlsplit(base).hostname:
        raise UsageError(f"not an http(s) address: {base!r}", where="model_endpoint")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo) or ".." in repo:
        raise UsageError(f"not a repository name: {repo!r}", where="model_repo", hint="it reads owner/name")
    if not revision.strip():
        raise UsageError("no revision given", where=f"model_revision of {repo}", hint="pin a commit (40 hex digits)")


def _api(base: str, secret: str | None) -> Any:
    """An HfApi that neither reports use, logs, nor waits long for a server that is not there."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import HfApi, set_client_factory

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    set_client_factory(_client)
    return HfApi(endpoint=base, token=secret or False)


def _client() -> Any:
    import httpx2
    from huggingface_hub.utils._http import default_client_factory

    client: Any = default_client_factory()
    send: Callable[..., Any] = client.send
    failures = 0

    def send_once(request: Any, **options: Any) -> Any:
        nonlocal failures
        # huggingface_hub asks for no time limit at all when it lists a tree
        request.extensions["timeout"] = httpx2.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S).as_dict()
        try:
            answer = send(request, **options)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ReadTimeout) as error:
            raise _HubDownError(f"no connection ({type(error).__name__})") from None
        failures = failures + 1 if answer.status_code in _SERVER_ERRORS else 0
        if failures >= 3:
            failures = 0
            raise _HubDownError(f"it answers {answer.status_code}")
        return answer

    client.send = send_once
    return client


def _fetch(base: str, repo: str, revision: str, secret: str | None) -> list[RepoFile]:
    entries: Iterable[Any] = _api(base, secret).list_repo_tree(repo, recursive=True, revision=revision)
    files = []
    for entry in entries:
        if not hasattr(entry, "size"):
            continue
        if entry.path.startswith("/") or ".." in entry.path.split("/") or "\\" in entry.path or "\x00" in entry.path:
            raise Refused(f"the hub lists a file outside the repository: {entry.path!r}", where=f"{repo}@{revision[:12]}")
        lfs = entry.lfs
        files.append(RepoFile(entry.path, int(lfs.size if lfs else entry.size), lfs.sha256 if lfs else None))
    return sorted(files, key=lambda file: file.path)


def _guard(call: Callable[[], _Result], base: str, repo: str, revision: str, secret: str | None) -> _Result:
    """Run ``call`` and turn what huggingface_hub raises into one sentence each."""
    where = f"{repo}@{revision[:12]}"
    try:
        return call()
    except (_HubDownError, BigironError):
        raise
    except Exception as error:  # noqa: BLE001 - anything else would reach a person as a traceback that may hold the token
        kind = type(error).__name__
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        detail = str(error).strip().splitlines()[0] if str(error).strip() else kind
    if secret:
        detail = detail.replace(secret, "***")
    if kind == "GatedRepoError":
        what = "the token has no access to this gated repository" if secret else "the repository is gated and there is no token"
        raise Refused(what, where=where, hint=f"accept its terms at {base}/{repo}, then set model_token (vault or HF_TOKEN)")
    if kind == "RepositoryNotFoundError" and status == 401 and not secret:
        raise UsageError(
            "no such repository, or a private one and there is no token",
            where=where,
            hint="check model_repo, or set model_token",
        )
    if kind == "RepositoryNotFoundError":
        raise UsageError(f"no such repository on {base}", where=where, hint="check the spelling of model_repo")
    if kind in {"RevisionNotFoundError", "RemoteEntryNotFoundError"}:
        raise UsageError("the repository has no such revision", where=where, hint="pin a commit that exists")
    if status == 404:
        raise UsageError(f"no such repository or revision on {base}", where=where, hint="check model_repo and model_revision")
    if status == 401:
        raise Refused("the hub rejected the token", where=where, hint="model_token is wrong or was revoked; make a new one")
    if status == 403:
        raise Refused(
            "the hub forbids access (a private repository, or a token without rights)",
            where=where,
            hint=f"accept its terms at {base}/{repo}, or use a token with read rights",
        )
    if kind == "OfflineModeIsEnabled":
        raise _HubDownError("HF_HUB_OFFLINE is set")
    if status in _SERVER_ERRORS:
        raise _HubDownError(f"it answers {status}")
    if kind in {"ConnectError", "NetworkError", "ReadError", "RemoteProtocolError", "TimeoutException", "ReadTimeout"}:
        raise _HubDownError(f"no answer ({kind})")
    raise BigironError(f"the hub's answer could not be used: {detail}", where=where, hint=f"is {base} a hub?") from None


def commit_of(endpoint: str, repo: str, branch: str, token: str | None) -> tuple[str, str]:
    """The commit (40 hex digits) that ``branch`` or a tag of ``repo`` points to now, and a note that says so.

    When the hub is down, what it said last time, and the note says that. Raises as `list_files` does.
    """
    base = (endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
    _check_names(base, repo, branch)
    last = _folder(repo) / f"{quote(branch, safe='')}.{sha256(base.encode()).hexdigest()[:12]}.branch"
    try:
        commit = _ask_commit(base, repo, branch, (token or "").strip() or None)
    except _HubDownError as error:
        try:
            commit, day = last.read_text(encoding="ascii").split()
        except (OSError, ValueError):
            raise BigironError(
                f"the hub at {base} cannot be reached: {error}",
                where=f"{repo}@{branch}",
                hint="pin a commit to work without it",
            ) from None
        return commit, f"{base} is down ({error}): commit {commit} of {repo}, which it named on {day}"
    write_atomic(last, f"{commit} {time.strftime('%Y-%m-%d')}\n")
    return commit, f"{repo} is not pinned: today {branch!r} is commit {commit}"


def _ask_commit(base: str, repo: str, branch: str, secret: str | None) -> str:
    info = _guard(lambda: _api(base, secret).model_info(repo, revision=branch), base, repo, branch, secret)
    if not isinstance(info.sha, str) or not _COMMIT.fullmatch(info.sha):
        raise BigironError("the hub names no commit for this branch", where=f"{repo}@{branch}", hint=f"is {base} a hub?")
    return info.sha


def _not_a_commit(base: str, repo: str, revision: str, secret: str | None) -> BigironError:
    where = f"{repo}@{revision}"
    try:
        sha = _ask_commit(base, repo, revision, secret)
    except _HubDownError as error:
        known = _cached_commits(repo)
        hint = f"pin a commit; cached: {', '.join(known)}" if known else "pin a commit (40 hex digits)"
        return Refused(f"a branch or tag moves, and the hub cannot be asked for its commit: {error}", where=where, hint=hint)
    return Refused(f"a branch or tag moves; today {revision!r} is commit {sha}", where=where, hint=f"set model_revision: {sha}")


def _folder(repo: str) -> Path:
    return cache_dir("hub", "trees", quote(repo, safe=""))


def _cache_path(base: str, repo: str, revision: str) -> Path:
    # by endpoint too: a mirror may hold only some of a commit's files
    return _folder(repo) / f"{revision}.{sha256(base.encode()).hexdigest()[:12]}.json"


def _read_cache(path: Path, reason: str = "") -> RepoTree | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        files = tuple(RepoFile(file["path"], file["size"], file["sha256"]) for file in data["files"])
        note = f"file list of {data['repo']} from the cache, read from {data['endpoint']} on {data['fetched']}{reason}"
        return RepoTree(data["endpoint"], data["repo"], data["revision"], files, (note,))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _fall_back(path: Path, base: str, repo: str, revision: str, reason: str) -> RepoTree:
    others = sorted(path.parent.glob(f"{revision}.*.json"), key=lambda other: other != path)
    for candidate in others:
        if tree := _read_cache(candidate, f"; {base} is down: {reason}"):
            return tree
    raise BigironError(
        f"the hub at {base} cannot be reached: {reason}",
        where=f"{repo}@{revision[:12]}",
        hint="nothing is cached for this commit: try again, or name a mirror in model_endpoint",
    )


def _cached_commits(repo: str) -> list[str]:
    return sorted({path.name.split(".")[0] for path in _folder(repo).glob("*.json")})
