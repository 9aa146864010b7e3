"""Where the tensors go: never more than a device has, and never worse for having more."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigiron.gguf.facts import ROUTED, ModelFacts
from bigiron.machine.hardware import Accelerator
from bigiron.plan.choose import Wish, choose
from bigiron.plan.memory import kv_by_layer, padded_context
from bigiron.plan.placement import FITS, NO, STREAMS, Placement, Wanted, place
from bigiron.plan.quant import by_quality
from bigiron.units import GIB, MIB
from fixtures.gguf_models import DENSE_GQA, KIMI_K2, SMALL_MOE
from fixtures.model_shapes import facts, kimi, shape, small
from fixtures.planning import gpu, machine

kinds = st.sampled_from(["mla", "dense", "moe"])


def placed_bytes(placement: Placement) -> int:
    return sum(row.weights.nbytes + row.streamed for row in placement.memory)


@pytest.mark.parametrize(
    ("hardware", "kind", "profile", "verdict"),
    [
        (machine(memory_gib=384), "CPU only", "A", FITS),
        (machine(memory_gib=128), "CPU only", "C", STREAMS),
        (machine(memory_gib=384, gpus=(gpu(24),)), "one GPU, hybrid", "B", FITS),
        (machine(memory_gib=64, gpus=tuple(gpu(80, n) for n in range(6))), "all in VRAM", None, FITS),
        (machine(memory_gib=512, unified=True), "unified memory", None, FITS),
        (machine(memory_gib=6), "CPU only", "A", NO),
    ],
)
def test_kimi_k2_on_typical_machines(hardware: object, kind: str, profile: str, verdict: str) -> None:
    found = place(kimi(), hardware, Wanted(32768))  # type: ignore[arg-type]
    assert (found.kind, found.profile, found.verdict) == (kind, profile, verdict)


def test_a_24_gib_gpu_takes_attention_and_cache_first_and_experts_then() -> None:
    found = place(kimi(), machine(memory_gib=384, gpus=(gpu(24),)), Wanted(32768))
    assert found.gpu_layers == 62
    assert 0 < len(found.gpu_experts[0]) < 10
    on_gpu, host = found.memory
    assert on_gpu.kv.nbytes == 32768 * 70272
    assert host.kv.nbytes == 0
    assert placed_bytes(found) == kimi().total_bytes


@pytest.mark.parametrize("sizes", [(24, 24, 12), (12, 24, 24), (48, 8), (24, 24, 24, 24), (96, 6)])
def test_unequal_gpus_are_never_overfilled(sizes: tuple[int, ...]) -> None:
    gpus = tuple(gpu(size, number) for number, size in enumerate(sizes))
    found = place(kimi(), machine(memory_gib=512, gpus=gpus), Wanted(65536))
    assert found.verdict == FITS
    assert sum(found.split) == found.gpu_layers
    for row in found.memory:
        assert row.free >= 0, row
        assert row.used + row.free + row.reserve.nbytes == row.total
    assert placed_bytes(found) == kimi().total_bytes


def test_the_cache_of_all_layers_is_what_the_reader_says() -> None:
    for model in (kimi(), small("dense"), small("moe")):
        for slots in (1, 4):
            layers = kv_by_layer(model, 10000, "q8_0", "q8_0", slots, 512)
            assert sum(layers.values()) == model.cache.total_bytes(10000, "q8_0", slots=slots)


def test_slots_share_the_context_in_blocks_of_256() -> None:
    assert padded_context(4096, 1) == (4096, 4096)
    assert padded_context(1000, 3) == (512, 1536)
    assert padded_context(1, 1) == (256, 256)


def test_a_tied_output_is_counted_on_the_gpu_as_well() -> None:
    file = shape(DENSE_GQA, "Q4_K_M", layers=2)
    file.tensors = [tensor for tensor in file.tensors if tensor[0] != "output.weight"]
    tied = facts(file)
    table = next(tensor.nbytes for tensor in tied.tensors if tensor.name == "token_embd.weight")
    found = place(tied, machine(gpus=(gpu(24),)), Wanted(4096))
    assert placed_bytes(found) == tied.total_bytes + table


def test_the_prompt_cache_is_part_of_the_budget() -> None:
    need = place(small("dense"), machine(memory_gib=64), Wanted(4096)).memory[-1].used
    tight = machine(memory_gib=(need + 400 * MIB) / GIB)
    assert place(small("dense"), tight, Wanted(4096, streaming=False)).verdict == FITS
    assert place(small("dense"), tight, Wanted(4096, cache_ram_mib=8192, streaming=False)).verdict == NO


def test_fits_but_not_beside_what_runs_now() -> None:
    found = place(kimi(), machine(memory_gib=384, available_gib=200), Wanted(4096))
    assert found.verdict == FITS
    assert "only without other load" in found.notes[0]


def test_streaming_turns_repacking_off_and_says_what_stays() -> None:
    found = place(kimi(), machine(memory_gib=256), Wanted(4096))
    assert (found.repack, found.load_mode) == (False, "mmap")
    assert 0.5 < found.resident < 1
    assert place(kimi(), machine(memory_gib=256), Wanted(4096, streaming=False)).verdict == NO
    assert place(kimi(), machine(memory_gib=512), Wanted(4096)).repack


def test_a_gpu_too_small_for_a_layer_stays_unused() -> None:
    found = place(kimi(), machine(memory_gib=512, gpus=(gpu(0.5),)), Wanted(32768))
    assert found.kind == "CPU only"
    assert len(found.memory) == 2
    assert "stay unused" in found.notes[-1]


def test_no_copies_of_experts_where_there_is_no_room_for_them() -> None:
    small_gpu = place(kimi("Q8_0"), machine(memory_gib=1200, gpus=(gpu(17),)), Wanted(4096))
    large_gpu = place(kimi("Q8_0"), machine(memory_gib=1200, gpus=(gpu(48),)), Wanted(4096))
    assert large_gpu.op_offload
    assert large_gpu.ubatch == 2048
    assert not (small_gpu.op_offload and small_gpu.gpu_layers == 62)


@pytest.mark.parametrize(
    ("device", "vram", "ubatch", "on_gpu", "in_memory"),
    [
        # what llama-fit-params of build 11434 says of Kimi K2 Q2_K_S with 8192 tokens: MiB on the GPU and in main memory
        ("RPC0", 1024, 2048, 1536, 256),
        ("RPC0", 40, 2048, 1504, 1040),  # the results of experts, in main memory
        ("Vulkan0", 1024, 1024, 768, 128),  # in blocks of 1 GiB: 2048 tokens would take 2624
        ("Vulkan0", 40, 1024, 5332, 128),  # copies of expert tensors of both sizes: each outgrows a block
    ],
)
def test_compute_buffers_of_a_hybrid(device: str, vram: float, ubatch: int, on_gpu: int, in_memory: int) -> None:
    card = replace(gpu(vram), device=device)
    found = place(kimi("Q2_K_S"), machine(memory_gib=1200, gpus=(card,)), Wanted(8192))
    assert found.ubatch == ubatch
    assert [row.compute.nbytes / MIB for row in found.memory] == pytest.approx([on_gpu, in_memory], rel=0.15)


@pytest.mark.parametrize(("context", "first"), [(8192, 136), (32768, 200), (131072, 680)])
def test_a_gpu_also_works_on_the_cache_of_layers_in_main_memory(context: int, first: int) -> None:
    # llama-fit-params of build 11434: half of a dense 8B on two Vulkan devices; mask, K and V of one layer grow with the context
    model = facts(shape(DENSE_GQA, "Q4_K_M"))
    size = model.total_bytes * 0.25 / GIB + context / 32768 * 1.1 + 1
    gpus = tuple(replace(gpu(size, number), device=f"Vulkan{number}") for number in range(2))
    found = place(model, machine(memory_gib=64, gpus=gpus), Wanted(context))
    assert 0 < found.gpu_layers < 32
    assert found.memory[0].compute.nbytes / MIB == pytest.approx(first, abs=40)


def test_several_slots_of_mla_on_vulkan_cost_main_memory_and_speed() -> None:
    # llama-fit-params of build 11434: 120 MiB in main memory with one slot of 4096, 192 with two
    card = replace(gpu(1024), device="Vulkan0")
    one, two = (place(kimi(), machine(gpus=(card,)), Wanted(4096 * slots, slots)) for slots in (1, 2))
    assert one.memory[-1].compute.nbytes / MIB == pytest.approx(120, abs=16)
    assert two.memory[-1].compute.nbytes / MIB == pytest.approx(192, abs=16)
    assert any("one slot" in note for note in two.notes)
    assert not any("one slot" in note for note in one.notes)
    assert not any("one slot" in note for note in place(kimi(), machine(gpus=(gpu(1024),)), Wanted(8192, 2)).notes)


def on_vulkan(vram: float, limit: int, number: int = 0) -> Accelerator:
    return replace(gpu(vram, number), device=f"Vulkan{number}", largest_tensor=limit)


def test_expert_tensors_that_vulkan_cannot_bind_stay_in_main_memory() -> None:
    # Q4_K_M: ffn_down in Q6_K (4.3 GiB) in some layers, else Q4_K (2.95 GiB)
    model = kimi("Q4_K_M")
    found = place(model, machine(memory_gib=1200, gpus=(on_vulkan(1024, 2**32 - 1),)), Wanted(8192))
    large = {tensor.layer for tensor in model.tensors if tensor.nbytes >= 2**32}
    assert 0 < len(large) < 60
    assert set(found.gpu_experts[0]) == set(range(1, 61)) - large
    assert found.verdict == FITS
    assert found.gpu_layers == 62
    assert any(f"{len(large)} layers stay in main memory" in note for note in found.notes)


def test_a_gpu_that_cannot_bind_the_output_stays_unused() -> None:
    found = place(small("dense"), machine(gpus=(on_vulkan(24, 128 * MIB),)), Wanted(4096))
    assert found.kind == "CPU only"
    assert "more than they take (128 MiB)" in found.notes[-1]
    mixed = place(small("dense"), machine(gpus=(on_vulkan(24, 128 * MIB), gpu(24, 1))), Wanted(4096))
    assert mixed.split == (0, 7)


@cache
def few_large_experts() -> ModelFacts:
    return facts(shape(KIMI_K2, "Q4_K_M", layers=8, experts=128))


@settings(max_examples=60, deadline=None)
@given(
    limit=st.integers(800 * MIB, 1600 * MIB),  # output 918 MiB, experts 1008 and 1470 MiB
    sizes=st.lists(st.floats(0.25, 48), min_size=1, max_size=3),
    context=st.integers(1, 200_000),
)
def test_nothing_larger_than_a_gpu_takes_is_put_on_it(limit: int, sizes: list[float], context: int) -> None:
    model = few_large_experts()
    gpus = tuple(on_vulkan(size, limit, number) for number, size in enumerate(sizes))
    found = place(model, machine(memory_gib=64, gpus=gpus), Wanted(context))
    placed = {layer for layers in found.gpu_experts for layer in layers}
    whole = range(model.layers + 1 - found.gpu_layers, model.layers + 1)
    for tensor in model.tensors:
        unit = model.layers if tensor.name == "output.weight" else tensor.layer
        there = tensor.layer in placed if tensor.tensor_class == ROUTED else unit in whole
        assert not there or tensor.nbytes <= limit, tensor.name


def test_quality_order() -> None:
    order = by_quality({"BF16": 16.0, "Q2": 2.6, "Q8_0": 8.5, "Q4": 4.5, "lying Q9": 1.6})
    assert order == ["Q8_0", "Q4", "Q2", "lying Q9", "BF16"]


memories = st.floats(0.5, 64, allow_nan=False)
gpu_sizes = st.lists(st.floats(0.25, 48, allow_nan=False), max_size=3)
contexts = st.integers(1, 200_000)


@cache
def mixed() -> ModelFacts:
    """Layers of one quant after layers of another, their expert tensors below and above a block of 1 GiB."""
    file = shape(replace(SMALL_MOE, embedding=4096, expert_feed_forward=1536), "Q8_0", layers=8, experts=192)
    file.tensors = [(name, dims, "Q4_K" if "_exps" in name and name < "blk.4" else kind) for name, dims, kind in file.tensors]
    return facts(file)


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(["mla", "dense", "moe", "mixed"]),
    memory=memories,
    sizes=gpu_sizes,
    backend=st.sampled_from(["CUDA", "Vulkan"]),
    context=contexts,
    slots=st.integers(1, 4),
    quantised=st.booleans(),
)
def test_no_plan_assigns_more_than_a_device_has(
    kind: str, memory: float, sizes: list[float], backend: str, context: int, slots: int, quantised: bool
) -> None:
    model = mixed() if kind == "mixed" else small(kind)
    cache_type = "q8_0" if quantised else "f16"
    gpus = tuple(replace(gpu(size, number), device=f"{backend}{number}") for number, size in enumerate(sizes))
    found = place(model, machine(memory_gib=memory, gpus=gpus), Wanted(max(context, slots), slots, cache_type, cache_type))
    for row in found.memory[:-1]:
        assert row.free >= 0
    if found.verdict != NO:
        assert found.memory[-1].free >= 0
    if found.verdict == STREAMS:
        assert 0 <= found.resident < 1
    assert placed_bytes(found) == model.total_bytes
    assert sum(row.kv.nbytes for row in found.memory) == model.cache.total_bytes(
        max(context, slots), cache_type, slots=slots, ubatch=found.ubatch
    )


def test_copies_of_what_is_left_have_room_whatever_is_left() -> None:
    # when only the large experts are left, two copies of one size live at once on Vulkan, which is more than one of each size
    for size in range(90, 220):
        card = replace(gpu(size / 10), device="Vulkan0")
        found = place(mixed(), machine(memory_gib=64, gpus=(card,)), Wanted(8192))
        assert found.memory[0].free >= 0, size


QUANT_SET = {"moe": ["Q8_0", "Q4_K_M", "Q3_K_M", "Q2_K", "IQ1_S"], "dense": ["F16", "Q8_0", "Q4_K_M", "Q2_K"]}


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["moe", "dense"]),
    memory=st.floats(0.5, 12),
    more=st.floats(0, 12),
    vram=st.floats(0, 12),
    more_vram=st.floats(0, 12),
    context=st.integers(256, 65536),
)
def test_more_memory_never_gives_a_worse_quant(
    kind: str, memory: float, more: float, vram: float, more_vram: float, context: int
) -> None:
    quants = {name: small(kind, name) for name in QUANT_SET[kind]}
    order = by_quality({name: model.bits_per_weight for name, model in quants.items()})

    def best(main: float, video: float) -> int:
        gpus = (gpu(video),) if video > 0 else ()
        plan = choose(machine(memory_gib=main, gpus=gpus), quants, Wish(context=context))
        return order.index(plan.quant) if plan.fits else len(order)

    now = best(memory, vram)
    assert best(memory + more, vram) <= now
    assert best(memory, vram + more_vram) <= now


@settings(max_examples=60, deadline=None)
@given(kind=kinds, memory=st.floats(2, 64), sizes=gpu_sizes, context=st.integers(1, 100_000), longer=st.integers(1, 100_000))
def test_a_longer_context_never_costs_less(kind: str, memory: float, sizes: list[float], context: int, longer: int) -> None:
    model = small(kind)
    hardware = machine(memory_gib=memory, gpus=tuple(gpu(size, number) for number, size in enumerate(sizes)))
    short, long = (place(model, hardware, Wanted(length)) for length in (context, context + longer))
    order = [FITS, STREAMS, NO]
    assert order.index(short.verdict) <= order.index(long.verdict)
    assert sum(row.kv.nbytes for row in short.memory) <= sum(row.kv.nbytes for row in long.memory)
    if not sizes:
        assert short.memory[-1].used + short.memory[-1].streamed <= long.memory[-1].used + long.memory[-1].streamed
    assert short.gpu_layers >= long.gpu_layers or short.verdict != long.verdict
