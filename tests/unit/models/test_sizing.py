"""The memory estimate: LLMKube's figures for plain attention, less for models that share heads."""

from __future__ import annotations

from program.desired.model import GgufFacts
from program.sizing import MIB, estimate_memory

GIB = 1 << 30
LLAMA = GgufFacts(layer_count=32, embedding_size=4096, head_count=32, context_length=8192)


def test_plain_attention_is_sized_as_the_peer_does() -> None:
    estimate = estimate_memory(4831838208, LLAMA, context_size=2048)
    assert estimate.cache_bytes == 1073741824
    assert estimate.total_bytes == 6 * GIB
    assert estimate.cache_known


def test_shared_key_and_value_heads_make_the_cache_smaller() -> None:
    grouped = LLAMA.model_copy(update={"head_count_kv": 8})
    assert estimate_memory(GIB, grouped, context_size=2048).cache_bytes == 1073741824 // 4


def test_wide_heads_count_by_their_own_length() -> None:
    # Qwen3-30B-A3B: 2048 wide, 32 heads of 128, 4 of them for keys and values.
    qwen = GgufFacts(
        layer_count=48, embedding_size=2048, head_count=32, head_count_kv=4, key_length=128, value_length=128
    )
    assert estimate_memory(GIB, qwen, context_size=1000).cache_bytes == 48 * 1000 * 4 * 128 * (2 + 2)


def test_each_cache_type_takes_its_own_bytes() -> None:
    full = estimate_memory(GIB, LLAMA, context_size=2048).cache_bytes
    half = estimate_memory(GIB, LLAMA, context_size=2048, cache_type_k="q8_0", cache_type_v="q8_0").cache_bytes
    mixed = estimate_memory(GIB, LLAMA, context_size=2048, cache_type_k="Q4_0").cache_bytes
    unknown = estimate_memory(GIB, LLAMA, context_size=2048, cache_type_k="new", cache_type_v="f16").cache_bytes
    assert half == full * 1.0625 / 2
    assert mixed == full / 2 * (1 + 0.5625 / 2)
    assert unknown == full


def test_without_a_context_the_model_s_own_counts() -> None:
    assert estimate_memory(GIB, LLAMA).cache_bytes == estimate_memory(GIB, LLAMA, context_size=8192).cache_bytes


def test_a_header_without_sizes_gives_a_share_of_the_file() -> None:
    for facts in (None, GgufFacts(), GgufFacts(layer_count=4)):
        estimate = estimate_memory(1000 * MIB, facts, context_size=2048)
        assert not estimate.cache_known
        assert estimate.total_bytes == 1200 * MIB + 512 * MIB
