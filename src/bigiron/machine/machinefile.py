"""Machine files: a machine described by hand, also one that is not bought yet. An error names the line."""

from __future__ import annotations

import difflib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from bigiron.errors import UsageError
from bigiron.machine import tables
from bigiron.machine.hardware import Accelerator, Hardware
from bigiron.units import GB, GIB

_DEVICES = {"nvidia": "CUDA", "amd": "ROCm", "intel": "Vulkan"}
SCHEMA = Path(__file__).parent / "schemas" / "machine.schema.json"


@cache
def schema() -> dict[str, Any]:
    """The published JSON Schema of machine files."""
    document: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return document


def read(path: Path) -> Hardware:
    """The machine in the YAML file ``path``. Raises UsageError that names the line for whatever is wrong in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError("not a text file", where=str(path)) from None
    except OSError as error:
        raise UsageError(f"cannot read the machine file: {error.strerror}", where=str(path), hint=_near_files(path)) from None
    return parse(text, str(path))


def parse(text: str, where: str) -> Hardware:
    """The machine in YAML ``text``; ``where`` names it in errors."""
    document, lines = load_with_lines(text, where)
    check(document, lines, schema(), where)
    return _hardware(document, lines, where)


def load_with_lines(text: str, where: str) -> tuple[Any, dict[tuple[str | int, ...], int]]:
    """YAML ``text`` as data, and the line (from 1) of every key and item by its path. A key given twice is an error."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = str(getattr(error, "problem", None) or error).splitlines()[0]
        raise UsageError(f"not YAML: {problem}", where=f"{where}:{mark.line + 1}" if mark else where) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not YAML: {error}", where=where) from None
    lines: dict[tuple[str | int, ...], int] = {(): 1}
    if node is not None:
        _walk(node, (), lines, where)
    return data, lines


def _walk(node: yaml.Node, path: tuple[str | int, ...], lines: dict[tuple[str | int, ...], int], where: str) -> None:
    if len(path) > 16:
        raise UsageError("nested too deeply", where=f"{where}:{node.start_mark.line + 1}")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, str(key.value))
            if inner in lines:
                raise UsageError(f'"{key.value}" is given twice', where=f"{where}:{key.start_mark.line + 1}")
            lines[inner] = key.start_mark.line + 1
            _walk(value, inner, lines, where)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            _walk(item, (*path, index), lines, where)


def check(document: Any, lines: dict[tuple[str | int, ...], int], rules: dict[str, Any], where: str) -> None:
    """Raise UsageError for the first (topmost) breach of the JSON Schema ``rules``, with its line."""
    problems: list[tuple[bool, int, str, str | None]] = []  # a misspelt key also makes another one missing: it goes first
    for error in jsonschema.Draft202012Validator(rules).iter_errors(document):
        path = tuple(error.absolute_path)
        name = ".".join(str(part) for part in path) or "the file"
        if error.validator == "additionalProperties" and isinstance(error.instance, dict):
            allowed = error.schema.get("properties", {})
            for key in error.instance:
                if key not in allowed:
                    near = difflib.get_close_matches(str(key), allowed, n=1)
                    help_text = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(sorted(allowed))}"
                    problems.append((False, lines.get((*path, str(key)), 1), f'unknown key "{key}" in {name}', help_text))
            continue
        problems.append((True, lines.get(path, lines.get(path[:-1], 1)), f"{name}: {_plain(error)}", None))
    if problems:
        _, line, what, hint = min(problems, key=lambda problem: problem[:2])
        raise UsageError(what, where=f"{where}:{line}", hint=hint)


def _plain(error: jsonschema.ValidationError) -> str:
    value: Any = error.instance
    limit: Any = error.validator_value
    shown = "nothing" if value is None else repr(value) if len(repr(value)) < 60 else "a value"
    if error.validator == "exclusiveMinimum":
        return f"{shown} is not more than {limit}"
    if error.validator in {"minimum", "maximum"}:
        return f"{shown} is not {'at least' if error.validator == 'minimum' else 'at most'} {limit}"
    if error.validator == "required":
        missing = [key for key in limit if key not in value]
        return f'"{missing[0]}" is missing'
    if error.validator == "type":
        quoting = " (put it in quotes)" if limit == "string" and isinstance(value, int | float) else ""
        return f"{shown} is no {limit if isinstance(limit, str) else ' or '.join(limit)}{quoting}"
    if error.validator == "pattern":
        return f"{shown} does not look right ({limit})"
    if error.validator == "enum":
        return f"{shown} is not one of {', '.join(map(str, limit))}"
    return error.message if len(error.message) < 160 else f"breaks the rule {error.validator}"


