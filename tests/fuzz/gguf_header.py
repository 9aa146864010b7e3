"""Coverage-guided fuzzing of the GGUF reader: no crash, no hang, no more memory than the bytes justify.

Needs atheris (not in the lock: it is run now and then, not by the tests):

    pip install atheris
    python tests/fuzz/gguf_header.py -max_total_time=3600 -rss_limit_mb=256 -timeout=5 CORPUS
"""

import sys

import atheris

with atheris.instrument_imports(include=["bigiron.gguf"]):
    from bigiron.gguf.errors import GgufError
    from bigiron.gguf.facts import model_facts
    from bigiron.gguf.reader import read_header
    from bigiron.gguf.source import BytesSource


def one_input(data: bytes) -> None:
    """A typed error or a header; facts of the header likewise. Anything else is a finding."""
    try:
        header = read_header(BytesSource(data))
        model_facts([header])
    except GgufError:
        pass


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
