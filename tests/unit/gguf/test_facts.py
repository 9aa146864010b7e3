from __future__ import annotations

from pathlib import Path

import pytest

from bigiron.gguf.cache import CacheShape, cache_shape
from bigiron.gguf.errors import GgufError
from bigiron.gguf.facts import OUTPUT, ROUTED, SHARED, ModelFacts, model_facts, tensor_class
from bigiron.gguf.reader import read_file, read_header
from bigiron.gguf.sets import inspect_set
from bigiron.gguf.source import BytesSource
from fixtures.gguf import GgufFile, nbytes
from fixtures.gguf_models import DENSE_GQA, KIMI_K2, SMALL_MOE, typed_tensors, write_model


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelFacts, list[Path]]:
    paths = write_model(tmp_path_factory.mktemp("kimi"), KIMI_K2, "Q4_K_M")
    return model_facts([read_file(path) for path in paths]), paths


def test_kimi_k2_is_counted_exactly(kimi: tuple[ModelFacts, list[Path]]) -> None:
    facts, _ = kimi
    assert facts.parameters == 1_026_408_232_448
    assert (facts.tensor_count, facts.layers, facts.experts, facts.experts_used) == (1096, 61, 384, 8)
    assert sum(tensor.elements for tensor in facts.tensors if tensor.tensor_class == ROUTED) == 1_014_686_023_680
    assert facts.active_parameters == 1_014_686_023_680 * 8 // 384 + 11_722_208_768 - 163_840 * 7168
    assert (facts.context_trained, facts.vocabulary, facts.chat_template) == (131_072, 163_840, True)
    assert sorted(facts.routed_layer_bytes) == list(range(1, 61))
    assert sum(facts.routed_layer_bytes.values()) == facts.class_bytes[ROUTED]
    assert sum(facts.class_bytes.values()) == facts.total_bytes == sum(size for _, size in facts.quant_mix)


def test_kimi_k2_keeps_only_k(kimi: tuple[ModelFacts, list[Path]]) -> None:
    facts, _ = kimi
    per_token = facts.kv_bytes_per_token()
    assert (per_token["f16"], per_token["q8_0"], per_token["q4_0"]) == (70_272, 37_332, 19_764)
    assert facts.cache.total_bytes(131_072, "q8_0") == 131_072 * 37_332
    with pytest.raises(ValueError, match="equal cache types"):
        facts.cache.bytes_per_token("q8_0", "f16")


def test_the_set_is_sound_and_small_on_disk(kimi: tuple[ModelFacts, list[Path]]) -> None:
    facts, paths = kimi
    assert inspect_set(paths[3]).ok
    assert sum(path.stat().st_size for path in paths) > facts.total_bytes
    assert sum(path.stat().st_blocks for path in paths) * 512 < 16 << 20


# GB of plain llama-quantize mixes of Kimi K2, computed from the tensor list of the published model.
PUBLISHED = {
    "IQ1_S": 204.4,
    "IQ1_M": 227.9,
    "IQ2_XXS": 267.1,
    "Q2_K_S": 346.0,
    "Q2_K": 372.9,
    "IQ3_XXS": 394.1,
    "Q3_K_S": 442.1,
}
PUBLISHED |= {"Q3_K_M": 489.1, "IQ4_XS": 546.2, "Q4_0": 578.2, "Q4_K_S": 582.5, "Q4_K_M": 620.6, "Q5_K_M": 728.2, "Q6_K": 842.6}


@pytest.mark.parametrize("quant", PUBLISHED)
def test_generated_quants_have_the_published_sizes(quant: str) -> None:
    tensors = typed_tensors(KIMI_K2, quant)
    assert len(tensors) == 1096
    assert round(sum(nbytes(shape, kind) for _, shape, kind in tensors) / 1e9, 1) == PUBLISHED[quant]


