"""The host-side memory scan, run for a moment on this machine."""

from __future__ import annotations

import pytest

from bigiron.onhost import bandwidth


def test_a_scan_gives_a_plausible_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "LARGEST_BYTES", 16 * bandwidth.MIB)
    found = bandwidth.main({"threads": 1, "seconds": 0.06})
    assert found["threads"] == 1
    assert found["buffer_bytes"] == 16 * bandwidth.MIB
    assert 10**8 < found["bytes_per_s"] < 10**13


def test_little_memory_means_small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "_available", lambda: 64 * bandwidth.MIB)
    assert bandwidth.main({"threads": 2, "seconds": 0.03})["buffer_bytes"] == 8 * bandwidth.MIB
