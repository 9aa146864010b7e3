"""How fast this host reads its memory: every thread scans a buffer of its own with libc's memchr. Runs on hosts: stdlib only.

The scan is a plain read of every byte, which is what generating a token does with the weights; ctypes lets go of the interpreter lock.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Any, Dict, List

MIB = 1024**2
LARGEST_BYTES = 256 * MIB
"""Per thread; all together must not fit the caches, or the caches are what is measured."""


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Bandwidth with ``threads`` (0: one per usable CPU) over about ``seconds``; ``{"bytes_per_s", "threads", "buffer_bytes"}``.

    A quarter of the available memory is used at most. The best of three rounds counts: other load only ever slows a round down.
    """
    threads = int(request.get("threads") or 0) or len(os.sched_getaffinity(0))
    seconds = float(request.get("seconds") or 1.0)
    each = max(min(LARGEST_BYTES, _available() // 4 // threads), 4 * MIB)
    libc = ctypes.CDLL(None)
    libc.memchr.restype = ctypes.c_void_p
    libc.memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    buffers = [ctypes.create_string_buffer(each) for _ in range(threads)]
    for buffer in buffers:
        ctypes.memset(buffer, 1, each)
    best = max(_round(libc, buffers, each, seconds / 3) for _ in range(3))
    return {"bytes_per_s": best, "threads": threads, "buffer_bytes": each}


def _round(libc: Any, buffers: List[Any], each: int, seconds: float) -> float:
    """Bytes per second of all threads together for about ``seconds``."""
    done = [0] * len(buffers)
    start = threading.Barrier(len(buffers) + 1)
    stop = threading.Event()

    def scan(index: int) -> None:
        address = ctypes.addressof(buffers[index])
        start.wait()
        while not stop.is_set():
            libc.memchr(address, 0, each)
            done[index] += each

    workers = [threading.Thread(target=scan, args=(index,), daemon=True) for index in range(len(buffers))]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.monotonic()
    time.sleep(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    return sum(done) / (time.monotonic() - began)


def _available() -> int:
    """MemAvailable in bytes; 1 GiB where the kernel does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 -- one file, read where it is needed
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 1024 * MIB
