"""``--override-tensor`` rules, judged against the tensors the model really has, before a server is started with them.

llama.cpp (common/arg.cpp, ``parse_tensor_buffer_overrides``) splits the whole value at commas and each rule at its first ``=``; the first
pattern that matches anywhere in a tensor's name wins; a rule that matches nothing is silent; an unknown buffer ends the program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bigiron.gguf.facts import TensorFact
from bigiron.units import gib

_COUNTED = re.compile(r"(\[[^\]]*\]|\\.|\([^()]*\)|[^\\{}()\[\]])\{(\d+),(\d*)\}")


@dataclass(frozen=True)
class RuleReport:
    """What one rule does: ``matches`` tensors of ``nbytes`` go to ``device``, ``shadowed`` more were taken by earlier rules."""

    rule: str
    device: str
    matches: int
    shadowed: int
    nbytes: int
    error: str = ""
    hint: str = ""


def lint(values: Sequence[str], tensors: Sequence[TensorFact], devices: Mapping[str, int]) -> list[RuleReport]:
    """A report for every rule in the ``-ot`` ``values``, in the order llama.cpp tries them.

    ``devices``: the buffers there are, each with the most bytes a tensor in it may have.
    """
    reports: list[RuleReport] = []
    taken: set[str] = set()
    for value in values:
        if _COUNTED.search(value) and "," in _COUNTED.search(value)[0]:  # type: ignore[index]
            reports.append(
                RuleReport(value, "", 0, 0, 0, "a comma ends a rule, so {m,n} cannot be used", f"write {_spelled_out(value)}")
            )
            continue
        reports.extend(_rule(rule, tensors, devices, taken) for rule in value.split(","))
    return reports


def _rule(rule: str, tensors: Sequence[TensorFact], devices: Mapping[str, int], taken: set[str]) -> RuleReport:
    pattern, sign, device = rule.partition("=")
    if not sign:
        return RuleReport(rule, "", 0, 0, 0, "not PATTERN=BUFFER (a comma ends a rule)", "repeat -ot, one rule each")
    if device not in devices:
        where = ", ".join(devices)
        extra = " (the first = ends the pattern)" if "=" in device else ""
        return RuleReport(rule, device, 0, 0, 0, f"there is no buffer {device!r}{extra}", f"this machine has {where}")
    try:
        expression = re.compile(pattern)
    except re.error as problem:
        return RuleReport(rule, device, 0, 0, 0, f"not a regular expression: {problem}")
    found = [tensor for tensor in tensors if expression.search(tensor.name)]
    new = [tensor for tensor in found if tensor.name not in taken]
    taken.update(tensor.name for tensor in new)
    error = hint = ""
    if not found:
        error, hint = "matches no tensor of this model", f"its tensors are named like {tensors[-1].name}" if tensors else ""
    elif not new:
        error, hint = "never applies: earlier rules take all it matches", "put it before them, or drop it"
    elif large := [tensor for tensor in new if tensor.nbytes > devices[device]]:
        error = f"{large[0].name} has {gib(large[0].nbytes)}, more than {device} works on ({gib(devices[device])}): llama.cpp aborts"
        hint = "leave such tensors in main memory"
    return RuleReport(rule, device, len(new), len(found) - len(new), sum(tensor.nbytes for tensor in new), error, hint)


def _spelled_out(value: str) -> str:
    def repeat(found: re.Match[str]) -> str:
        atom, low, high = found[1], int(found[2]), found[3]
        return atom * low + (f"{atom}*" if not high else f"{atom}?" * max(0, int(high) - low))

    return _COUNTED.sub(repeat, value)


def summary(report: RuleReport) -> str:
    """One line for a person."""
    if report.error:
        return f"{report.rule}: {report.error}" + (f" ({report.hint})" if report.hint else "")
    shadow = f", {report.shadowed} more are taken by earlier rules" if report.shadowed else ""
    return f"{report.rule}: {report.matches} tensors, {gib(report.nbytes)} to {report.device}{shadow}"


def layer_pattern(layers: Sequence[int]) -> str:
    r"""A comma-free pattern for the routed experts of ``layers``: ``blk\.(1|2|3)\.ffn_(up|down|gate|gate_up)_(ch|)exps``."""
    return rf"blk\.({'|'.join(str(layer) for layer in layers)})\.ffn_(up|down|gate|gate_up)_(ch|)exps"


ALL_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""llama.cpp's own expression for --cpu-moe (common/common.h, LLM_FFN_EXPS_REGEX)."""
