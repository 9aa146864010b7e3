"""The host-side memory scan, run for a moment on this machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bigiron.onhost import bandwidth
from bigiron.plan.choose import Wish


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
    """The inventory's context is per slot; llama-server's -c is for all."""
    model = SimpleNamespace(quant="AUTO")
    fields = {"context": 8192, "parallel": 2, "cache_ram_mib": 512, "threads": 4, "backend": "cpu"}
    intent = SimpleNamespace(model=model, cache_type_k="q8_0", cache_type_v="q8_0", **fields)
    wanted = Wish(16384, 2, "auto", "q8_0", "q8_0", cache_ram_mib=512, threads=4, backend="cpu")
    assert Wish.of(intent) == wanted  # type: ignore[arg-type]
