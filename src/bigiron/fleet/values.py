"""What may be kept of an inventory's values: not secrets in clear, not what changes by the moment, not what failed.

Works on the JSON of ``ansible-inventory --list``, where vault text is ``{"__ansible_vault": ...}`` and ``!unsafe`` text
``{"__ansible_unsafe": ...}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_SECRET_NAME = re.compile(r"(pass(word|wd|phrase)?|secret|token|api_?key|credential)s?$", re.IGNORECASE)
_PASSWORD_NAME = re.compile(r"pass(word|wd|phrase)?$", re.IGNORECASE)
_MOVING = re.compile(r"\b(lookup|query|q|now)\s*\(|\bansible_date_time\b|\|\s*(random|password_hash|shuffle)\b")
_WORD = re.compile(r"[A-Za-z_]\w*")
_SHORTEST = 4  # characters; a shorter secret would be "found" in everything


def sort(
    values: Mapping[str, Any], answer: Mapping[str, Mapping[str, Any]], moving: set[str], clear: set[str]
) -> dict[str, dict[str, Any]]:
    """One host's variables as {"values": may be kept, "pending": name -> why not, "sealed": vault text that may be kept}.

    ``answer`` holds its templates filled in ("values") and those that could not be ("problems"); ``moving`` and ``clear`` are
    from :func:`changing` and :func:`clear_secrets` over all hosts.
    """
    good: dict[str, Any] = {}
    pending: dict[str, str] = {}
    sealed: dict[str, Any] = {}
    for name, value in values.items():
        if name in moving:
            pending[name] = "changing"
        elif name in answer["problems"]:
            why = str(answer["problems"][name])
            pending[name] = "unresolved" if _mentions(why, clear) else why
        elif ciphers(value):
            pending[name] = "vault"
            if not secret(name, value) and not is_template(value):
                sealed[name] = value
        else:
            resolved = unwrap(answer["values"].get(name, value))
            if secret(name, value) or any(_mentions(text, clear) for text in texts(resolved)):
                pending[name] = "secret"
            else:
                good[name] = resolved
    return {"values": good, "pending": pending, "sealed": sealed}


def changing(hostvars: Iterable[Mapping[str, Any]]) -> set[str]:
    """Names whose value may differ from one moment to the next, or that are made from one that does, on any host."""
    written: dict[str, set[str]] = {}
    for values in hostvars:
        for name, value in values.items():
            if is_template(value):
                written.setdefault(name, set()).update(texts(value))
    words = {name: {word for text in found for word in _WORD.findall(text)} for name, found in written.items()}
    moving = {name for name, found in written.items() if any(_MOVING.search(text) for text in found)}
    while more := {name for name, used in words.items() if name not in moving and moving & used}:
        moving |= more
    return moving


def clear_secrets(hostvars: Iterable[Mapping[str, Any]]) -> set[str]:
    """The texts, on any host, that stand in clear under a secret's name."""
    found = {text for values in hostvars for name, value in values.items() if secret(name, value) for text in texts(value)}
    return {text for text in found if len(text) >= _SHORTEST and not is_template(text)}


def _mentions(text: str, clear: set[str]) -> bool:
    return any(one in text for one in clear)


def texts(value: Any) -> list[str]:
    """Every text in a value, vault text left out."""
    if isinstance(value, dict):
        return [] if set(value) == {"__ansible_vault"} else [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


def is_template(value: Any) -> bool:
    """True when Ansible would fill something in."""
    if isinstance(value, dict):
        return "__ansible_unsafe" not in value and any(is_template(item) for item in value.values())
    if isinstance(value, list):
        return any(is_template(item) for item in value)
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def ciphers(value: Any) -> list[str]:
    """The vault texts in a value."""
    if isinstance(value, dict):
        if set(value) == {"__ansible_vault"}:
            return [str(value["__ansible_vault"])]
        return [cipher for item in value.values() for cipher in ciphers(item)]
    return [cipher for item in value for cipher in ciphers(item)] if isinstance(value, list) else []


def secret(name: str, value: Any) -> bool:
    """Clear text under a secret's name, at any depth. A number is one only under a password's name (``max_tokens`` is not)."""
    if isinstance(value, dict):
        return set(value) != {"__ansible_vault"} and any(
            secret(name if key == "__ansible_unsafe" else str(key), item) for key, item in value.items()
        )
    if isinstance(value, list):
        return any(secret(name, item) for item in value)
    if isinstance(value, bool) or value in {None, ""}:
        return False
    return bool((_SECRET_NAME if isinstance(value, str) else _PASSWORD_NAME).search(name))


def unwrap(value: Any) -> Any:
    """``!unsafe`` text as plain text."""
    if isinstance(value, dict):
        return (
            value["__ansible_unsafe"]
            if set(value) == {"__ansible_unsafe"}
            else {key: unwrap(item) for key, item in value.items()}
        )
    return [unwrap(item) for item in value] if isinstance(value, list) else value
