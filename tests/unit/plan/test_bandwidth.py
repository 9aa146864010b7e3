"""The host-side memory scan, run for a moment on this machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from bigiron.machine import bandwidth
from bigiron.plan.model import Wish


def test_a_scan_gives_a_plausible_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "LARGEST_BYTES", 16 * bandwidth.MIB)
    found = bandwidth.main({"threads": 1, "seconds": 0.06})
    assert found["threads"] == 1
    assert found["buffer_bytes"] == 16 * bandwidth.MIB
    assert 10**8 < found["bytes_per_s"] < 10**13


def test_little_memory_means_small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "_available", lambda: 64 * bandwidth.MIB)
    assert bandwidth.main({"threads": 2, "seconds": 0.03})["buffer_bytes"] == 8 * bandwidth.MIB


def test_a_hosts_intent_becomes_a_wish() -> None:
    model = SimpleNamespace(quant="Q4_K_M")
    intent = SimpleNamespace(context=8192, parallel=2, model=model, cache_ram_mib=512, threads=4, backend="cpu")
    assert Wish.of(intent) == Wish(8192, 2, "Q4_K_M", cache_ram_mib=512, threads=4, backend="cpu")  # type: ignore[arg-type]
