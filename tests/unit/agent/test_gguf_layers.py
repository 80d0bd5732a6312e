"""Which layers of hybrid models have a KV cache, and the state of the others, by llama.cpp's formulas.

The numbers of the real models are those of their headers. `llama-server` 11434 reported the same buffers for generated
models of the small shapes.
"""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest

from agent.server.models.gguf_header import read_header
from agent.server.models.gguf_layers import HYBRID, layer_facts
from program.desired.model import GgufFacts
from program.runtimes.llamacpp_memory import MIB, Serving, model_memory
from tests.unit.agent.test_gguf_header import array, header, number, string

F32 = 4
QWEN = {"ssm.conv_kernel": 4, "ssm.group_count": 16, "ssm.state_size": 128}


def facts_of(architecture: str, numbers: dict[str, int], **lists: tuple[int, ...]) -> GgufFacts:
    """Read a header with these keys of an architecture; `__` in the name of a list stands for a dot."""
    pairs = [string("general.architecture", architecture)]
    pairs += [number(f"{architecture}.{key}", value) for key, value in numbers.items()]
    for key, values in lists.items():
        data = struct.pack(f"<{len(values)}i", *values)
        pairs.append(array(f"{architecture}.{key.replace('__', '.')}", 5, len(values), data))
    return read_header(io.BytesIO(header(*pairs, tensors=0)))


