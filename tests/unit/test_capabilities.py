import pytest

from bigiron.errors import Refused
from bigiron.plan.capabilities import unsupported

HELP = """----- common params -----

-h,    --help, --usage                  print usage and exit
-t,    --threads N                      number of threads (default: -1)
-c,    --ctx-size N                     context
-fa,   --flash-attn [on|off|auto]       flash attention
-lm,   --load-mode MODE                 how to load
-ot,   --override-tensor <tensor name pattern>=<buffer type>,...
                                        override tensor buffer type
-m,    --model FNAME                    model path
--host HOST                             address
--port PORT                             port
--metrics                               metrics endpoint
--api-key-file FNAME                    keys
"""


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "/m", "--threads", "-1", "-fa", "on", "--metrics"],
        ["-ot", r"blk\.(3|4)\.ffn_.*_exps=CPU", "--host", "127.0.0.1"],
    ],
)
def test_what_the_build_knows_is_accepted(words):
    assert unsupported(["/bin/llama-server", *words], HELP) == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--no-mmap"], "this build has no option --no-mmap"),
        (["--no-mmap=false"], "this build has no option --no-mmap=false"),
        (["--flash-atn", "on"], "near it: --flash-attn"),
        (["-fa", "--metrics"], "-fa needs a value"),  # an old unit: the value came later
        (["-fa", "--no-mmap"], "-fa needs a value"),
        (["--metrics", "on"], "on belongs to no option"),
        (["--port"], "--port needs a value (PORT)"),
    ],
)
def test_what_it_does_not_know_is_named(words, problem):
    assert any(problem in each for each in unsupported(["/bin/llama-server", *words], HELP))


def test_text_that_is_no_help_is_refused():
    with pytest.raises(Refused, match="options"):
        unsupported(["/bin/llama-server"], "Segmentation fault")
