"""Writes a real GGUF model of half a megabyte, with which demo, benchmarks and tests start a real llama-server quickly.

Called by `examples.demo`, the benchmarks, the tests, and by hand: `python -m tools.tiny_model FILE`. The weights are
random, so the answers are nonsense, but llama-server computes every token. The file is the same each time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 512
CONTEXT = 2048


ATTENTION_INTERVAL = 4


@dataclass(frozen=True)
class Recurrent:
    """The dimensions of a gated delta net."""

    kernel: int = 4
    """Tokens of its convolution."""
    groups: int = 4
    """Heads of keys."""
    state: int = 32
    """Numbers in a head's key and value."""
    heads: int = 4
    """Heads of values."""

    @property
    def inner(self) -> int:
        return self.state * self.heads

    @property
    def convolution(self) -> int:
        return self.inner + 2 * self.groups * self.state


@dataclass(frozen=True)
class Shape:
    """The dimensions of a model. The default loads in a second; other shapes are for checks of memory estimates."""

    architecture: str = "llama"
    """`llama`; `deci`, whose layers may have different heads; `gemma3`, most of whose layers attend to a window
    only; `qwen35`, of whose layers only every fourth has attention."""
    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int | tuple[int, ...] = 2
    """Of all layers, or layer by layer; 0 for a layer without them."""
    head_width: int | None = None
    """Numbers in a head's key and value; None means width / heads."""
    feed_forward: int = 128
    vocabulary: int = VOCABULARY
    context: int = CONTEXT
    experts: int = 0
    """Experts of each layer; 0 means a dense model."""
    sliding_window: int | None = None
    recurrent: Recurrent = Recurrent()
    """The other layers of `qwen35`."""

    def has_attention(self, layer: int) -> bool:
        return self.architecture != "qwen35" or (layer + 1) % ATTENTION_INTERVAL == 0

    def kv_heads_of(self, layer: int) -> int:
        return self.kv_heads if isinstance(self.kv_heads, int) else self.kv_heads[layer]


