"""Reboots a host and waits until it is back: another boot id, and systemd done with booting. Never the controller."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from bigiron.errors import BigironError, Unreachable
from bigiron.fleet.inventory import Target
from bigiron.fleet.ssh import Session, run_many
from bigiron.onhost.kinds.boot import BOOT_ID
from bigiron.onhost.system import Tree

BY_HAND = "reboot required: do it by hand"
PAUSE_S = 2.0
"""Between two attempts to reach a host that is down."""
BOOTING_S = 120.0
"""How long a host that answers may take to finish booting; a unit that never ends is not our concern."""


def cannot(target: Target) -> str:
    """Why bigiron will not reboot this host, as far as the inventory tells; "" when it may."""
    return "it is the controller itself (its connection is local)" if target.connection.kind == "local" else ""


def reboot(target: Target, timeout_s: float) -> str:
    """Reboot the host and wait at most ``timeout_s`` seconds for it; "", or why it was left alone (it is the controller).

    Raises Unreachable when it does not come back in time, BigironError when it will not go down.
    """
    with Session(target) as session:
        before = _boot_id(session)
        # a container that shares the controller's kernel is told apart by this alone
        if before == Tree().text(BOOT_ID):
            return "it has the same boot id as the controller"
        try:
            asked = session.run(["systemctl", "--no-wall", "reboot"], become=True)
        except Unreachable:
            pass  # it went faster than its answer
        else:
            if asked.status > 0:
                raise BigironError(f"systemctl reboot failed: {asked.stderr.strip()[-300:]}", where=target.name)
    deadline, last = time.monotonic() + timeout_s, "it still runs the boot that was to end"
    while time.monotonic() < deadline:
        time.sleep(PAUSE_S)
        try:
            with Session(target) as session:
                if _boot_id(session) != before:
                    with contextlib.suppress(BigironError):
                        session.run(["systemctl", "is-system-running", "--wait"], timeout_s=BOOTING_S)
                    return ""
        except BigironError as error:
            last = error.what
    raise Unreachable(
        f"was rebooted and is not back after {timeout_s:.0f} s: {last}",
        where=target.name,
        hint="look at its console; base_reboot_timeout_s is how long bigiron waits. The same command carries on when it is back",
    )


def reboot_all(targets: Sequence[Target], timeouts_s: dict[str, float]) -> dict[str, str | BigironError]:
    """`reboot` of all ``targets`` at once: by name, why it was left alone ("" when it was rebooted), or its error."""
    return run_many(targets, lambda target: cannot(target) or reboot(target, timeouts_s[target.name]))


def _boot_id(session: Session) -> str:
    text = (session.read_file(BOOT_ID) or b"").decode(errors="replace").strip()
    if not text:
        raise BigironError(f"{BOOT_ID} cannot be read, so a reboot could not be proved", where=session.target.name)
    return text
