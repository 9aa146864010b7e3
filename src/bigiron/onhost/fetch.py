"""One file over HTTP onto a disk: resumed from what is there, hashed on the way, renamed only when proved.

Standard library only: this file also runs on hosts. ``huggingface_hub`` starts a killed shard from zero
(huggingface_hub#4196), which costs hours at 47 GB a shard; here a kept ``<name>.part`` is continued by HTTP Range.
"""

from __future__ import annotations

import contextlib
import email.utils
import errno
import fcntl
import hashlib
import http.client
import ipaddress
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Callable, Optional

from ..errors import BigironError
from ..units import duration, gib

BLOCK = 1024 * 1024
RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
# progress that earns a new waiting budget: a flaky line must not end a download that lasts days
REFILL_BYTES = 64 * BLOCK
# a second each: a run that was killed lets go of its part only when its connection is gone
PART_ATTEMPTS = 20

Report = Callable[[int], None]


@dataclass(frozen=True)
class Item:
    """One file to fetch. ``size`` in bytes or ``None`` when unknown; ``sha256`` is 64 lower-case hex digits."""

    url: str
    destination: Path
    sha256: str
    size: Optional[int] = None
    token: str = field(default="", repr=False)


@dataclass
class Patience:
    """Seconds that may be spent waiting for a server, over all files of one run."""

    budget_s: float = 600.0
    sleep: Callable[[float], None] = time.sleep
    left_s: float = field(init=False)
    _failures: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.left_s = self.budget_s

    def refill(self) -> None:
        self.left_s = self.budget_s
        self._failures = 0

    def wait(self, why: str, where: str, asked_s: Optional[float]) -> None:
        """Sleep as long as the server asked for (else 1, 2, 4 ... 60 s); raise when the budget does not allow it."""
        wait_s = max(asked_s, 0.5) if asked_s is not None else float(min(2**self._failures, 60))
        self._failures += 1
        if wait_s > self.left_s:
            raise BigironError(
                f"{why}; gave up after waiting {duration(self.budget_s - self.left_s)}",
                where=where,
                hint="run it again later: the bytes already here are kept and continued",
            )
        self.left_s -= wait_s
        self.sleep(wait_s)


class _RetryError(Exception):
    """An attempt ended early; what is on disk is good and the next attempt continues from it."""

    def __init__(self, why: str, after_s: Optional[float] = None) -> None:
        super().__init__(why)
        self.why = why
        self.after_s = after_s


