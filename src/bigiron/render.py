"""Renders every file that lands on a host, for the diff on the controller and for the roles (filter ``bigiron.host.render``).

So the bytes that ``plan`` shows are the bytes that ``provision`` writes. Imports are relative: in the collection this package is a module_util.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from .errors import UsageError
from .paths import PROJECT

if TYPE_CHECKING:
    import jinja2

_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")


def systemd_word(text: str) -> str:
    r"""One argument of ``ExecStart=`` such that the program gets exactly ``text`` (systemd.service(5), "Command lines").

    Backslash, quote, ``%`` (specifiers) and ``$`` (variables) are escaped; a lone ``;`` is quoted so that it is no separator.
    Raises UsageError for NUL, which no argument can hold.
    """
    if "\0" in text:
        raise UsageError("an argument holds a NUL byte", where=repr(text)[:80], hint="remove it from the inventory")
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    for plain, name in (
        ("\n", "\\n"),
        ("\t", "\\t"),
        ("\r", "\\r"),
        ("\x0b", "\\v"),
        ("\x0c", "\\f"),
        ("\b", "\\b"),
        ("\a", "\\a"),
    ):
        escaped = escaped.replace(plain, name)
    escaped = re.sub(r"[\x01-\x1f\x7f]", lambda match: f"\\x{ord(match.group()):02x}", escaped)
    return f'"{escaped}"'


def systemd_command(argv: Sequence[str]) -> str:
    """``argv`` as the value of ``ExecStart=``; see `systemd_word`. The program must be an absolute path."""
    if not argv or not argv[0].startswith("/"):
        raise UsageError("a service needs an absolute program path", where=" ".join(argv[:1]) or "empty argv")
    return " ".join(systemd_word(word) for word in argv)


def systemd_path(text: str) -> str:
    """A path in a unit setting that takes specifiers but no quoting (``RequiresMountsFor=``, ``LoadCredential=``)."""
    return text.replace("\\", "\\\\").replace("%", "%%").replace(" ", "\\x20")


def systemd_text(text: str) -> str:
    """Free text in a unit (``Description=``): one line, no specifiers."""
    return " ".join(text.replace("%", "%%").split())


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(  # noqa: S701 - unit files, not HTML
        loader=jinja2.FileSystemLoader([*sorted(PROJECT.glob("roles/*/templates")), PROJECT / "templates"]),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        systemd_word=systemd_word, systemd_command=systemd_command, systemd_path=systemd_path, systemd_text=systemd_text
    )
    return environment


def render(name: str, variables: Mapping[str, Any]) -> str:
    """The text of the template ``<name>.j2``, a role's or (in ``templates/``) one that no role owns.

    Raises UsageError naming a variable that is missing.
    """
    import jinja2  # only here: it costs more than the rest of a command's start, and `bigiron.fleet.survey` hides that behind the network

    try:
        return _environment().get_template(f"{name}.j2").render(**variables)
    except jinja2.UndefinedError as error:
        raise UsageError(f"the template lacks a variable: {error.message}", where=f"{name}.j2") from error