def test_the_quant_is_what_most_bytes_are_whatever_the_file_claims(tmp_path: Path) -> None:
    file = GgufFile().add("general.architecture", "llama").add("general.file_type", 15).add("general.name", "x Q4_K_M")
    file.tensor("blk.0.attn_q.weight", (256, 64), "IQ2_XXS").tensor("blk.0.attn_norm.weight", (256,))
    facts = model_facts([read_file(file.write(tmp_path / "model-Q4_K_M.gguf"))])
    assert facts.quant == "IQ2_XXS"
    assert facts.quant_mix == (("IQ2_XXS", 4224), ("F32", 1024))
    assert facts.bits_per_weight == pytest.approx((4224 + 1024) * 8 / (256 * 65))


def test_a_dense_model_with_grouped_heads(tmp_path: Path) -> None:
    facts = model_facts([read_file(path) for path in write_model(tmp_path, DENSE_GQA, "Q4_K_M")])
    assert facts.parameters == 8_030_261_248
    assert facts.kv_bytes_per_token()["f16"] == 32 * 8 * (128 + 128) * 2
    assert facts.cache.bytes_per_token("q8_0", "f16") == 32 * 8 * (128 // 32 * 34 + 128 * 2)
    assert facts.active_parameters == facts.parameters - 128_256 * 4096
    assert facts.class_bytes[ROUTED] == 0


def test_a_small_mixture_of_experts(tmp_path: Path) -> None:
    facts = model_facts([read_file(path) for path in write_model(tmp_path, SMALL_MOE, "Q4_K_M")])
    assert facts.parameters == 30_532_122_624
    assert 2.9e9 < facts.active_parameters < 3.4e9
    assert facts.kv_bytes_per_token()["f16"] == 48 * 4 * 256 * 2


def test_tied_output_is_read_for_every_token() -> None:
    file = (
        GgufFile()
        .add("general.architecture", "gemma3")
        .tensor("token_embd.weight", (64, 100))
        .tensor("output_norm.weight", (64,))
    )
    facts = model_facts([read_header(BytesSource(file.bytes()))])
    assert facts.tied_output
    assert facts.active_parameters == facts.parameters == 6464


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("blk.3.ffn_gate_exps.weight", ROUTED),
        ("blk.3.ffn_gate_up_exps.weight", ROUTED),
        ("blk.3.ffn_down_chexps.weight", ROUTED),
        ("blk.3.ffn_down_shexp.weight", SHARED),
        ("blk.3.exp_probs_b.bias", SHARED),
        ("blk.3.attn_output.weight", SHARED),
        ("token_embd.weight", "embeddings"),
        ("per_layer_token_embd.weight", "embeddings"),
        ("output.weight", OUTPUT),
        ("output_norm.weight", OUTPUT),
    ],
)
def test_tensor_classes(name: str, expected: str) -> None:
    assert tensor_class(name) == expected


def shape(arch: str, **keys: object) -> CacheShape:
    file = GgufFile().add("general.architecture", arch)
    names = {"embedding_length": 1024, "attention.head_count": 8, "block_count": 12, **keys}
    for name, value in names.items():
        file.add(f"{arch}.{name}", value)
    return cache_shape(read_header(BytesSource(file.bytes())))


def test_gemma3_slides_five_layers_of_six_like_the_built_server() -> None:
    """The demo model: 39 MiB of f16 at 8,192 tokens, as llama-fit-params of build 11434 prints."""
    keys = {"embedding_length": 640, "block_count": 18, "attention.head_count": 4, "attention.head_count_kv": 1}
    cache = shape(
        "gemma3", **keys, **{"attention.key_length": 256, "attention.value_length": 256, "attention.sliding_window": 512}
    )
    assert [layer.index for layer in cache.layers if not layer.sliding] == [5, 11, 17]
    assert cache.total_bytes(8192, "f16") == 39 << 20
    assert cache.total_bytes(8192, "f16", swa_full=True) == 8192 * 18 * 2 * 256 * 2


