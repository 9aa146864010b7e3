"""Sizes, durations and rates as people read them. Standard library only: this file also runs on hosts."""

from __future__ import annotations

KIB = 1024
MIB = 1024**2
GIB = 1024**3
GB = 10**9


def gib(size_bytes: float) -> str:
    """Bytes as GiB or MiB (powers of 1024), three significant figures: ``"345.9 GiB"``, ``"12 MiB"``, ``"640 KiB"``."""
    for unit, name in ((1024**4, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size_bytes) >= unit:
            value = size_bytes / unit
            return f"{value:.0f} {name}" if value >= 100 else f"{value:.1f} {name}"
    return f"{size_bytes:.0f} B"


def duration(seconds: float) -> str:
    """Seconds as ``"0.8 s"``, ``"42 s"``, ``"3 min 05 s"`` or ``"2 h 10 min"``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(number: int, singular: str, plural: str = "") -> str:
    """``count(1, "check")`` is ``"1 check"``; ``count(2, "check")`` is ``"2 checks"``."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
