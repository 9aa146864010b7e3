"""Becoming root: the command line, and what sudo's refusals mean in plain words.

Messages are those of sudo 1.8 to 1.9 under ``LC_ALL=C``.
"""

from __future__ import annotations

import re
import shlex

from bigiron.errors import Unreachable


def wrap(script: str, *, exe: str, user: str, prompt: str | None) -> str:
    """A sh script that runs ``script`` as ``user``. ``prompt`` None forbids asking (``-n``); else sudo asks with that text."""
    ask = f"-S -p {shlex.quote(prompt)}" if prompt is not None else "-n"
    return f"LC_ALL=C exec {shlex.quote(exe)} -H {ask} -u {shlex.quote(user)} -- /bin/sh -c {shlex.quote(script)}"


def wrong_password(where: str, user: str, become_user: str) -> Unreachable:
    """Sudo asked a second time: the one password we have is wrong, and trying again could lock the account."""
    return Unreachable(
        f"wrong sudo password for {user} (tried once)",
        where=where,
        hint=f"correct ansible_become_password; nothing was run as {become_user}",
    )


def explain(stderr: str, where: str, user: str, become_user: str, allowed: str | None = None) -> Unreachable | None:
    """The sentence for what sudo said; None when this is not sudo speaking.

    ``allowed`` is the output of ``sudo -n -l`` where it could be had: it tells a rule for single commands from no rule at all.
    """
    text = stderr.replace("\r", "")
    for pattern, what, hint in _SAYINGS:
        found = re.search(pattern, text, re.MULTILINE)
        if found:
            return Unreachable(
                what.format(user=user, become=become_user), where=where, hint=hint.format(user=user, become=become_user)
            )
    if re.search(
        r"^sudo: (a|interactive) .*(password|authentication) is required|^sudo: a password is required", text, re.MULTILINE
    ):
        rules = _commands(allowed or "")
        if rules:
            return Unreachable(
                f"sudo lets {user} run only {', '.join(rules)} without a password, not everything",
                where=where,
                hint=f"give ansible_become_password, or a sudoers rule: {user} ALL=(ALL) NOPASSWD: ALL",
            )
        return Unreachable(
            f"sudo asks {user} for a password and none is set",
            where=where,
            hint="set ansible_become_password (with ansible-vault), or connect as root",
        )
    return None


# (pattern, sentence, hint); more special sayings come first
_SAYINGS: tuple[tuple[str, str, str], ...] = (
    (
        r"must have a tty to run sudo",
        "sudo on this host wants a terminal (requiretty), and bigiron works without one",
        "add to sudoers on the host: Defaults:{user} !requiretty",
    ),
    (
        r"is not in the sudoers file",
        "{user} is not in the sudoers file",
        "add on the host, as root: {user} ALL=(ALL) ALL; or connect as root",
    ),
    (
        r"^Sorry, user \S+ is not allowed to execute",
        "sudo lets {user} run some commands, but not everything as {become}",
        "bigiron needs a rule like: {user} ALL=(ALL) ALL",
    ),
    (
        r"^Sorry, user \S+ may not run sudo|is not allowed to run sudo",
        "{user} may not run sudo on this host",
        "add on the host, as root: {user} ALL=(ALL) ALL; or connect as root",
    ),
    (r"^sudo: unknown user:? ", "sudo does not know the user {become}", "check ansible_become_user"),
    (
        r"account validation failure|PAM account management error|password has expired",
        "sudo refuses {user}: the account or its password has expired",
        "log in once as {user} and renew the password",
    ),
    (
        r"must be owned by uid 0 and have the setuid bit set|effective uid is not 0",
        "sudo on this host is not installed setuid root (or the file system is mounted nosuid)",
        "reinstall sudo, or connect as root",
    ),
    (
        r"(parse|syntax) error in |no valid sudoers sources found",
        "the sudoers file on this host is broken",
        "run visudo -c on the host, as root",
    ),
    (
        r"sudo(: |\S* )(command )?not found|exec: \S*sudo|sudo: No such file",
        "sudo is not installed on this host, and {user} is not root",
        "install sudo on the host, or connect as root (ansible_user: root)",
    ),
    (
        r"^Sorry, try again|incorrect password attempt",
        "wrong sudo password for {user} (tried once)",
        "correct ansible_become_password",
    ),
)


def _commands(listing: str) -> list[str]:
    """The NOPASSWD commands of a ``sudo -l`` listing, ``ALL`` left out."""
    rules = re.findall(r"^\s+\([^)]*\)\s+(?:\w+:\s*)*NOPASSWD:\s*(.+)$", listing, re.MULTILINE)
    return [command.strip() for rule in rules for command in rule.split(",") if command.strip() != "ALL"]