def qwen(layers: int, *, width: int, heads: int, kv: int, inner: int, **more: int) -> GgufFacts:
    numbers = {
        "block_count": layers,
        "embedding_length": width,
        "context_length": 262144,
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "ssm.inner_size": inner,
        **QWEN,
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    return facts_of("qwen35", numbers)


def cache(facts: GgufFacts, **serving: Any) -> int:
    return model_memory(facts, Serving(**serving), weights_bytes=1).cache_bytes


def test_qwen_3_6_27b_has_a_cache_in_16_of_64_layers() -> None:
    found = qwen(64, width=5120, heads=24, kv=4, inner=6144, full_attention_interval=4)
    assert found.head_counts_kv == (0, 0, 0, 4) * 16
    # n_embd_r = (4 - 1) * (6144 + 2 * 16 * 128), n_embd_s = 128 * 6144, in the 48 other layers.
    assert found.recurrent_bytes == 48 * (3 * (6144 + 2 * 16 * 128) + 128 * 6144) * F32 == 156_893_184
    assert cache(found, context=262144, slots=1) == 16 * 1024 * MIB + 156_893_184
    assert cache(found, context=32768) == 2 * 1024 * MIB + 4 * 156_893_184


def test_the_cache_of_qwen_3_6_is_a_quarter_of_that_of_all_layers() -> None:
    found = qwen(64, width=5120, heads=24, kv=4, inner=6144)
    dense = found.model_copy(update={"head_counts_kv": (), "recurrent_bytes": None})
    assert cache(dense, context=262144) == 4 * 16 * 1024 * MIB


def test_the_head_for_draft_tokens_has_no_cache_and_no_state() -> None:
    found = qwen(65, width=5120, heads=24, kv=4, inner=6144, nextn_predict_layers=1)
    assert found.head_counts_kv == (*(0, 0, 0, 4) * 16, 0)
    assert found.recurrent_bytes == 156_893_184


def test_a_mixture_of_experts_is_hybrid_in_the_same_way() -> None:
    numbers = {
        "block_count": 41,
        "embedding_length": 2048,
        "nextn_predict_layers": 1,
        "attention.head_count": 16,
        "attention.head_count_kv": 2,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "ssm.inner_size": 4096,
        **QWEN,
    }
    found = facts_of("qwen35moe", numbers)
    assert sum(map(bool, found.head_counts_kv)) == 10
    assert found.recurrent_bytes == 30 * (3 * (4096 + 4096) + 128 * 4096) * F32 == 65_863_680
    assert cache(found, context=262144, slots=1) == 5120 * MIB + 65_863_680


def test_a_list_of_recurrent_layers_goes_before_the_interval() -> None:
    flags = array("qwen35.attention.recurrent_layers", 7, 4, bytes([0, 1, 1, 0]))
    numbers = {"block_count": 4, "attention.head_count": 4, "attention.head_count_kv": 2, "full_attention_interval": 2}
    pairs = [number(f"qwen35.{key}", value) for key, value in numbers.items()]
    found = read_header(io.BytesIO(header(string("general.architecture", "qwen35"), *pairs, flags, tensors=0)))
    assert found.head_counts_kv == (2, 0, 0, 2)


def test_heads_that_are_listed_layer_by_layer_are_kept() -> None:
    found = facts_of("qwen3next", {"block_count": 4}, attention__head_count_kv=(0, 0, 0, 8))
    assert found.head_counts_kv == (0, 0, 0, 8)


def test_granite_4_h_tiny_has_a_cache_in_4_of_40_layers() -> None:
    heads = tuple(4 if layer % 10 == 5 else 0 for layer in range(40))
    numbers = {
        "block_count": 40,
        "embedding_length": 1536,
        "attention.head_count": 12,
        "ssm.conv_kernel": 4,
        "ssm.group_count": 1,
        "ssm.state_size": 128,
        "ssm.inner_size": 3072,
    }
    found = facts_of("granitehybrid", numbers, attention__head_count_kv=heads)
    assert found.head_counts_kv == heads
    assert found.recurrent_bytes == 36 * (3 * (3072 + 2 * 128) + 128 * 3072) * F32
    assert cache(found, context=8192, slots=1) == 4 * 4 * 256 * 8192 * 2 + (found.recurrent_bytes or 0)


def test_lfm2_keeps_two_tokens_in_each_convolution() -> None:
    heads = (0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0)
    numbers = {"block_count": 16, "embedding_length": 2048, "attention.head_count": 32, "shortconv.l_cache": 3}
    found = facts_of("lfm2", numbers, attention__head_count_kv=heads)
    assert found.recurrent_bytes == 10 * 2048 * 2 * F32
    assert facts_of("lfm2moe", numbers, attention__head_count_kv=heads).recurrent_bytes == found.recurrent_bytes


def test_a_feed_forward_layer_of_nemotron_h_keeps_nothing() -> None:
    numbers = {
        "block_count": 6,
        "embedding_length": 64,
        "attention.head_count": 8,
        "ssm.conv_kernel": 4,
        "ssm.group_count": 8,
        "ssm.state_size": 16,
        "ssm.inner_size": 128,
    }
    found = facts_of(
        "nemotron_h",
        numbers,
        attention__head_count_kv=(0, 0, 2, 0, 0, 0),
        feed_forward_length=(0, 256, 0, 256, 0, 256),
    )
    assert found.head_counts_kv == (0, 0, 2, 0, 0, 0)
    assert found.recurrent_bytes == 2 * (3 * (128 + 2 * 8 * 16) + 16 * 128) * F32


def test_jamba_s_state_has_no_groups() -> None:
    numbers = {
        "block_count": 4,
        "embedding_length": 64,
        "attention.head_count": 8,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 16,
        "ssm.inner_size": 128,
    }
    found = facts_of("jamba", numbers, attention__head_count_kv=(0, 0, 2, 0))
    assert found.recurrent_bytes == 3 * (3 * 128 + 16 * 128) * F32


def test_each_layer_of_falcon_h1_has_a_cache_and_a_state() -> None:
    numbers = {
        "block_count": 24,
        "embedding_length": 2048,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "attention.key_length": 128,
        "attention.value_length": 128,
        "ssm.conv_kernel": 4,
        "ssm.group_count": 1,
        "ssm.state_size": 256,
        "ssm.inner_size": 3072,
    }
    found = facts_of("falcon-h1", numbers)
    assert found.head_counts_kv == ()
    assert found.recurrent_bytes == 24 * (3 * (3072 + 2 * 256) + 256 * 3072) * F32
    assert cache(found, context=4096, slots=1) == 24 * 2 * 256 * 4096 * 2 + (found.recurrent_bytes or 0)


@pytest.mark.parametrize(
    ("facts", "serving", "kv_mib", "state_mib"),
    [
        (("qwen35", 8, (4, 4, 64, 512)), {}, 16.0, 3.28),
        (("qwen35", 8, (4, 4, 64, 512)), {"slots": 1}, 16.0, 0.82),
        (("qwen35", 8, (4, 4, 64, 512)), {"slots": 2, "context": 4096}, 4.0, 1.64),
        (("granitehybrid", 10, (4, 1, 64, 1024)), {}, 16.0, 8.42),
        (("granitehybrid", 10, (4, 1, 64, 1024)), {"slots": 2, "context": 4096}, 4.0, 4.21),
    ],
)
def test_the_parts_are_those_that_llama_server_reports(
    facts: tuple[str, int, tuple[int, ...]], serving: dict[str, Any], kv_mib: float, state_mib: float
) -> None:
    architecture, layers, (kernel, groups, state, inner) = facts
    numbers = {
        "block_count": layers,
        "embedding_length": 512,
        "context_length": 16384,
        "attention.head_count": 8,
        "ssm.conv_kernel": kernel,
        "ssm.group_count": groups,
        "ssm.state_size": state,
        "ssm.inner_size": inner,
    }
    if architecture == "qwen35":
        found = facts_of(architecture, numbers | {"attention.head_count_kv": 2, "full_attention_interval": 4})
    else:
        found = facts_of(architecture, numbers, attention__head_count_kv=(0, 0, 0, 0, 0, 2, 0, 0, 0, 2))
    assert cache(found, **serving) / MIB == pytest.approx(kv_mib + state_mib, abs=0.01)


def test_ordinary_models_keep_their_estimate() -> None:
    numbers = {"block_count": 4, "embedding_length": 64, "attention.head_count": 4, "ssm.inner_size": 9, **QWEN}
    found = facts_of("llama", numbers, attention__head_count_kv=(2, 0, 1, 2), feed_forward_length=(1, 2, 3, 4))
    assert (found.head_counts_kv, found.recurrent_bytes) == ((2, 0, 1, 2), None)
    assert "llama" not in HYBRID


@pytest.mark.parametrize("architecture", sorted(HYBRID))
def test_hostile_numbers_are_not_used(architecture: str) -> None:
    most = 1 << 40

    def hostile(_: str) -> int:
        return most

    assert layer_facts(architecture, hostile, {}) == ((), None)

    def large(key: str) -> int:
        return 8 if key == "block_count" else most

    assert layer_facts(architecture, large, {}).recurrent_bytes is None
    lists = {"attention.head_count_kv": (0,) * 8, "feed_forward_length": (0,) * 8}
    assert layer_facts(architecture, large, lists).recurrent_bytes is None


def test_a_hybrid_whose_header_lacks_sizes_keeps_the_heads() -> None:
    found = facts_of("qwen35", {"block_count": 8, "attention.head_count": 4})
    assert (found.head_counts_kv, found.recurrent_bytes) == ((0, 0, 0, 4) * 2, None)
    assert facts_of("nemotron_h", {"block_count": 2}, attention__head_count_kv=(0, 2)).recurrent_bytes is None
