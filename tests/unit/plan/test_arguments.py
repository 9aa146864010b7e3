"""Arguments in the words of the installed build; override rules and cache types judged before a start."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from bigiron.errors import Refused, UsageError
from bigiron.plan.arguments import advise, arguments, check_cache_types
from bigiron.plan.capabilities import Capabilities, parse
from bigiron.plan.choose import Wish, choose
from bigiron.plan.overrides import ALL_EXPERTS, layer_pattern, lint, summary
from bigiron.plan.placement import place
from bigiron.units import GIB
from fixtures.model_shapes import kimi, small
from fixtures.planning import gpu, machine

HELP = Path(__file__).parents[2] / "fixtures" / "help"


@cache
def build(name: str) -> Capabilities:
    return parse((HELP / name).read_text(), name)


NEW, OLD = "llama-server-b11434.txt", "llama-server-2025-07.txt"


def test_help_and_readme_of_one_build_tell_the_same() -> None:
    of_help = {name: flag.value for flag in build(NEW).flags for name in flag.names}
    of_table = {name: flag.value for flag in build("llama-server-b11434-readme.md").flags for name in flag.names}
    assert len(of_help) > 300
    assert {name: of_help.get(name) for name in of_table} == of_table


@pytest.mark.parametrize(
    ("name", "flag", "value"),
    [
        (NEW, "-fa", "[on|off|auto]"),
        (OLD, "-fa", ""),
        (NEW, "--no-repack", ""),
        (NEW, "-lm", "MODE"),
        (OLD, "-ot", "<tensor name pattern>=<buffer type>,..."),
        (OLD, "--split-mode", "{none,layer,row}"),
    ],
)
def test_what_takes_a_value(name: str, flag: str, value: str) -> None:
    found = build(name).find(flag)
    assert found is not None
    assert found.value == value


def test_removed_options_are_not_known() -> None:
    assert build(NEW).find("--no-mmap") is None
    assert build(NEW).find("--draft-max") is None
    assert build(OLD).find("--load-mode") is None


def test_text_that_is_no_help_is_refused() -> None:
    with pytest.raises(Refused, match="found only 0 options"):
        parse("llama-server: error while loading shared libraries\n")


def words(name: str, wish: Wish, **hardware: object) -> list[str]:
    return choose(machine(**hardware), kimi(), wish, build=build(name)).arguments  # type: ignore[arg-type]


def test_flash_attention_follows_the_build() -> None:
    new, old = words(NEW, Wish()), words(OLD, Wish())
    assert new[new.index("--flash-attn") + 1] == "auto"
    assert old[-1] == "--flash-attn"
    assert build(OLD).problems(old) == []
    assert "--flash-attn needs a value" in build(NEW).problems(old)[-1]


def test_a_quantised_v_cache_turns_flash_attention_on() -> None:
    found = words(NEW, Wish(type_k="q8_0", type_v="q8_0"))
    assert found[found.index("--flash-attn") + 1] == "on"


def test_load_modes() -> None:
    hybrid = {"memory_gib": 512, "gpus": (gpu(24),)}
    new, old = words(NEW, Wish(), **hybrid), words(OLD, Wish(), **hybrid)
    assert new[new.index("--load-mode") + 1] == "none"
    assert "--no-mmap" in old
    streamed = words(NEW, Wish(), memory_gib=128)
    assert streamed[streamed.index("--load-mode") + 1] == "mmap"
    assert "--no-repack" in streamed
    assert "--no-repack" not in words(NEW, Wish(), memory_gib=512)


def test_streaming_needs_a_build_that_can_turn_repacking_off() -> None:
    with pytest.raises(Refused, match="cannot turn weight repacking off"):
        words(OLD, Wish(), memory_gib=128)


def test_numa_and_threads() -> None:
    one, eight = words(NEW, Wish(), numa_nodes=1, cores=32), words(NEW, Wish(), numa_nodes=8, cores=32)
    assert "--numa" not in one
    assert eight[eight.index("--numa") + 1] == "distribute"
    assert one[one.index("--threads") + 1] == "32"
    assert words(NEW, Wish(threads=12), cores=32).count("12") == 2


def test_numa_starts_slower() -> None:
    plans = [choose(machine(numa_nodes=nodes), kimi(), Wish()) for nodes in (1, 8)]
    assert plans[1].start_timeout_s > 2 * plans[0].start_timeout_s


def test_numactl_and_numa_distribute_fight() -> None:
    many = machine(numa_nodes=2)
    assert "works against" in advise(["--numa", "distribute"], kimi(), many, prefix=["numactl", "-N", "0"])[0]
    assert advise(["--numa", "numactl"], kimi(), many, prefix=["numactl", "-N", "0"]) == []
    assert "one NUMA node" in advise(["--numa", "distribute"], kimi(), machine())[0]


@pytest.mark.parametrize(
    ("line", "words_of_error"),
    [
        (["--no-mmap"], "no option --no-mmap"),
        (["-fa", "--no-repack"], "-fa needs a value"),
        (["-fa", "--no-mmap"], "-fa needs a value"),
        (["-fa", "-ngl", "9"], "-fa needs a value"),
        (["--ctx-size=4096"], "no --option=value"),
        (["--ctx-size"], "--ctx-size needs a value"),
        (["--ctx-sise", "1"], "near it: --ctx-size"),
    ],
)
def test_wrong_command_lines(line: list[str], words_of_error: str) -> None:
    assert words_of_error in build(NEW).problems(line)[0]


def test_negative_values_are_values() -> None:
    assert build(NEW).problems(["--threads", "-1", "--n-predict", "-2"]) == []


def test_cache_types_that_llama_cpp_refuses() -> None:
    with pytest.raises(UsageError, match="must be equal"):
        check_cache_types(kimi(), "q8_0", "f16")
    with pytest.raises(UsageError, match="needs flash attention"):
        check_cache_types(small("dense"), "f16", "q8_0", "off")
    with pytest.raises(UsageError, match="is no cache type"):
        check_cache_types(small("dense"), "q3_0", "f16")
    check_cache_types(small("dense"), "q8_0", "q4_0")


def test_several_gpus_get_whole_numbers_of_layers() -> None:
    hardware = machine(memory_gib=512, gpus=(gpu(24, 0), gpu(24, 1), gpu(12, 2)))
    found = choose(hardware, kimi(), Wish(), build=build(NEW)).arguments
    split = [int(part) for part in found[found.index("--tensor-split") + 1].split(",")]
    assert sum(split) == int(found[found.index("--n-gpu-layers") + 1]) == 62
    value = found[found.index("--override-tensor") + 1]
    reports = lint([value], kimi().tensors, dict.fromkeys(["CPU", "CUDA0", "CUDA1", "CUDA2"], sys.maxsize))
    assert [report.error for report in reports] == [""] * len(reports)
    assert sum(report.matches for report in reports) == 180


def test_an_unused_gpu_is_left_out() -> None:
    hardware = machine(memory_gib=64, gpus=(gpu(80, 0), gpu(1, 1)))
    found = choose(hardware, small("dense"), Wish(), build=build(NEW)).arguments
    assert found[found.index("--device") + 1] == "CUDA0"
    assert "--tensor-split" not in found


def test_every_argument_has_a_reason() -> None:
    wish = Wish()
    hardware = machine(memory_gib=512, gpus=(gpu(24),))
    placement = place(kimi(), hardware, wish.wanted())
    for argument in arguments(kimi(), hardware, placement, wish.wanted(), build(NEW)):
        assert argument.reason, argument


DEVICES = {**dict.fromkeys(["CPU", "CUDA0", "CUDA1"], sys.maxsize), "Vulkan0": 2**32 - 1}


def test_rules_count_match_and_shadow() -> None:
    reports = lint([rf"blk\.(1|2)\.ffn_.*_exps=CUDA0,{ALL_EXPERTS}=CPU"], kimi().tensors, DEVICES)
    assert [(report.matches, report.shadowed, report.error) for report in reports] == [(6, 0, ""), (174, 6, "")]
    assert "6 more are taken" in summary(reports[1])


def test_a_rule_that_puts_too_large_a_tensor_on_vulkan() -> None:
    # 384 experts of 2048 x 7168 in Q6_K are 4.3 GiB, which ggml_backend_sched refuses with an abort; in Q4_K they are 2.95 GiB
    value = r"blk\.(1|30)\.ffn_(up|gate)_exps=Vulkan0,blk\.1\.ffn_down_exps=Vulkan0"
    fine, bad = lint([value], kimi("Q4_K_M").tensors, DEVICES)
    assert fine.error == ""
    assert "blk.1.ffn_down_exps.weight has 4.3 GiB" in bad.error
    assert "main memory" in bad.hint


@pytest.mark.parametrize(
    ("values", "error", "hint"),
    [
        (["exps=CPU", r"blk\.3\..*exps=CUDA0"], "never applies", "put it before"),
        (["blk.99.=CUDA0"], "matches no tensor", "named like"),
        (["exps=CUDA3"], "no buffer 'CUDA3'", "CPU, CUDA0, CUDA1, Vulkan0"),
        (["exps"], "not PATTERN=BUFFER", "repeat -ot"),
        (["(=CPU"], "not a regular expression", ""),
        (["a=b=CPU"], "first = ends", ""),
        ([r"blk\.[0-9]{1,2}\.=CPU"], "comma ends a rule", r"blk\.[0-9][0-9]?\.=CPU"),
        ([r"x{2,}=CPU"], "comma ends a rule", "xxx*=CPU"),
    ],
)
def test_rules_that_do_not_do_what_they_say(values: list[str], error: str, hint: str) -> None:
    report = lint(values, kimi().tensors, DEVICES)[-1]
    assert error in report.error
    assert hint in report.hint


def test_advice_shows_bad_rules() -> None:
    assert advise(["-ot", "nothing=CPU"], kimi(), machine())[0].startswith("nothing=CPU: matches no tensor")


def test_layer_patterns_hold_no_comma_and_match_exactly() -> None:
    pattern = layer_pattern([1, 12])
    assert "," not in pattern
    assert lint([f"{pattern}=CPU"], kimi().tensors, DEVICES)[0].matches == 6


def test_no_gpu_arguments_for_a_cpu_build() -> None:
    hardware = machine(memory_gib=512, gpus=(gpu(24),))
    found = choose(hardware, kimi(), Wish(backend="cpu"), build=build(NEW)).arguments
    assert "--n-gpu-layers" not in found
    assert replace(hardware, gpus=()).memory_bytes == 512 * GIB
