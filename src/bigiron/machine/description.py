"""A machine, described: frozen dataclasses with a strict way in from JSON and a plain way out.

The JSON shape is the "Machine" of docs/architecture.md; ``machine/probe`` writes it on a host, a person in a machine file.
Sizes are bytes, speeds MT/s (DIMM) and Mbit/s (NIC), temperatures degrees Celsius.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from bigiron.errors import BigironError


@dataclass(frozen=True)
class OperatingSystem:
    """From os-release; a field the file lacks is empty."""

    id: str
    version_id: str
    pretty: str
    codename: str
    id_like: str = ""

    @property
    def debian_like(self) -> bool:
        """Debian, Ubuntu and what calls itself like them: apt and its package names."""
        return bool({"debian", "ubuntu"} & {self.id, *self.id_like.split()})


@dataclass(frozen=True)
class NumaNode:
    """``cpus`` may be empty (memory only, CXL) and ``memory_bytes`` 0 (cores without memory of their own)."""

    id: int
    cpus: tuple[int, ...]
    memory_bytes: int


@dataclass(frozen=True)
class Cpu:
    """``threads`` and ``cores`` (physical) count what a process on the host may use; ``sockets`` what is plugged in."""

    model: str
    vendor: str
    sockets: int
    cores: int
    threads: int
    flags: tuple[str, ...]
    numa_nodes: tuple[NumaNode, ...]


@dataclass(frozen=True)
class Dimm:
    """One populated memory slot. ``speed_mts`` is the speed it runs at, 0 when the firmware does not say."""

    size_bytes: int
    speed_mts: int
    type: str
    locator: str


@dataclass(frozen=True)
class Memory:
    """``cgroup_limit_bytes`` is the limit that binds a service, None when there is none below ``total_bytes``."""

    total_bytes: int
    available_bytes: int
    cgroup_limit_bytes: int | None
    dimms: tuple[Dimm, ...]

    @property
    def usable_bytes(self) -> int:
        """What services may take together: all memory, or the cgroup's limit."""
        return self.total_bytes if self.cgroup_limit_bytes is None else min(self.total_bytes, self.cgroup_limit_bytes)


@dataclass(frozen=True)
class Gpu:
    """A display controller or accelerator on the PCI bus, driver or not. Ids and class are hex without 0x: "10de", "030000"."""

    pci: str
    vendor_id: str
    device_id: str
    vendor: str
    driver: str | None
    memory_bytes: int | None
    pci_class: str = dataclasses.field(metadata={"json": "class"})
    name: str | None = None


@dataclass(frozen=True)
class Nvme:
    """One NVMe namespace, named as its block device; a controller without namespaces has its own name and size 0."""

    name: str
    serial: str
    model: str
    size_bytes: int
    temperature_c: float | None


@dataclass(frozen=True)
class Nic:
    """A network interface with hardware or an address; ``speed_mbps`` None while the link is down or does not say."""

    name: str
    mac: str
    speed_mbps: int | None
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Machine:
    """Everything the planner may know about the hardware and the system on it.

    ``unreadable`` maps a path to why it could not be read: what it would have told is unknown, not absent.
    """

    hostname: str
    os: OperatingSystem
    kernel: str
    arch: str
    virtualization: str
    init: str
    python: str
    libc: str
    cpu: Cpu
    memory: Memory
    gpus: tuple[Gpu, ...]
    nvme: tuple[Nvme, ...]
    nics: tuple[Nic, ...]
    unreadable: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_json(cls, document: object) -> Self:
        """The machine in ``document``. Unknown keys are ignored; for a missing or mistyped one BigironError names it."""
        return typing.cast("Self", _decode(cls, document, "machine"))

    def to_json(self) -> dict[str, Any]:
        """The JSON shape that `from_json` reads."""
        return typing.cast("dict[str, Any]", _encode(self))


@cache
def _fields(kind: type) -> tuple[tuple[str, str, Any, bool], ...]:
    """(attribute, JSON key, type, required) of a dataclass."""
    hints = typing.get_type_hints(kind)
    return tuple(
        (
            each.name,
            each.metadata.get("json", each.name),
            hints[each.name],
            each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING,
        )
        for each in dataclasses.fields(kind)
    )


def _mismatch(where: str, wanted: str, value: object) -> BigironError:
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    return BigironError(
        f"expected {wanted}, found {shown}", where=where, hint="docs/architecture.md, section Machine, has the shape"
    )


def _decode(kind: Any, value: object, where: str) -> object:
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise _mismatch(where, "an object", value)
        found = {}
        for attribute, key, inner, required in _fields(typing.cast("type", kind)):
            if key in value:
                found[attribute] = _decode(inner, value[key], f"{where}.{key}")
            elif required:
                raise BigironError(
                    f'"{key}" is missing',
                    where=where,
                    hint="docs/architecture.md, section Machine, lists the keys",
                )
        return typing.cast("type", kind)(**found)
    origin, inner_types = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _decode(inner_types[0], value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _mismatch(where, "a list", value)
        return tuple(_decode(inner_types[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, Mapping) or not all(isinstance(item, str) for pair in value.items() for item in pair):
            raise _mismatch(where, "an object of texts", value)
        return dict(value)
    return _scalar(kind, value, where)


def _scalar(kind: Any, value: object, where: str) -> object:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _mismatch(where, {str: "a text", int: "a whole number", float: "a number"}[kind], value)
    if kind is int and typing.cast("int", value) < 0:
        raise _mismatch(where, "a whole number of at least 0", value)
    return value


def _encode(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key: _encode(getattr(value, attribute)) for attribute, key, _, _ in _fields(type(value))}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value
