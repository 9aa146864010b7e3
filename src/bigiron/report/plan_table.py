"""The model plan for people: one screen, read from top to bottom in ten seconds; ``explain`` with the arithmetic of every number."""

from __future__ import annotations

import shlex

from bigiron.plan.choose import ModelPlan
from bigiron.plan.memory import DeviceMemory
from bigiron.plan.roofline import Rate
from bigiron.report import console
from bigiron.units import gib

BAR_WIDTH = 40
_PARTS = (("weights", "#"), ("kv", "k"), ("compute", "c"), ("other", "o"), ("reserve", "-"))
"""Terms of a memory row and the letter that stands for each in its bar; what is left is free."""


def show(plan: ModelPlan, *, explain: bool = False) -> None:
    """Print the plan to stdout; ``explain`` adds the reason of every number."""
    terminal = console.terminal()
    for line in headline(plan):
        terminal.print(line, soft_wrap=True)
    terminal.print(_table(plan, terminal.width))
    for line in details(plan):
        terminal.print(line, soft_wrap=True)
    if explain:
        terminal.print()
        for line in explanation(plan):
            terminal.print(line, soft_wrap=True)


def headline(plan: ModelPlan) -> list[str]:
    """What was decided: verdict, quant, placement, context, speed."""
    facts = plan.facts
    profile = f" (profile {plan.placement.profile} of the guide)" if plan.placement.profile else ""
    share = (
        f", {100 * plan.placement.resident:.0f} % of the streamed weights stay in memory" if plan.placement.resident < 1 else ""
    )
    verdict = plan.verdict if plan.fits else f"{plan.verdict}: {gib(plan.placement.short_bytes)} short"
    lines = [
        f"{facts.name or facts.architecture} {plan.quant} on {plan.hardware.name}: {verdict}",
        f"  weights     {facts.total_bytes / 1e9:.1f} GB, {facts.bits_per_weight:.2f} bits each; {facts.active_bytes / 1e9:.1f} GB per token",
        f"  placement   {plan.placement.kind}{profile}{share if plan.fits else ''}",
        f"  context     {plan.slot_context} tokens for each of {plan.wish.slots} slot(s), cache {plan.wish.type_k}/{plan.wish.type_v}",
    ]
    if plan.fits:
        found = plan.prediction
        lines.append(f"  speed       generation {rate(found.generation)}; prefill {rate(found.prefill)}")
    return lines


def rate(found: Rate | None) -> str:
    """``"6.1 to 11.6 tok/s (estimated; limit: memory)"``."""
    if found is None:
        return "cannot be estimated"
    digits = 0 if found.low >= 20 else 1
    return f"{found.low:.{digits}f} to {found.high:.{digits}f} tok/s (estimated; limit: {found.bottleneck})"


def bar(row: DeviceMemory, width: int = BAR_WIDTH) -> str:
    """The device's memory as letters: ``#`` weights, ``k`` cache, ``c`` compute, ``o`` other, ``-`` reserve, ``.`` free, ``!`` too much."""
    if row.total <= 0:
        return ""
    ends, filled = [], 0
    for name, _ in _PARTS:
        filled += next(term.nbytes for term in row.terms() if term.name == name)
        ends.append(min(width, round(width * filled / row.total)))
    drawn = "".join(letter * (end - start) for (_, letter), start, end in zip(_PARTS, [0, *ends[:-1]], ends, strict=True))
    if row.free < 0:
        return drawn[: width - 1] + "!"
    return drawn.ljust(width, ".")


def _table(plan: ModelPlan, width: int) -> object:
    """A row per device with a bar as long as there is room; where there is none, a row per number."""
    from rich import box
    from rich.table import Table

    names = [row.model if row.device == "memory" else f"{row.device} {row.model}" for row in plan.memory]
    room = min(BAR_WIDTH, width - max(map(len, names)) - 80)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("memory", overflow="fold")
    sizes = ("total", "weights", "KV", "compute", "other", "reserve", "free")
    for column in sizes if room >= 8 else ("part", "size"):
        table.add_column(column, justify="left" if column == "part" else "right")
    if room >= 8:
        table.add_column("# weights  k KV  c compute  o other  - reserve")
    for name, row in zip(names, plan.memory, strict=True):
        cells = [gib(row.total), *(gib(term.nbytes) for term in row.terms()), gib(row.free)]
        if room >= 8:
            table.add_row(name, *cells, bar(row, room))
        else:
            for part, cell in zip(sizes, cells, strict=True):
                table.add_row(name if part == "total" else "", part, cell)
        if row.streamed:
            streamed, where = f"+{gib(row.streamed)}", "mapped from disk, in whatever is free"
            table.add_row("", "", streamed, "", "", "", "", "", where) if room >= 8 else table.add_row("", where, streamed)
    return table


def details(plan: ModelPlan) -> list[str]:
    """Warnings, suggestions, and the arguments as they would be typed."""
    lines = [f"  note: {text}" for text in plan.warnings]
    if plan.suggestions:
        lines.append(f"  instead: {'; '.join(plan.suggestions)}")
    if plan.fits:
        lines.append(f"  llama-server {shlex.join(plan.arguments)}")
    return lines


def explanation(plan: ModelPlan) -> list[str]:
    """Every number with its arithmetic, one a line."""
    width = max((len(topic) for topic, _ in plan.reasons), default=0)
    return [f"  {topic:<{width}}  {text}" for topic, text in plan.reasons]