def _hardware(data: dict[str, Any], lines: dict[tuple[str | int, ...], int], where: str) -> Hardware:
    cpu, memory = data["cpu"], data["memory"]
    known, chip = tables.cpu_by_model(cpu["model"]), tables.unified_by_model(cpu["model"])
    sockets = cpu.get("sockets", 1)
    bandwidth, measured, source = _bandwidth(memory, sockets, known, chip)
    if bandwidth is None:
        raise UsageError(
            f"memory channels and speed of {cpu['model']!r} are in no table",
            where=f"{where}:{lines[('memory',)]}",
            hint="give memory.channels and memory.mts, or memory.bandwidth_gb_s",
        )
    if cpu.get("threads", cpu["cores"]) < cpu["cores"]:
        raise UsageError("fewer threads than cores", where=f"{where}:{lines[('cpu', 'threads')]}")
    isa = cpu.get("isa") or ("neon" if chip else known.isa if known else None)
    if isa is None:
        raise UsageError(
            f"the vector unit of {cpu['model']!r} is in no table",
            where=f"{where}:{lines[('cpu', 'model')]}",
            hint="give cpu.isa: avx2, avx512, avx512-full, neon or none",
        )
    drives = data.get("nvme", [])
    best = max(drives, key=lambda drive: float(drive["read_gb_s"]), default=None)
    clock = chip.clock_ghz if chip else known.clock_ghz if known else 3.0
    return Hardware(
        name=data["machine"],
        cpu_model=cpu["model"],
        sockets=sockets,
        cores=cpu["cores"],
        threads=cpu.get("threads", cpu["cores"]),
        clock_ghz=float(cpu.get("clock_ghz", clock)),
        isa=isa,
        numa_nodes=cpu.get("numa_nodes", sockets),
        memory_bytes=int(memory["gib"] * GIB),
        available_bytes=None,
        bandwidth=bandwidth,
        bandwidth_measured=measured,
        bandwidth_source=source,
        gpus=_gpus(data.get("gpus", []), lines, where),
        unified=chip is not None,
        unified_flops=float(chip.flops_fp16) if chip else 0.0,
        nvme_read=float(best["read_gb_s"]) * GB if best else None,
        nvme_source=f"{best['model']}: {best['read_gb_s']} GB/s sequential, from {where}" if best else "no NVMe drive is known",
    )


def _bandwidth(
    memory: dict[str, Any], sockets: int, known: tables.CpuModel | None, chip: tables.UnifiedModel | None
) -> tuple[float | None, bool, str]:
    if given := memory.get("bandwidth_gb_s"):
        return float(given) * GB, True, f"{given} GB/s, measured, from the machine file"
    if chip:
        return float(chip.bandwidth), False, f"{chip.bandwidth / GB:.0f} GB/s ({chip.source})"
    channels, mts = memory.get("channels", known.channels if known else None), memory.get("mts", known.mts if known else None)
    if not channels or not mts:
        return None, False, ""
    origin = known.source if known and "channels" not in memory else "the machine file"
    total = channels * sockets
    return total * mts * 1e6 * 8, False, f"{total} channels x {mts} MT/s x 8 bytes ({origin})"


def _gpus(entries: list[dict[str, Any]], lines: dict[tuple[str | int, ...], int], where: str) -> tuple[Accelerator, ...]:
    found: list[Accelerator] = []
    counts: dict[str, int] = {}
    for index, entry in enumerate(entries):
        model = tables.gpu_by_name(entry["model"])
        if model is None and not ("vram_gib" in entry and "bandwidth_gb_s" in entry):
            near = tables.near_gpus(entry["model"])
            hint = f'did you mean "{near[0]}"? Else ' if near else ""
            raise UsageError(
                f"the GPU {entry['model']!r} is in no table and its memory is not guessed",
                where=f"{where}:{lines[('gpus', index)]}",
                hint=f"{hint}give vram_gib and bandwidth_gb_s",
            )
        vendor = entry.get("vendor") or (model.vendor if model else "nvidia")
        source = "the machine file" if model is None or "vram_gib" in entry else model.source
        for _ in range(entry.get("count", 1)):
            number = counts.get(vendor, 0)
            counts[vendor] = number + 1
            found.append(
                Accelerator(
                    device=f"{_DEVICES[vendor]}{number}",
                    model=model.name if model else entry["model"],
                    memory_bytes=int(entry["vram_gib"] * GIB) if "vram_gib" in entry else model.memory_bytes if model else 0,
                    bandwidth=float(entry["bandwidth_gb_s"]) * GB
                    if "bandwidth_gb_s" in entry
                    else float(model.bandwidth if model else 0),
                    pcie=float(entry["pcie_gb_s"]) * GB
                    if "pcie_gb_s" in entry
                    else float(model.pcie if model else tables.PCIE_GEN3_X16),
                    flops=float(model.flops_fp16) if model else float(entry.get("tflops_fp16", 20)) * 1e12,
                    source=source,
                )
            )
    return tuple(found)


def _near_files(path: Path) -> str | None:
    try:
        names = [each.name for each in path.parent.iterdir() if re.search(r"\.ya?ml$", each.name)]
    except OSError:
        return None
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.4) or sorted(names)
    return f"there: {', '.join(near[:8])}" if near else None
