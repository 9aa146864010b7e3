"""The whole answer: quant, verdict, suggestions, speeds, JSON and the screen."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from bigiron.errors import Refused, UsageError
from bigiron.machine import machinefile
from bigiron.plan.choose import ModelPlan, Wish, choose
from bigiron.plan.roofline import SPREAD
from bigiron.report.plan_table import bar, details, explanation, headline, show
from bigiron.units import GIB, gib
from fixtures.model_shapes import kimi, small
from fixtures.planning import gpu, machine
from fixtures.published import ROWS

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "src/bigiron/plan/schemas/plan.schema.json").read_text())
NAMES = ("Q8_0", "Q4_K_M", "Q3_K_M", "Q2_K", "IQ2_XXS", "IQ1_S")


def quants() -> dict[str, object]:
    return {name: kimi(name) for name in NAMES}


@pytest.mark.parametrize(
    ("memory", "quant", "verdict"),
    [
        (1200, "Q8_0", "fits"),
        (768, "Q4_K_M", "fits"),
        (384, "Q2_K", "fits"),
        (288, "IQ2_XXS", "fits"),
        (128, "IQ1_S", "streams from disk"),
    ],
)
def test_auto_takes_the_best_that_fits(memory: int, quant: str, verdict: str) -> None:
    plan = choose(machine(memory_gib=memory), quants(), Wish(context=32768))  # type: ignore[arg-type]
    assert (plan.quant, plan.verdict) == (quant, verdict)


def test_slots_and_context_count_for_the_choice() -> None:
    sizes = {length: choose(machine(memory_gib=358), quants(), Wish(context=length)).quant for length in (4096, 131072)}  # type: ignore[arg-type]
    assert sizes == {4096: "Q2_K", 131072: "IQ2_XXS"}


def test_a_fixed_quant_that_does_not_fit_is_refused_with_what_would() -> None:
    plan = choose(machine(memory_gib=361), quants(), Wish(context=131072, quant="q2_k", streaming=False))  # type: ignore[arg-type]
    assert not plan.fits
    with pytest.raises(Refused, match=r"does not fit: .* of memory are missing") as caught:
        plan.require()
    hint = str(caught.value.hint)
    assert "quant IQ2_XXS fits" in hint
    assert "cache type q8_0 fits" in hint
    context = next(int(word) for word in hint.split() if word.isdigit())
    assert choose(machine(memory_gib=361), kimi("Q2_K"), Wish(context=context, streaming=False)).fits
    assert not choose(machine(memory_gib=361), kimi("Q2_K"), Wish(context=context + 256, streaming=False)).fits
    assert "more memory would hold it" in hint


def test_the_memory_it_asks_for_is_enough() -> None:
    plan = choose(machine(memory_gib=300), kimi("Q2_K"), Wish(streaming=False))
    more = float(plan.suggestions[-1].split()[0])
    assert choose(machine(memory_gib=300 + more), kimi("Q2_K"), Wish(streaming=False)).fits


def test_an_unknown_quant_lists_those_that_exist() -> None:
    with pytest.raises(UsageError, match="no quant 'Q2_K_XL'") as caught:
        choose(machine(), quants(), Wish(quant="Q2_K_XL"))  # type: ignore[arg-type]
    assert all(name in str(caught.value.hint) for name in NAMES)


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (Wish(context=0), "context is 0"),
        (Wish(context=-5), "context is -5"),
        (Wish(slots=0), "slots is 0"),
        (Wish(threads=-1), "threads is -1"),
        (Wish(cache_ram_mib=-1), "cache RAM is -1"),
        (Wish(context=2, slots=3), "cannot be shared"),
        (Wish(backend="tpu"), "backend is 'tpu'"),
        (Wish(type_k="q8_0"), "must be equal"),
    ],
)
def test_wishes_that_mean_nothing(wish: Wish, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose(machine(), kimi(), wish)


def test_no_quants() -> None:
    with pytest.raises(UsageError, match="no quant to choose from"):
        choose(machine(), {}, Wish())


def test_a_context_beyond_training_is_said() -> None:
    plan = choose(machine(), kimi(), Wish(context=262144))
    assert any("trained for 131072" in warning for warning in plan.warnings)


PLANS: dict[str, tuple[object, Wish]] = {
    "cpu": (machine(), Wish(context=32768, slots=2)),
    "hybrid": (machine(gpus=(gpu(24),)), Wish(context=32768)),
    "three gpus": (machine(gpus=(gpu(24, 0), gpu(24, 1), gpu(12, 2))), Wish(context=32768)),
    "streams": (machine(memory_gib=128), Wish()),
    "streams from an unknown disk": (machine(memory_gib=128, nvme_gb_s=None), Wish()),
    "too small": (machine(memory_gib=5), Wish()),
    "unified": (machine(unified=True), Wish()),
}


def plan_of(name: str) -> ModelPlan:
    hardware, wish = PLANS[name]
    return choose(hardware, kimi(), wish)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PLANS)
def test_json_follows_the_published_schema(name: str) -> None:
    document = json.loads(json.dumps(plan_of(name).to_json()))
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


def test_the_schema_refuses_what_is_not_a_plan() -> None:
    document = plan_of("cpu").to_json()
    document["memory"][0]["weights"]["bytes"] = -1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(document)


@pytest.mark.parametrize("name", PLANS)
def test_every_number_of_the_memory_table_is_explained(name: str) -> None:
    plan = plan_of(name)
    topics = [topic for topic, _ in plan.reasons]
    for row in plan.memory:
        for term in row.terms():
            assert topics.count(f"{row.device} {term.name}") == 1
    for argument in plan.reasoned_arguments:
        assert argument.option in topics


@pytest.mark.parametrize("name", PLANS)
def test_the_screen(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(name)
    show(plan, explain=True)
    printed = capsys.readouterr().out
    assert plan.verdict in printed.splitlines()[0]
    for row in plan.memory:
        assert bar(row) in printed
        assert len(bar(row)) == 40
    assert ("llama-server --ctx-size" in printed) == plan.fits
    assert all(line in printed for line in explanation(plan))
    assert headline(plan)[0] in printed
    assert all(line in printed for line in details(plan))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_narrow_screen_loses_the_bar_and_no_number(
    name: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(name)
    monkeypatch.setenv("COLUMNS", str(width))
    show(plan)
    printed = capsys.readouterr().out
    table = printed[printed.index("memory ") :].split("\n  ")[0].splitlines()
    assert max(map(len, table)) <= width
    assert "…" not in "".join(table)
    assert all(gib(term.nbytes) in printed for row in plan.memory for term in row.terms())


def test_a_bar_shows_what_is_too_much() -> None:
    assert bar(plan_of("too small").memory[0]).endswith("!")
    assert bar(plan_of("cpu").memory[0]).startswith("#" * 25)


def test_ranges_are_less_than_twice_as_wide() -> None:
    for name in ("cpu", "hybrid", "three gpus", "streams", "unified"):
        for rate in (plan_of(name).prediction.generation, plan_of(name).prediction.prefill):
            assert rate is not None
            assert 1 < rate.high / rate.low <= 2
    assert SPREAD**2 < 2


def test_speeds_follow_the_machine() -> None:
    def speed(name: str) -> float:
        found = plan_of(name).prediction.generation
        assert found is not None
        return found.low

    assert speed("hybrid") > speed("cpu") > speed("streams")
    assert plan_of("streams").prediction.generation.bottleneck == "NVMe"  # type: ignore[union-attr]


def test_what_cannot_be_predicted_is_not() -> None:
    assert plan_of("streams from an unknown disk").prediction.generation is None
    assert plan_of("too small").prediction.generation is None
    assert any("not known" in warning for warning in plan_of("streams from an unknown disk").warnings)


def test_five_of_seven_published_speeds_lie_in_the_predicted_ranges() -> None:
    inside = 0
    for row in ROWS:
        hardware = machinefile.read(ROOT / "inventory" / "machines" / f"{row.machine}.yml")
        rate = choose(hardware, kimi(row.quant), Wish(context=32768, quant=row.quant)).prediction.generation
        assert rate is not None
        inside += rate.low <= row.middle <= rate.high
    assert inside >= 5


def test_the_guides_sizes_cannot_be_right() -> None:
    """The guide's table against true sizes (GB): a file cannot be smaller than its type's bits allow."""
    for quant, guide in (("Q2_K_S", 245), ("Q3_K_S", 320), ("Q4_K_M", 480), ("IQ2_XXS", 210), ("IQ1_M", 155)):
        assert kimi(quant).total_bytes / 1e9 > 1.2 * guide


def test_memory_needed_is_what_must_not_be_reclaimed() -> None:
    plan = plan_of("streams")
    assert plan.memory_needed < 12 * GIB
    assert plan_of("cpu").memory_needed > kimi().total_bytes


def test_a_small_dense_model_on_one_gpu_is_all_in_vram() -> None:
    plan = choose(machine(gpus=(gpu(24),)), small("dense"), Wish())
    assert plan.placement.kind == "all in VRAM"
    assert "--override-tensor" not in plan.arguments