class _SafeRedirect(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but a token never leaves the server it was meant for."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> Optional[urllib.request.Request]:
        if urllib.parse.urlsplit(newurl).scheme not in {"http", "https"}:
            raise BigironError(f"the server redirects to {newurl.split(':', 1)[0]!r}, which is not HTTP", where=req.full_url)
        follow = super().redirect_request(req, fp, code, msg, headers, newurl)
        if follow is not None and _origin(follow.full_url) != _origin(req.full_url):
            follow.remove_header("Authorization")
        return follow


_OPENER = urllib.request.build_opener(_SafeRedirect)


def fetch(item: Item, *, patience: Optional[Patience] = None, report: Optional[Report] = None, timeout_s: float = 60.0) -> int:
    """Bring ``item`` to its destination and return the bytes that came over the network.

    Continues ``<destination>.part``. The destination appears only when size and SHA-256 agree; a wrong file is removed.
    ``report`` gets the bytes of this file that are on disk so far.

    Raises BigironError: wrong hash or size, rejected token, gated or missing file, waiting budget spent, disk full.
    """
    patience = patience or Patience()
    part = item.destination.with_name(item.destination.name + ".part")
    handle = _open_part(part, item, patience.sleep)
    try:
        transfer = _Transfer(item, handle, report or (lambda _done: None), timeout_s)
        transfer.hash_kept()
        _run(transfer, patience)
        got = transfer.digest.hexdigest()
        if got != item.sha256:
            part.unlink()
            raise BigironError(
                f"wrong content: SHA-256 is {got}, expected {item.sha256}; the file was removed",
                where=str(item.destination),
                hint="run it again; if it repeats, the server (or a proxy on the way) does not serve what was pinned",
            )
        os.fchmod(handle, 0o644)
        os.fsync(handle)
        part.replace(item.destination)
        return transfer.received
    finally:
        os.close(handle)


def _open_part(part: Path, item: Item, sleep: Callable[[float], None]) -> int:
    for _attempt in range(PART_ATTEMPTS):
        try:
            handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise BigironError(
                f"cannot write here: {error.strerror}", where=str(part), hint=f"the folder belongs to {owner_of(part.parent)}"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if part.exists() and os.path.samestat(os.fstat(handle), part.stat()):  # nobody gave it its name meanwhile
                return handle
        except OSError:
            sleep(1.0)
        os.close(handle)
    raise BigironError(
        "another run is fetching this file", where=str(item.destination), hint="wait for it, or stop it and run again"
    )


def _run(transfer: _Transfer, patience: Patience) -> None:
    refill_at = transfer.received + REFILL_BYTES
    while not transfer.complete:
        retry = _attempt(transfer)
        if retry is None:
            return
        if transfer.received >= refill_at:
            patience.refill()
            refill_at = transfer.received + REFILL_BYTES
        patience.wait(retry.why, transfer.item.url, retry.after_s)


def _attempt(transfer: _Transfer) -> Optional[_RetryError]:
    try:
        transfer.attempt()
    except _RetryError as retry:
        return retry
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise BigironError(
                f"the disk is full after {gib(transfer.offset)} of this file",
                where=str(transfer.item.destination),
                hint="make room and run it again: finished files and this part are kept",
            ) from error
        raise BigironError(f"cannot write: {error.strerror}", where=str(transfer.item.destination)) from error
    return None


class _Transfer:
    """The state of one file: how much of it is on disk, and the hash of exactly those bytes."""

    def __init__(self, item: Item, handle: int, report: Report, timeout_s: float) -> None:
        self.item = item
        self.handle = handle
        self.report = report
        self.timeout_s = timeout_s
        self.size = item.size
        self.offset = 0
        self.received = 0
        self.digest = hashlib.sha256()
        self._restarted = False

    @property
    def complete(self) -> bool:
        return self.size is not None and self.offset == self.size

    def hash_kept(self) -> None:
        """Take the kept part into the hash; a part longer than the file cannot be its beginning and is dropped."""
        kept = os.fstat(self.handle).st_size
        if self.size is not None and kept > self.size:
            self.restart()
            return
        os.lseek(self.handle, 0, os.SEEK_SET)
        while self.offset < kept:
            block = os.read(self.handle, BLOCK)
            if not block:
                break
            self.digest.update(block)
            self.offset += len(block)
            self.report(self.offset)

    def restart(self) -> None:
        os.ftruncate(self.handle, 0)
        os.lseek(self.handle, 0, os.SEEK_SET)
        self.offset = 0
        self.digest = hashlib.sha256()

    def attempt(self) -> None:
        """One request, from the current offset to the end; raises _RetryError when another could help."""
        request = urllib.request.Request(self.item.url, headers={"Accept-Encoding": "identity", "User-Agent": "bigiron"})  # noqa: S310 (scheme is checked below)
        if request.type not in {"http", "https"}:
            raise BigironError(f"cannot fetch {request.type!r} addresses, only http and https", where=self.item.url)
        if self.offset:
            request.add_header("Range", f"bytes={self.offset}-")
        if self.item.token and _may_carry_token(self.item.url):
            request.add_header("Authorization", f"Bearer {self.item.token}")
        try:
            response = _OPENER.open(request, timeout=self.timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                self._refusal(error)
                return
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            raise _RetryError(f"no answer ({_reason(error)})") from error
        with response:
            self._accept(response)
            self._copy(response)

    def _refusal(self, error: urllib.error.HTTPError) -> None:
        code = error.code
        if code in RETRY_STATUS:
            raise _RetryError(f"the server answers {code} {error.reason}", _retry_after(error.headers.get("Retry-After")))
        if code == 416:
            total = _content_range(error.headers.get("Content-Range"))[1]
            if total is not None and self.size is not None and total != self.size:
                raise BigironError(f"the server's file has {total} bytes, expected {self.size}", where=self.item.url)
            if total == self.offset or self._restarted:
                self.size = self.offset if total == self.offset else self.size
                if self.complete:
                    return
                raise BigironError("the server answers 416 to every range", where=self.item.url)
            self._restarted = True
            self.restart()
            raise _RetryError("the kept part does not fit the server's file", 0.5)
        raise _http_error(code, error, bool(self.item.token), self.item.url)

    def _accept(self, response: Any) -> None:
        if response.status == 206:
            start, total = _content_range(response.headers.get("Content-Range"))
            if start != self.offset:  # a server that answers another range than asked
                self.restart()
                raise _RetryError("the server sent another range than asked for", 0.5)
        else:
            if self.offset:  # 200: the range was ignored, the whole file comes
                self.restart()
            length = response.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
        if total is None:
            return
        if self.size is None:
            self.size = total
        elif total != self.size:
            raise BigironError(
                f"the server's file has {total} bytes, expected {self.size}",
                where=self.item.url,
                hint="the pinned revision and the server disagree; nothing was kept from this answer",
            )

    def _copy(self, response: Any) -> None:
        while True:
            try:
                block = response.read(BLOCK)
            except http.client.IncompleteRead as error:
                self._write(error.partial)
                break
            except (http.client.HTTPException, OSError) as error:
                raise _RetryError(f"the connection broke ({_reason(error)})") from error
            if not block:
                break
            self._write(block)
        if self.size is None:
            self.size = self.offset
        if self.offset < self.size:
            raise _RetryError(f"the body ended after {self.offset} of {self.size} bytes")

    def _write(self, block: bytes) -> None:
        if self.size is not None and self.offset + len(block) > self.size:
            os.ftruncate(self.handle, 0)
            raise BigironError(f"the server sent more than the expected {self.size} bytes", where=self.item.url)
        view = memoryview(block)
        while view:
            written = os.write(self.handle, view)
            self.digest.update(view[:written])
            self.offset += written
            self.received += written
            view = view[written:]
        self.report(self.offset)


def _http_error(code: int, error: urllib.error.HTTPError, had_token: bool, url: str) -> BigironError:
    """Say which of the hub's refusals this is; no retries, and the token appears nowhere."""
    reason = (error.headers.get("X-Error-Code") or "").strip()
    if reason == "GatedRepo" or (code == 403 and reason != "RepoNotFound"):
        return BigironError(
            f"access refused ({code}): the repository is gated or this token may not read it",
            where=url,
            hint="accept the licence on the model's page with the account the token belongs to, and set model_token",
        )
    if code == 401 and had_token and reason != "RepoNotFound":
        return BigironError(
            "token rejected (401): it is expired or wrong",
            where=url,
            hint="set model_token to a valid token, or to nothing for a public repository",
        )
    if code in {401, 404, 410}:
        private = ", or it is private and needs model_token" if not had_token else ""
        return BigironError(f"no such repository, revision or file ({code}){private}", where=url)
    return BigironError(f"the server answers {code} {error.reason}", where=url)


def _origin(url: str) -> tuple[str, str, Optional[int]]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _may_carry_token(url: str) -> bool:
    """Only over TLS, or to this very machine: a plain-HTTP mirror needs no token and the wire is public."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def _content_range(header: Optional[str]) -> tuple[Optional[int], Optional[int]]:
    """``(start, total)`` of ``bytes 5-9/10`` or ``bytes */10`` (RFC 9110, 14.4)."""
    match = re.match(r"\s*bytes\s+(?:(\d+)-\d+|\*)/(\d+|\*)\s*$", header or "")
    if not match:
        return None, None
    start, total = match.groups()
    return (int(start) if start else None), (int(total) if total != "*" else None)


def _retry_after(header: Optional[str]) -> Optional[float]:
    """Seconds from a Retry-After header: a number or a date (RFC 9110, 10.2.3)."""
    if not header:
        return None
    if header.strip().isdigit():
        return float(header)
    with contextlib.suppress(TypeError, ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    return None


def _reason(error: BaseException) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException) else error
    return str(inner) or type(inner).__name__


def owner_of(path: Path) -> str:
    """Who a person must ask: ``"uid 0, mode 0755"`` of the nearest folder that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    status = path.stat()
    return f"uid {status.st_uid}, mode {status.st_mode & 0o7777:04o}"
