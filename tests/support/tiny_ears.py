"""Writes a small audio encoder with which llama-server transcribes, beside the text model of `tools.tiny_model`.

It has the form of Qwen2-Audio's (Whisper's encoder and one projection), and random weights, so the words are nonsense,
but llama-server computes each of them from the sound.
"""

from __future__ import annotations

import io
import math
import struct
import wave
from pathlib import Path
from typing import Any

MEL_BINS, FRAMES = 80, 1500
WIDTH, HEADS, FEED_FORWARD = 32, 2, 64
TEXT_WIDTH = 64
"""The width of the text model."""


def write_tiny_ears(path: Path) -> Path:
    """Write the file for llama-server's `--mmproj`, and return its path."""
    import gguf
    import numpy

    random = numpy.random.default_rng(3)

    def weights(*shape: int, kind: Any = numpy.float32) -> Any:
        return (random.standard_normal(shape) * 0.1).astype(kind)

    writer = gguf.GGUFWriter(str(path), "clip")
    writer.add_string("clip.projector_type", "qwen2a")
    writer.add_bool("clip.has_audio_encoder", True)
    for name, value in (
        ("embedding_length", WIDTH),
        ("attention.head_count", HEADS),
        ("feed_forward_length", FEED_FORWARD),
        ("block_count", 1),
        ("projection_dim", TEXT_WIDTH),
        ("num_mel_bins", MEL_BINS),
    ):
        writer.add_uint32(f"clip.audio.{name}", value)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    tensors = {
        "a.conv1d.1.weight": weights(WIDTH, MEL_BINS, 3, kind=numpy.float16),
        "a.conv1d.1.bias": weights(WIDTH, 1),
        "a.conv1d.2.weight": weights(WIDTH, WIDTH, 3, kind=numpy.float16),
        "a.conv1d.2.bias": weights(WIDTH, 1),
        "a.position_embd.weight": weights(FRAMES, WIDTH),
        "a.post_ln.weight": weights(WIDTH),
        "a.post_ln.bias": weights(WIDTH),
        "mm.a.fc.weight": weights(TEXT_WIDTH, WIDTH) * 20,
        "mm.a.fc.bias": weights(TEXT_WIDTH),
    }
    block = "a.blk.0"
    for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
        tensors[f"{block}.{name}.weight"] = weights(WIDTH, WIDTH)
        if name != "attn_k":
            tensors[f"{block}.{name}.bias"] = weights(WIDTH)
    for name in ("ln1", "ln2"):
        tensors[f"{block}.{name}.weight"] = weights(WIDTH)
        tensors[f"{block}.{name}.bias"] = weights(WIDTH)
    tensors[f"{block}.ffn_up.weight"] = weights(FEED_FORWARD, WIDTH)
    tensors[f"{block}.ffn_up.bias"] = weights(FEED_FORWARD)
    tensors[f"{block}.ffn_down.weight"] = weights(WIDTH, FEED_FORWARD)
    tensors[f"{block}.ffn_down.bias"] = weights(WIDTH)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tone(hertz: float, seconds: float = 1.0) -> bytes:
    """Return a WAV file with a tone."""
    rate = 16_000
    samples = (int(12_000 * math.sin(2 * math.pi * hertz * number / rate)) for number in range(int(rate * seconds)))
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(rate)
        written.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
    return file.getvalue()
