"""Predicted generation speed against published measurements of Kimi K2, as the table of docs/plan.md.

    python benchmarks/plan_vs_published.py

Exit 1 when fewer than five of the published middles lie inside the predicted ranges.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests"), str(Path(__file__).resolve().parents[1] / "src")]

from bigiron.machine.machinefile import read  # noqa: E402 -- the path comes first
from bigiron.plan.choose import Wish, choose  # noqa: E402 -- the path comes first
from fixtures.model_shapes import kimi  # noqa: E402 -- the path comes first
from fixtures.published import ROWS  # noqa: E402 -- the path comes first

MACHINES = Path(__file__).resolve().parents[1] / "inventory" / "machines"


def main() -> int:
    """Print the table; the exit code tells whether enough rows are inside."""
    inside = 0
    print("| machine | what was run | true size | plan | published tok/s | predicted tok/s | limit | middle inside |")
    print("|---|---|---|---|---|---|---|---|")
    for row in ROWS:
        plan = choose(read(MACHINES / f"{row.machine}.yml"), kimi(row.quant), Wish(context=32768, quant=row.quant))
        rate = plan.prediction.generation
        if rate is None:
            print(f"| {row.machine} | {row.said} | | {plan.verdict} | | cannot be predicted | | no |")
            continue
        hit = rate.low <= row.middle <= rate.high
        inside += hit
        published = f"{row.low:g}" if row.low == row.high else f"{row.low:g} to {row.high:g}"
        placed = f"{plan.placement.kind}, {plan.verdict}"
        size = f"{plan.facts.total_bytes / 1e9:.0f} GB"
        cells = (row.machine, f"{row.said} ({row.source})", size, placed, published, f"{rate.low:.1f} to {rate.high:.1f}")
        print(f"| {' | '.join(cells)} | {rate.bottleneck} | {'yes' if hit else 'no'} |")
    print(f"\n{inside} of {len(ROWS)} inside")
    return 0 if inside >= 5 else 1


if __name__ == "__main__":
    sys.exit(main())
