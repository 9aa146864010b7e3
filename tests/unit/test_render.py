import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigiron import render
from bigiron.errors import UsageError

# every argument that public bug reports of units name, and the words around them (systemd.service(5), "Command lines")
NASTY = [
    r"blk\.(3|4)\.ffn_.*_exps=CUDA0", r"\d+\b\s\\", r"\x41\f\v\t", 'say "hi"', "it's", "100%25 done", "%%H", "{% if x %}", "$HOME ${PATH} $$",
    ";", "#x", "@x", "-x", "+x", "trailing\\", "größe", "a;b", "two  spaces", "tab\there", "line\nbreak", "", "^blk$", "{1,2}", "=", "~",
]  # fmt: skip


def parse(value):
    """What systemd makes of one quoted word: C-style escapes, %% and $$."""
    if not value.startswith('"'):
        return value
    body, out, i = value[1:-1], [], 0
    names = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "f": "\f", "b": "\b", "a": "\a", "\\": "\\", '"': '"'}
    while i < len(body):
        if body[i] == "\\":
            if body[i + 1] == "x":
                out.append(chr(int(body[i + 2 : i + 4], 16)))
                i += 4
                continue
            out.append(names[body[i + 1]])
            i += 2
        elif body[i] in "%$":
            assert body[i + 1] == body[i]
            out.append(body[i])
            i += 2
        else:
            out.append(body[i])
            i += 1
    return "".join(out)


@pytest.mark.parametrize("word", NASTY)
def test_word_survives_quoting(word):
    assert parse(render.systemd_word(word)) == word


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_text_survives_quoting(word):
    quoted = render.systemd_word(word)
    assert parse(quoted) == word
    assert "\n" not in quoted


def test_nul_is_refused():
    with pytest.raises(UsageError, match="NUL"):
        render.systemd_word("a\0b")


def test_missing_variable_is_named():
    with pytest.raises(UsageError, match="llama_server_"):
        render.render("llama-server.service", {})


@pytest.mark.parametrize("timeout_s", [30, 120, 3600])
def test_start_limit_holds_for_a_load_that_fails_as_late_as_it_may(variables, timeout_s):
    text = render.render("llama-server.service", {**variables, "llama_server_start_timeout_s": timeout_s})
    interval, burst, pause = (
        int(re.search(rf"^{key}=(\d+)s?$", text, re.MULTILINE)[1])
        for key in ("StartLimitIntervalSec", "StartLimitBurst", "RestartSec")
    )
    assert interval > burst * (timeout_s + pause)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_reads_the_unit_without_a_word(tmp_path, variables):
    unit = tmp_path / "llama-server-main.service"
    argv = ["/usr/bin/true", *(word for word in NASTY if word)]
    unit.write_text(
        render.render("llama-server.service", {**variables, "llama_server_argv": argv, "llama_server_user": "root"})
    )
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []
