"""Writes a real GGUF model of half a megabyte, so that demo, benchmarks and tests run a real llama-server at once.

Called by `examples.demo`, the benchmarks, the tests, and by hand: `python -m tools.tiny_model FILE`. The weights are
random: the model speaks nonsense, and llama-server computes every token of it. The same file comes out each time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

LAYERS = 2
WIDTH = 64
HEADS = 4
KV_HEADS = 2
FEED_FORWARD = 128
VOCABULARY = 512
CONTEXT = 2048

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""Token types of the GGUF specification."""

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tiny_model(path: Path, *, name: str = "tiny", seed: int = 1) -> Path:
    """Write the model to `path` and return it; a reader never sees half of it. The folder must exist.

    Another `seed` gives a file of the same shape with other weights.
    """
    # Imported here: gguf brings numpy, which nothing else of `tools` needs.
    import gguf
    import numpy

    draft = path.with_name(f".{path.name}.{os.getpid()}")
    writer = gguf.GGUFWriter(str(draft), "llama")
    writer.add_name(name)
    writer.add_license("Apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    tokens, scores, types = _vocabulary()
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

    def ones() -> Any:
        return numpy.ones(WIDTH, dtype=numpy.float32)

    head = WIDTH // HEADS
    writer.add_tensor("token_embd.weight", weights(VOCABULARY, WIDTH))
    writer.add_tensor("output_norm.weight", ones())
    writer.add_tensor("output.weight", weights(VOCABULARY, WIDTH))
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        writer.add_tensor(f"{block}.attn_norm.weight", ones())
        writer.add_tensor(f"{block}.attn_q.weight", weights(WIDTH, WIDTH))
        writer.add_tensor(f"{block}.attn_k.weight", weights(KV_HEADS * head, WIDTH))
        writer.add_tensor(f"{block}.attn_v.weight", weights(KV_HEADS * head, WIDTH))
        writer.add_tensor(f"{block}.attn_output.weight", weights(WIDTH, WIDTH))
        writer.add_tensor(f"{block}.ffn_norm.weight", ones())
        writer.add_tensor(f"{block}.ffn_gate.weight", weights(FEED_FORWARD, WIDTH))
        writer.add_tensor(f"{block}.ffn_up.weight", weights(FEED_FORWARD, WIDTH))
        writer.add_tensor(f"{block}.ffn_down.weight", weights(WIDTH, FEED_FORWARD))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    draft.replace(path)
    return path


def _vocabulary() -> tuple[list[str], list[float], list[int]]:
    """Three control tokens, one for each byte, and syllables, so that most of what it says can be read."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256]
    consonants, vowels = "bdfghklmnprstvw", "aeiou"
    syllables = [f"{space}{c}{v}" for space in ("", "\u2581") for c in consonants for v in vowels]
    letters = ["\u2581", *"abcdefghijklmnopqrstuvwxyz.,!?"]
    words = [*letters, *syllables]
    tokens += words + [f"<extra_{number}>" for number in range(VOCABULARY - len(tokens) - len(words))]
    types += [_NORMAL] * (VOCABULARY - len(types))
    scores = [0.0] * 259 + [-float(number) for number in range(1, VOCABULARY - 258)]
    return tokens, scores, types


if __name__ == "__main__":
    print(write_tiny_model(Path(sys.argv[1])))
