"""The lab's and the mirror's state for the terminal."""

from __future__ import annotations

from bigiron.lab.lab import LabStatus
from bigiron.lab.mirror import MirrorStatus
from bigiron.report import console


def show(status: LabStatus, *, as_json: bool) -> int:
    """Hosts, network and mirror."""
    if as_json:
        console.print_json(status.to_json())
        return 0
    if not status.hosts and not status.bridge:
        print("no lab is up here; ./inv lab.up makes one")
        return 0
    booted = {True: "yes", False: "no", None: "-"}
    rows = [
        (host.name, host.release or "-", host.state, host.address or "-", host.pid or "-", booted[host.boot_ok])
        for host in status.hosts
    ]
    console.table(("host", "Debian", "state", "address", "pid", "booted"), rows)
    print(
        f"bridge {status.bridge or 'absent'}, network {status.subnet or '-'}, mirror {status.mirror_state} {status.mirror_url or ''}".rstrip()
    )
    return 0


def show_mirror(status: MirrorStatus, *, as_json: bool) -> int:
    """What the mirror serves."""
    if as_json:
        console.print_json(status.to_json())
        return 0
    print(f"mirror {status.state} {status.url or ''}".rstrip())
    for repo, commit in status.repos.items():
        print(f"  {repo} at {commit}")
    return 0
