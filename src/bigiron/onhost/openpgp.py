"""Just enough OpenPGP (RFC 4880, RFC 9580) to know a repository's key by its fingerprint where no gpg is installed.

Standard library only: this file also runs on hosts.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Iterator, List, Tuple

PUBLIC_KEY = 6
BLOCK = re.compile(r"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(.*?)-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL)


def fingerprints(data: bytes) -> List[str]:
    """Upper-case hex fingerprints of the primary keys in ``data`` (armored or not), in order. Raises ValueError when it is no key file."""
    found = [_fingerprint(body) for tag, body in _packets(dearmored(data)) if tag == PUBLIC_KEY]
    if not found:
        raise ValueError("holds no OpenPGP public key")
    return found


def armored(data: bytes) -> str:
    """``data`` as text, the form that apt reads from a file that ends in .asc."""
    if data.lstrip().startswith(b"-----BEGIN"):
        return data.decode("ascii").strip() + "\n"
    text = base64.b64encode(data).decode("ascii")
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{lines}\n-----END PGP PUBLIC KEY BLOCK-----\n"


def dearmored(data: bytes) -> bytes:
    """The packets of ``data``; all blocks of an armored file, one behind the other."""
    if not data.lstrip().startswith(b"-----BEGIN"):
        return data
    found = b""
    for block in BLOCK.findall(data.decode("ascii", "replace")):
        # headers end with an empty line; a line that begins with "=" is the checksum, which nobody needs any more
        body = re.split(r"\r?\n[ \t]*\r?\n", "\n" + block, maxsplit=1)[-1]
        lines = [line.strip() for line in body.splitlines() if not line.startswith("=")]
        try:
            found += base64.b64decode("".join(lines), validate=True)
        except binascii.Error as error:
            raise ValueError(f"is damaged: {error}") from None
    return found


def _packets(data: bytes) -> Iterator[Tuple[int, bytes]]:
    at = 0
    while at < len(data):
        head = data[at]
        if not head & 0x80:
            raise ValueError("is no OpenPGP data")
        at += 1
        if head & 0x40:
            tag, (length, used) = head & 0x3F, _new_length(data[at : at + 5])
        else:
            tag, used = (head >> 2) & 0x0F, (1, 2, 4, 0)[head & 3]
            length = int.from_bytes(data[at : at + used], "big") if used else len(data) - at
        body = data[at + used : at + used + length]
        if len(body) != length:
            raise ValueError("ends in the middle of a packet")
        yield tag, body
        at += used + length


def _new_length(data: bytes) -> Tuple[int, int]:
    """A new-format length and how many bytes it takes."""
    if not data:
        raise ValueError("ends in the middle of a packet")
    if data[0] < 192:
        return data[0], 1
    if data[0] < 224 and len(data) > 1:
        return ((data[0] - 192) << 8) + data[1] + 192, 2
    if data[0] == 255 and len(data) > 4:
        return int.from_bytes(data[1:5], "big"), 5
    raise ValueError("has a packet of unknown length")


def _fingerprint(body: bytes) -> str:
    version = body[:1]
    if version == b"\x04":
        # SHA-1 is what names a version 4 key; forging another key with the same name needs a second preimage
        return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()  # noqa: S324
    if version == b"\x06":
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise ValueError(f"holds a key of version {version.hex() or 'nothing'}, which is too old")
