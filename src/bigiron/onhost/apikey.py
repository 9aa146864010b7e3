"""What an API key may be; apart from what handles its file, so that looking at an inventory imports little."""

from __future__ import annotations

from typing import Optional

API_KEY_LENGTH = 16
"""The least that is taken: 64 bits even when every character is a hex digit."""


def check_api_key(value: str) -> Optional[str]:
    """Why llama-server, its key file or an HTTP header cannot hold this key, to stand behind its name; None for a good one, and for "".

    The file has one key a line and takes a line that starts with ``#`` for a comment. The reason never holds the key.
    """
    if not value:
        return None
    if any(not 0x21 <= ord(character) <= 0x7E for character in value):
        return "holds a space, a line break or a character beyond ASCII"
    if value.startswith("#"):
        return "starts with #, which makes it a comment in the key file"
    if len(value) < API_KEY_LENGTH:
        return f"is shorter than {API_KEY_LENGTH} characters and could be guessed"
    return None