_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""Token types of the GGUF specification."""

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tiny_model(path: Path, *, name: str = "tiny", seed: int = 1, shape: Shape = Shape()) -> Path:
    """Write the model to `path` by one rename and return the path. The folder must exist.

    Another `seed` gives a file of the same shape with other weights.
    """
    # Imported here, because gguf imports numpy, which no other module of `tools` needs.
    import gguf
    import numpy

    draft = path.with_name(f".{path.name}.{os.getpid()}")
    head = shape.head_width or shape.width // shape.heads
    writer = gguf.GGUFWriter(str(draft), shape.architecture)
    writer.add_name(name)
    writer.add_license("Apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads if isinstance(shape.kv_heads, int) else list(shape.kv_heads))
    if shape.head_width:
        writer.add_key_length(head)
        writer.add_value_length(head)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(2)
    if shape.sliding_window:
        writer.add_sliding_window(shape.sliding_window)
    delta_net = shape.recurrent
    qwen = shape.architecture == "qwen35"
    if qwen:
        writer.add_uint32("qwen35.full_attention_interval", ATTENTION_INTERVAL)
        writer.add_array("qwen35.rope.dimension_sections", [head // 4, head // 8, head // 8, 0])
        writer.add_ssm_conv_kernel(delta_net.kernel)
        writer.add_ssm_group_count(delta_net.groups)
        writer.add_ssm_state_size(delta_net.state)
        writer.add_ssm_inner_size(delta_net.inner)
        writer.add_ssm_time_step_rank(delta_net.heads)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)
    tokens, scores, types = _vocabulary(shape.vocabulary)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(_CHAT_TEMPLATE)

    random = numpy.random.default_rng(seed)

    def weights(*shape: int) -> Any:
        return (random.standard_normal(shape) * 0.08).astype(numpy.float32)

    def ones(size: int = shape.width) -> Any:
        return numpy.ones(size, dtype=numpy.float32)

    # Gemma's output layer is its embedding.
    gemma = shape.architecture.startswith("gemma")
    width, hidden = shape.width, shape.feed_forward
    writer.add_tensor("token_embd.weight", weights(shape.vocabulary, width))
    writer.add_tensor("output_norm.weight", ones())
    if not gemma:
        writer.add_tensor("output.weight", weights(shape.vocabulary, width))
    for layer in range(shape.layers):
        block, kv_width = f"blk.{layer}", shape.kv_heads_of(layer) * head
        writer.add_tensor(f"{block}.attn_norm.weight", ones())
        if not shape.has_attention(layer):
            for part, size in _delta_net_tensors(delta_net, width):
                writer.add_tensor(f"{block}.{part}", weights(*size))
        else:
            if kv_width:
                # The queries of qwen35 contain a gate.
                queries = shape.heads * head * (2 if qwen else 1)
                writer.add_tensor(f"{block}.attn_q.weight", weights(queries, width))
                writer.add_tensor(f"{block}.attn_k.weight", weights(kv_width, width))
                writer.add_tensor(f"{block}.attn_v.weight", weights(kv_width, width))
            # A layer without key and value heads (as in `deci`) has a linear attention part.
            writer.add_tensor(f"{block}.attn_output.weight", weights(width, shape.heads * head))
            if qwen:
                writer.add_tensor(f"{block}.attn_q_norm.weight", ones(head))
                writer.add_tensor(f"{block}.attn_k_norm.weight", ones(head))
        writer.add_tensor(f"{block}.{'post_attention_norm' if qwen else 'ffn_norm'}.weight", ones())
        if gemma:
            writer.add_tensor(f"{block}.post_attention_norm.weight", ones())
            writer.add_tensor(f"{block}.post_ffw_norm.weight", ones())
        if shape.architecture == "gemma3":
            writer.add_tensor(f"{block}.attn_q_norm.weight", ones(head))
            writer.add_tensor(f"{block}.attn_k_norm.weight", ones(head))
        if shape.experts:
            writer.add_tensor(f"{block}.ffn_gate_inp.weight", weights(shape.experts, width))
            writer.add_tensor(f"{block}.ffn_gate_exps.weight", weights(shape.experts, hidden, width))
            writer.add_tensor(f"{block}.ffn_up_exps.weight", weights(shape.experts, hidden, width))
            writer.add_tensor(f"{block}.ffn_down_exps.weight", weights(shape.experts, width, hidden))
        else:
            writer.add_tensor(f"{block}.ffn_gate.weight", weights(hidden, width))
            writer.add_tensor(f"{block}.ffn_up.weight", weights(hidden, width))
            writer.add_tensor(f"{block}.ffn_down.weight", weights(width, hidden))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    draft.replace(path)
    return path


def _delta_net_tensors(net: Recurrent, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of the tensors of a recurrent layer of qwen35."""
    yield "attn_qkv.weight", (net.convolution, width)
    yield "attn_gate.weight", (net.inner, width)
    yield "ssm_conv1d.weight", (net.convolution, net.kernel)
    yield "ssm_dt.bias", (net.heads,)
    yield "ssm_a", (net.heads,)
    yield "ssm_beta.weight", (net.heads, width)
    yield "ssm_alpha.weight", (net.heads, width)
    yield "ssm_norm.weight", (net.state,)
    yield "ssm_out.weight", (width, net.inner)


def _vocabulary(size: int) -> tuple[list[str], list[float], list[int]]:
    """Return three control tokens, one token for each byte, and syllables, so that most answers are readable."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256]
    consonants, vowels = "bdfghklmnprstvw", "aeiou"
    syllables = [f"{space}{c}{v}" for space in ("", "\u2581") for c in consonants for v in vowels]
    letters = ["\u2581", *"abcdefghijklmnopqrstuvwxyz.,!?"]
    words = [*letters, *syllables]
    tokens += words + [f"<extra_{number}>" for number in range(size - len(tokens) - len(words))]
    types += [_NORMAL] * (size - len(types))
    scores = [0.0] * 259 + [-float(number) for number in range(1, size - 258)]
    return tokens, scores, types


if __name__ == "__main__":
    print(write_tiny_model(Path(sys.argv[1])))
