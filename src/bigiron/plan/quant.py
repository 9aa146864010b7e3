"""Which quant is best: by the bits it really spends on a weight, read from the header or the true file sizes, never by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from bigiron.errors import UsageError
from bigiron.gguf.facts import ModelFacts

LOSSLESS_BITS = 8.75
"""Bits per weight above which more bits bring no measurable quality (Q8_0 is 8.5; llama.cpp tools/quantize/README.md shows perplexity
equal to F16 within its error), only half the speed."""

T = TypeVar("T")


def by_quality(bits: Mapping[str, float]) -> list[str]:
    """Quant names, best first: falling bits per weight, but what is wider than 8-bit comes last (it costs and brings nothing)."""
    return sorted(bits, key=lambda name: (bits[name] > LOSSLESS_BITS, -bits[name], name))


def bits_per_weight(facts: ModelFacts) -> float:
    """Mean bits of a weight over the whole model."""
    return facts.bits_per_weight


def named(quants: Mapping[str, T], wanted: str) -> tuple[str, T]:
    """The quant called ``wanted`` in any case. Raises UsageError that lists what there is."""
    for name, value in quants.items():
        if name.lower() == wanted.lower():
            return name, value
    raise UsageError(f"there is no quant {wanted!r}", where="model_quant", hint=f"choose one of: {', '.join(quants)}")