def test_patterns_come_from_the_header_where_it_has_one() -> None:
    cache = shape("gpt-oss", **{"attention.sliding_window": 128})
    assert [layer.sliding for layer in cache.layers] == [True, False] * 6
    cache = shape("gpt-oss", **{"attention.sliding_window": 128, "attention.sliding_window_pattern": [True] * 9 + [False] * 3})
    assert [layer.sliding for layer in cache.layers] == [True] * 9 + [False] * 3
    assert shape("phi3", **{"attention.sliding_window": 128}).window == 0
    assert shape("llama", **{"attention.sliding_window": 128}).window == 0
    assert [layer.sliding for layer in shape("cohere2moe", **{"attention.sliding_window": 64}).layers][:5] == [
        False, True, True, True, False,
    ]  # fmt: skip


def test_recurrent_state_does_not_grow_with_context() -> None:
    cache = shape("mamba", **{"ssm.conv_kernel": 4, "ssm.inner_size": 2048, "ssm.state_size": 16})
    assert cache.bytes_per_token("f16") == 0
    assert cache.state_bytes_per_sequence == 12 * 4 * (3 * 2048 + 16 * 2048)
    assert cache.total_bytes(512, "f16", slots=2) == cache.total_bytes(10**6, "f16", slots=2)


def test_hybrids_keep_both() -> None:
    cache = shape(
        "qwen3next",
        **{
            "attention.head_count_kv": 2,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 512,
            "ssm.state_size": 16,
            "ssm.group_count": 2,
        },
    )
    assert [layer.index for layer in cache.layers if layer.k] == [3, 7, 11]
    assert cache.state_bytes_per_sequence == 9 * 4 * (3 * (512 + 2 * 2 * 16) + 16 * 512)
    heads = [0, 0, 2] * 4
    lfm = shape("lfm2", **{"attention.head_count_kv": heads, "shortconv.l_cache": 3})
    assert [layer.k for layer in lfm.layers] == [0, 0, 2 * 128] * 4
    assert lfm.state_bytes_per_sequence == 8 * 4 * 1024 * 2


def test_layers_that_only_predict_ahead_keep_nothing() -> None:
    assert len(shape("deepseek2", nextn_predict_layers=1).layers) == 11


def test_a_type_whose_blocks_do_not_fit_is_not_offered() -> None:
    cache = shape("llama", **{"attention.key_length": 80, "attention.value_length": 80, "attention.head_count_kv": 1})
    assert cache.legal_types() == ("f32", "f16", "bf16")
    with pytest.raises(ValueError, match="whole blocks"):
        cache.bytes_per_token("q8_0")
    with pytest.raises(ValueError, match="no cache type"):
        cache.bytes_per_token("q6_k")


def test_slots_divide_the_context_and_never_save_memory() -> None:
    cache = shape("llama")
    assert cache.total_bytes(4096, "f16", slots=4) == cache.total_bytes(4096, "f16")
    assert cache.total_bytes(4096, "f16", slots=4, unified=True) == cache.total_bytes(4096, "f16")
    assert cache.total_bytes(1000, "f16") == cache.total_bytes(1024, "f16")
    assert cache.total_bytes(100, "f16", slots=3) == cache.total_bytes(768, "f16")
    sizes = [cache.total_bytes(context, "q8_0") for context in range(1, 6000, 97)]
    assert sizes == sorted(sizes)


def test_architectures_with_a_second_cache_say_so() -> None:
    assert not shape("deepseek32").exact
    assert shape("deepseek2").exact


def test_what_cannot_be_told_is_an_error(tmp_path: Path) -> None:
    paths = write_model(tmp_path, KIMI_K2, "Q2_K", max_bytes=200 * 10**9)
    headers = [read_file(path) for path in paths]
    for part, message in (([], "no header"), (headers[1:], "first shard"), (headers[:-1], "split.tensors.count is 1096")):
        with pytest.raises(GgufError, match=message):
            model_facts(part)
    with pytest.raises(GgufError, match=r"block_count.*whole number"):
        shape("llama", block_count="many")
