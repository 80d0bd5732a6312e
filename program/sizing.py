"""Estimate the memory that serving a model takes, from its header and its engine's settings. Pure.

Called by whoever places services on hosts or compares them with a budget. An estimate: it is meant to be a little too
large rather than too small. The formula and the byte table are those of LLMKube's agent, corrected for models whose
key and value heads are fewer than their attention heads, or wider than the embedding suggests.
"""

from __future__ import annotations

import math

from program.desired.base import Desired
from program.desired.model import GgufFacts

MIB = 1 << 20
COMPUTE_BYTES = 512 * MIB
"""Graph and scratch buffers of llama.cpp, whatever the model."""
UNKNOWN_SHARE = 1.2
"""Weights and cache together, as a multiple of the file, where the header does not say how large a cache is."""
DEFAULT_CONTEXT = 4096
"""Tokens, where neither the service nor the header names a context."""

# Bytes that one number takes in the cache; quantized types include their scales.
CACHE_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 1.0625,
    "q5_1": 0.75,
    "q5_0": 0.6875,
    "q4_1": 0.625,
    "q4_0": 0.5625,
    "iq4_nl": 0.5625,
    "turbo4": 0.53125,
    "turbo3": 0.40625,
}


class MemoryEstimate(Desired):
    """Where the memory goes, in bytes."""

    weights_bytes: int
    cache_bytes: int
    compute_bytes: int = COMPUTE_BYTES
    cache_known: bool
    """False: the header does not tell the cache's size, and `cache_bytes` is a share of the file."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.compute_bytes


def estimate_memory(
    size_bytes: int,
    gguf: GgufFacts | None,
    *,
    context_size: int | None = None,
    cache_type_k: str | None = None,
    cache_type_v: str | None = None,
) -> MemoryEstimate:
    """Estimate the memory of one llama.cpp process.

    `size_bytes` is the file's size. `context_size` is the whole context in tokens, which parallel slots share; None
    means the one the model was trained with. A cache type that is not in CACHE_BYTES counts as f16.
    """
    context = context_size or (gguf.context_length if gguf else None) or DEFAULT_CONTEXT
    cache = _cache_bytes(gguf, context, cache_type_k, cache_type_v) if gguf else None
    if cache is None:
        share = math.ceil(size_bytes * UNKNOWN_SHARE) - size_bytes
        return MemoryEstimate(weights_bytes=size_bytes, cache_bytes=share, cache_known=False)
    return MemoryEstimate(weights_bytes=size_bytes, cache_bytes=cache, cache_known=True)


def _cache_bytes(gguf: GgufFacts, context: int, type_k: str | None, type_v: str | None) -> int | None:
    """Size the key and value cache of all layers; None if the header lacks what that takes."""
    if not gguf.layer_count:
        return None
    keys = _width(gguf, gguf.key_length)
    values = _width(gguf, gguf.value_length)
    if keys is None or values is None:
        return None
    per_token = keys * _bytes_of(type_k) + values * _bytes_of(type_v)
    return math.ceil(gguf.layer_count * context * per_token)


def _width(gguf: GgufFacts, head_length: int | None) -> float | None:
    """Numbers that one token adds to one layer's keys (or values)."""
    heads = gguf.head_count
    if head_length and (gguf.head_count_kv or heads):
        return float((gguf.head_count_kv or heads or 0) * head_length)
    if not gguf.embedding_size:
        return None
    if heads and gguf.head_count_kv:
        return gguf.embedding_size / heads * gguf.head_count_kv
    return float(gguf.embedding_size)


def _bytes_of(cache_type: str | None) -> float:
    return CACHE_BYTES.get((cache_type or "f16").lower(), CACHE_BYTES["f16"])
