"""The header of a GGUF on an HTTP server that answers ranges. Runs on the controller: needs httpx."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Optional

from .errors import SourceError
from .reader import FIRST_FETCH, Header, read_header

if TYPE_CHECKING:
    import httpx

_TRIES = 4
_LONGEST_WAIT_S = 30.0
_REASONS = {
    401: ("the server wants a valid token", "set HF_TOKEN, or check that it has not expired"),
    403: ("the server refuses this token", "gated repository? accept the licence with the account of the token"),
    404: ("no such file or repository", None),
    410: ("the file is gone", None),
}


class HttpSource:
    """Ranges of one URL as a source. Redirects are followed; an Authorization header does not travel to another host.

    ``requests`` and ``received_bytes`` count what was asked and what came.
    """

    frugal = True

    def __init__(self, url: str, *, headers: Optional[Mapping[str, str]] = None, client: Optional[httpx.Client] = None) -> None:
        """Ask for the first bytes. Raises SourceError when the server has no ranges, no file, or does not answer."""
        import httpx

        self.name = url.partition("?")[0]
        self.requests = 0
        self.received_bytes = 0
        self._httpx = httpx
        self._own = client is None
        self._client = client or httpx.Client(timeout=httpx.Timeout(30.0), follow_redirects=True)
        self._headers = {**(headers or {}), "Accept-Encoding": "identity"}
        self._tag = ""
        self.size = 0
        try:
            self._url = httpx.URL(url)
        except httpx.InvalidURL as error:
            self.close()
            raise self._error(f"not a URL: {error}", 0) from None
        try:
            self._head = self._fetch(0, FIRST_FETCH)
        except BaseException:
            self.close()
            raise

    def read(self, offset: int, count: int) -> bytes:
        """``count`` bytes from ``offset``, fewer at the end of the file."""
        if offset + count <= len(self._head):
            return self._head[offset : offset + count]
        if count <= 0 or offset >= self.size:
            return b""
        return self._fetch(offset, count)

    def close(self) -> None:
        """Close the connection, unless the client was handed in."""
        if self._own:
            self._client.close()

    def __enter__(self) -> HttpSource:  # noqa: PYI034 -- Self is not in the Python of every host
        """The source itself."""
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        """Close the connection."""
        self.close()

    def _error(self, what: str, offset: int, hint: Optional[str] = None) -> SourceError:
        return SourceError(what, file=self.name, field="range", offset=offset, hint=hint)

    def _fetch(self, offset: int, count: int) -> bytes:
        wanted = f"bytes={offset}-{offset + count - 1}"
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            try:
                self.requests += 1
                with self._client.stream(
                    "GET", self._url, headers={**self._headers, "Range": wanted}, follow_redirects=True
                ) as response:
                    if (response.status_code == 429 or response.status_code >= 500) and not last:
                        wait = _retry_after(response.headers.get("Retry-After"), attempt)
                    else:
                        return self._body(response, offset, count)
            except self._httpx.InvalidURL as error:
                raise self._error(f"not a URL: {error}", offset) from None
            except self._httpx.UnsupportedProtocol:
                raise self._error("only http and https can be read", offset) from None
            except self._httpx.HTTPError as error:
                if last:
                    raise self._error(
                        f"the server did not answer: {type(error).__name__} {error}".strip(),
                        offset,
                        "try again, or use a mirror",
                    ) from None
                wait = _retry_after(None, attempt)
            time.sleep(wait)
        raise self._error("the server did not answer", offset)

    def _body(self, response: httpx.Response, offset: int, count: int) -> bytes:
        status = response.status_code
        if status in _REASONS:
            what, hint = _REASONS[status]
            raise self._error(f"{what} (HTTP {status})", offset, hint)
        if status == 200:
            raise self._error(
                "the server ignores ranges and would send the whole file",
                offset,
                "use a server that answers 'Accept-Ranges: bytes', or read a local copy",
            )
        if status == 416:
            raise self._error("the file is empty or shorter than expected (HTTP 416)", offset)
        if status != 206:
            raise self._error(f"the server answered HTTP {status}", offset)
        start, total = _content_range(response.headers.get("Content-Range", ""))
        if start != offset or total is None:
            raise self._error(f"asked for byte {offset}, got Content-Range {response.headers.get('Content-Range')!r}", offset)
        tag = response.headers.get("ETag", "")
        if self.size and (total != self.size or (tag and self._tag and tag != self._tag)):
            raise self._error("the file changed on the server while it was read", offset, "pin a revision")
        # Later ranges go straight to where the redirects led; the token stays behind when that is another host.
        if response.url.host != self._url.host:
            self._headers.pop("Authorization", None)
        self._url = response.url
        want = min(count, total - offset)
        pieces, have = [], 0
        for piece in response.iter_raw():
            pieces.append(piece)
            have += len(piece)
            if have > want:
                raise self._error("the server sends more than the range it was asked for", offset)
        self.received_bytes += have
        if have < want:
            raise self._httpx.RemoteProtocolError(f"{have} of {want} bytes")
        self.size, self._tag = total, tag
        return b"".join(pieces)


def read_url(url: str, *, headers: Optional[Mapping[str, str]] = None, client: Optional[httpx.Client] = None) -> Header:
    """The header of a remote GGUF. Raises GgufError, also for what the server answers; no token in any message."""
    with HttpSource(url, headers=headers, client=client) as source:
        return read_header(source)


def _retry_after(value: Optional[str], attempt: int) -> float:
    try:
        return min(max(float(value or ""), 0.0), _LONGEST_WAIT_S)
    except ValueError:
        return 0.25 * 2.0**attempt


def _content_range(value: str) -> tuple[int, Optional[int]]:
    unit, _, rest = value.partition(" ")
    span, _, total = rest.partition("/")
    start = span.partition("-")[0]
    if unit.strip() != "bytes" or not start.isdecimal() or not total.isdecimal():
        return -1, None
    return int(start), int(total)
