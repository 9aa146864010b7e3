"""Reasons not to start, found before the first byte: a connection that is not root, a taken port, memory or disks too small."""

from __future__ import annotations

from bigiron.errors import Refused
from bigiron.plan import build_options as build
from bigiron.plan.host import TOOLCHAIN_PACKAGES, HostFacts, HostPlan
from bigiron.plan.intent import BUILD_ROOT, USER
from bigiron.plan.places import check_address, check_folder
from bigiron.units import GIB, gib

RESERVE_BYTES = GIB
"""Left free on every filesystem that bigiron fills."""


def refusals(fact: HostFacts, plan: HostPlan) -> list[Refused]:
    """Reasons not to start, found before the first byte: a port that is taken, disks that are too small."""
    intent, found = fact.intent, []
    if fact.observed.get("uid"):
        found.append(
            Refused(
                f"the connection acts as user {fact.observed['uid']}, not as root, and cannot change this host",
                where=fact.name,
                hint="set ansible_become: true (sudo), or connect as root",
            )
        )
    if refusal := check_address(intent.listen, fact.machine):
        found.append(Refused(refusal.what, where=fact.name, hint=refusal.hint))
    if reason := check_folder(intent.model.root, fact.observed, USER):
        found.append(Refused(f"model_root {reason}", where=fact.name, hint=f"on the host: chmod o+rx {intent.model.root}"))
    unit = f"llama-server-{intent.service}.service"
    holder = fact.observed.get("ports", {}).get(str(intent.port))
    if holder and holder.get("unit") != unit:
        by = holder.get("program") or "another program"
        found.append(
            Refused(
                f"port {intent.port} is taken by {by} (pid {holder.get('pid') or '?'}, {holder.get('unit') or 'no unit'})",
                where=fact.name,
                hint=f"stop {by}, or set llama_server_port to a free port",
            )
        )
    try:
        plan.model.require()
    except Refused as refusal:
        found.append(Refused(refusal.what, where=fact.name, hint=refusal.hint))
    found.extend(_disk_refusals(fact, plan))
    return found


def _disk_refusals(fact: HostFacts, plan: HostPlan) -> list[Refused]:
    intent, observed = fact.intent, fact.observed
    state = observed.get("models", {}).get(f"{intent.model.repo}/{intent.model.revision}", {})
    have, partial = state.get("files", {}), state.get("partial", {})
    model_bytes = sum(
        file.size - min(file.size, int(partial.get(file.path, 0)))
        for file in plan.files.files
        if have.get(file.path, {}).get("size") != file.size
    )
    needs: dict[str, list[tuple[str, str, int]]] = {}

    def need(path: str, what: str, size: int) -> None:
        disk = observed.get("disks", {}).get(path)
        if size and disk and "free_bytes" in disk:
            needs.setdefault(str(disk["device"]), []).append((path, what, size))

    need(intent.model.root, "model", model_bytes)
    if plan.build_from == "here" and not observed.get("releases", {}).get(plan.fingerprint, {}).get("ok"):
        need(BUILD_ROOT, "source and build", build.BUILD_DISK_BYTES)
    if set(plan.variables["base_packages"]) & set(TOOLCHAIN_PACKAGES) - set(observed.get("packages", {})):
        need("/usr", "toolchain packages", build.TOOLCHAIN_DISK_BYTES)
    found = []
    for entries in needs.values():
        disk = observed["disks"][entries[0][0]]
        total = sum(size for _, _, size in entries)
        if total + RESERVE_BYTES > disk["free_bytes"]:
            parts = " + ".join(f"{what} {gib(size)}" for _, what, size in entries)
            found.append(
                Refused(
                    f"{disk['mount']} has {gib(disk['free_bytes'])} free, but needs {gib(total)} ({parts}) and a reserve of {gib(RESERVE_BYTES)}",
                    where=fact.name,
                    hint="free space, or put model_root on a larger filesystem; nothing was downloaded",
                )
            )
    return found
