"""Writes LoRA adapters of the tiny model (`tools.tiny_model`)."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy

from tools.tiny_model import Shape

RANK = 4


def write_adapter(path: Path, *, seed: int) -> Path:
    """Write an adapter of the tiny model, whose random weights change every answer."""
    writer, random, shape = gguf.GGUFWriter(str(path), "llama"), numpy.random.default_rng(seed), Shape()
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0 * RANK)
    for layer in range(shape.layers):
        tensor = f"blk.{layer}.attn_output.weight"
        writer.add_tensor(f"{tensor}.lora_a", random.standard_normal((RANK, shape.width)).astype(numpy.float32))
        writer.add_tensor(f"{tensor}.lora_b", random.standard_normal((shape.width, RANK)).astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
