"""Time to read the header of a Kimi-K2-shaped model: bigiron against the PyPI package ``gguf``.

    python benchmarks/gguf_header.py [--rounds 5]

Prints seconds for our reader, and the ratio to ``gguf.GGUFReader`` when that package can be imported (it takes long).
Ends with 1 when the ratio is below 80.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from bigiron.gguf.reader import read_file  # noqa: E402
from fixtures.gguf_models import KIMI_K2, write_model  # noqa: E402

WANTED_RATIO = 80


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="repeats of our reader; the median counts")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder), KIMI_K2, "Q4_K_M")[0]
        ours = statistics.median(seconds(lambda: read_file(path)) for _ in range(rounds))
        header = read_file(path)
        print(f"header   {header.header_bytes:,} bytes, {header.keys['tokenizer.ggml.tokens'].items:,} tokens")
        print(f"bigiron  {ours:.4f} s (median of {rounds})")
        if importlib.util.find_spec("gguf") is None:
            print("gguf     not installed: 'pip install gguf' into the Python that runs this shows the ratio")
            return 0
        from gguf import GGUFReader

        theirs = seconds(lambda: GGUFReader(str(path)))
    ratio = theirs / ours
    print(f"gguf     {theirs:.4f} s, {ratio:.0f} times as long (wanted: at least {WANTED_RATIO})")
    return 0 if ratio >= WANTED_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
