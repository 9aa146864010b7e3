"""What machines are, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bigiron.errors import EXIT_OK, EXIT_UNREACHABLE, BigironError
from bigiron.machine.description import Machine
from bigiron.report import console
from bigiron.units import gib

if TYPE_CHECKING:
    from bigiron.fleet.inventory import Target
    from bigiron.fleet.survey import Look


def show(seen: Mapping[str, Look | BigironError]) -> None:
    """One table per machine; a machine that could not be looked at gets its error."""
    for name, one in seen.items():
        if isinstance(one, BigironError):
            console.error(one)
        else:
            console.table(("part", "what"), rows(one.machine), title=name)


def exit_code(seen: Mapping[str, Look | BigironError]) -> int:
    """The gravest error's exit code: unreachable first."""
    codes = [one.exit_code for one in seen.values() if isinstance(one, BigironError)]
    if EXIT_UNREACHABLE in codes:
        return EXIT_UNREACHABLE
    return max(codes, default=EXIT_OK)


def reached(host: Target) -> str:
    """How a host is reached, before ssh_config has its say: ``"ssh admin@192.0.2.11 -J jump.example.net"``, or why it is not."""
    if host.down:
        return f"{host.down.what}: {host.down.hint}"
    connection = host.connection
    if connection.kind == "local":
        return "local"
    user = f"{connection.user}@" if connection.user else ""
    port = f":{connection.port}" if connection.port else ""
    jumps = [word for flag, word in pairwise(connection.ssh_args) if flag == "-J"]
    return f"ssh {user}{connection.host}{port}" + "".join(f" -J {jump}" for jump in jumps)


def show_hosts(found: Sequence[Target], *, as_json: bool, explain: bool) -> int:
    """The hosts and how each is reached; with ``explain`` every setting of the connection and who sets it."""
    from bigiron.fleet.environment import effective

    if as_json:
        rows: list[dict[str, Any]] = [{"host": one.name, "groups": list(one.groups), "reached": reached(one)} for one in found]
        for row, one in zip(rows, found, strict=True):
            if explain:
                row["settings"] = {name: {"value": value, "from": who} for name, (value, who) in effective(one.vars).items()}
        console.print_json(rows)
    elif explain:
        for one in found:
            settings = [(name, value, who) for name, (value, who) in effective(one.vars).items()]
            console.table(("setting", "value", "set by"), settings, title=f"{one.name}: {reached(one)}")
        console.say("What is not listed is left to ssh_config (ssh -G HOST shows it) or is Ansible's default.")
    else:
        console.table(("host", "groups", "reached"), [(one.name, ", ".join(one.groups), reached(one)) for one in found])
    return EXIT_OK


def summary(machine: Machine) -> str:
    """One line: ``"AMD EPYC 9354P, 32 cores, 377 GiB, Debian GNU/Linux 12 (bookworm)"``."""
    gpus = [gpu.name or gpu.vendor for gpu in machine.gpus]
    parts = [machine.cpu.model, f"{machine.cpu.cores} cores", gib(machine.memory.total_bytes), *gpus, machine.os.pretty]
    return ", ".join(part for part in parts if part)


def rows(machine: Machine) -> Iterator[tuple[str, str]]:
    """(part, description) of everything worth a line; parts a machine lacks are left out."""
    cpu, memory = machine.cpu, machine.memory
    yield "system", f"{machine.os.pretty}, kernel {machine.kernel}, {machine.arch}, {machine.libc}, init {machine.init}"
    if machine.virtualization not in ("", "none"):
        yield "virtual", machine.virtualization
    nodes = len(cpu.numa_nodes)
    yield (
        "CPU",
        f"{cpu.model}: {cpu.sockets} sockets, {cpu.cores} cores, {cpu.threads} threads, {nodes} NUMA {'node' if nodes == 1 else 'nodes'}",
    )
    limit = f", limited to {gib(memory.cgroup_limit_bytes)} by its cgroup" if memory.cgroup_limit_bytes else ""
    yield "memory", f"{gib(memory.total_bytes)}, {gib(memory.available_bytes)} available{limit}"
    if memory.dimms:
        kinds = sorted({f"{gib(d.size_bytes)} {d.type} at {d.speed_mts or '?'} MT/s" for d in memory.dimms})
        yield "DIMMs", f"{len(memory.dimms)}: {', '.join(kinds)}"
    for gpu in machine.gpus:
        size = gib(gpu.memory_bytes) if gpu.memory_bytes else "memory unknown"
        yield "GPU", f"{gpu.pci} {gpu.vendor} {gpu.vendor_id}:{gpu.device_id}, {size}, {gpu.driver or 'no driver'}"
    for disk in machine.nvme:
        heat = f", {disk.temperature_c:.0f} °C" if disk.temperature_c is not None else ""
        yield "NVMe", f"{disk.model} serial {disk.serial}, {gib(disk.size_bytes)}{heat}"
    for nic in machine.nics:
        yield "NIC", f"{nic.name} {nic.mac}, {nic.speed_mbps or '?'} Mb/s, {', '.join(nic.addresses)}"
