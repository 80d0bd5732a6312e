"""Estimates the memory of llama-server, from a model's header and the server's arguments. Pure.

`program.sizing` calls it for a service, an agent for a process before its start. `benchmarks.estimates` compares it
with llama-server's report. The rules are llama.cpp's (build 11434): how it pads a context and divides it among slots,
the size of a sliding window's cache, and which tensors of one batch its graph keeps at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from program.desired.base import FrozenModel
from program.desired.facts import MemoryFacts
from program.desired.model import GgufFacts
from program.runtimes.flags import number_of, switched, word_of

MIB = 1 << 20
UNKNOWN_COMPUTE_BYTES = 512 * MIB
"""For a header without the model's width."""
UNKNOWN_CACHE_SHARE = 0.2
"""The cache as a share of the weights, for a header without the numbers to compute its size."""
DEFAULT_CONTEXT = 4096
"""Tokens, if neither the service nor the header names a context."""
PROJECTOR_COMPUTE_SHARE = 0.2
"""The buffers for encoding one picture, as a share of the projector's weights: its header lacks the numbers."""
FITTED_CONTEXT = 4096
"""Tokens. llama-server does not shorten a context below this to make it fit."""
DEFAULT_SLOTS = 4
"""llama-server's number of slots if no argument sets it; these slots share one cache."""
DEFAULT_BATCH = 2048
DEFAULT_UBATCH = 512
PADDING = 256
"""The number of cells of a cache is a multiple of this."""
_FLOAT = 4

# Bytes of one number in the cache; quantized types include their scales.
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

# Of this many consecutive layers, all except the last use a sliding window. Few headers contain this number; llama.cpp
# has it by architecture.
_WINDOW_PERIOD = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "cohere2": 4,
    "exaone4": 4,
    "olmo2": 4,
    "smallthinker": 4,
}


class Serving(FrozenModel):
    """The arguments of llama-server that its memory depends on."""

    context: int | None = None
    """Tokens of all slots together; None means the model's trained context."""
    slots: int | None = None
    """None: llama-server chooses."""
    unified: bool | None = None
    """Slots share one cache. None: they do only if llama-server chooses their number."""
    batch: int = DEFAULT_BATCH
    ubatch: int = DEFAULT_UBATCH
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: bool = True
    """False only if it is switched off: llama.cpp's `auto` enables it if the hardware supports it."""
    full_window_cache: bool = False
    gpu_layers: int = 0
    cpu_moe_layers: int = 0
    """Layers whose experts stay in RAM."""
    cache_in_ram: bool = False
    fits_context: bool = False
    """No argument sets the context, and llama-server may shorten the trained one to fit the GPU's memory."""


def serving_of(argv: list[str]) -> Serving:
    """Read llama-server's arguments as it does: the last of a repeated flag counts."""
    every = 1 << 20
    gpu_layers = word_of(argv, "--n-gpu-layers", "--gpu-layers", "-ngl")
    moe_layers = every if switched(argv, "--cpu-moe", "-cmoe") else number_of(argv, "--n-cpu-moe", "-ncmoe")
    unified = True if switched(argv, "--kv-unified", "-kvu") else None
    if switched(argv, "--no-kv-unified", "-no-kvu"):
        unified = False
    return Serving(
        context=number_of(argv, "--ctx-size", "-c") or None,
        slots=number_of(argv, "--parallel", "-np") or None,
        unified=unified,
        batch=number_of(argv, "--batch-size", "-b") or DEFAULT_BATCH,
        ubatch=number_of(argv, "--ubatch-size", "-ub") or DEFAULT_UBATCH,
        cache_type_k=(word_of(argv, "--cache-type-k", "-ctk") or "f16").lower(),
        cache_type_v=(word_of(argv, "--cache-type-v", "-ctv") or "f16").lower(),
        flash_attention=word_of(argv, "--flash-attn", "-fa") not in ("off", "0", "disabled", "false"),
        full_window_cache=switched(argv, "--swa-full"),
        gpu_layers=int(gpu_layers) if gpu_layers.isdecimal() else every if gpu_layers else 0,
        cpu_moe_layers=moe_layers or 0,
        cache_in_ram=switched(argv, "--no-kv-offload", "-nkvo"),
        fits_context=not number_of(argv, "--ctx-size", "-c") and word_of(argv, "--fit", "-fit") != "off",
    )


def model_memory(gguf: GgufFacts, serving: Serving, *, weights_bytes: int) -> MemoryFacts:
    """Estimate the memory of serving one model. `weights_bytes` is the size of all its files."""
    weights = weights_bytes
    cells = _Cells.of(gguf, serving)
    cache = _cache_bytes(gguf, serving, cells)
    compute = _compute_bytes(gguf, serving, cells)
    return MemoryFacts(
        weights_bytes=weights,
        cache_bytes=math.ceil(weights * UNKNOWN_CACHE_SHARE) if cache is None else cache,
        compute_bytes=UNKNOWN_COMPUTE_BYTES if compute is None else compute,
        host_bytes=_host_bytes(gguf, serving, weights=weights, cache=cache or 0),
    )


def projector_memory(file_bytes: int) -> MemoryFacts:
    """Estimate the memory of a multimodal projector, in addition to its model."""
    return MemoryFacts(
        weights_bytes=file_bytes, cache_bytes=0, compute_bytes=math.ceil(file_bytes * PROJECTOR_COMPUTE_SHARE)
    )


def together(parts: Sequence[MemoryFacts]) -> MemoryFacts:
    """Add up the memory of one server for its model, its draft model and everything else that it loads."""
    return MemoryFacts(
        weights_bytes=sum(part.weights_bytes for part in parts),
        cache_bytes=sum(part.cache_bytes for part in parts),
        compute_bytes=sum(part.compute_bytes for part in parts),
        host_bytes=sum(part.host_bytes for part in parts),
    )


class _Cells(FrozenModel):
    """Cells (tokens) of llama.cpp's caches. Each of `streams` slots has a separate cache, unless they share one."""

    slots: int
    streams: int
    context: int
    """Per stream, in layers with full attention."""
    window: int
    """Per stream, in layers with sliding-window attention."""

    @classmethod
    def of(cls, gguf: GgufFacts, serving: Serving) -> _Cells:
        slots = serving.slots or DEFAULT_SLOTS
        unified = serving.unified if serving.unified is not None else serving.slots is None
        streams = 1 if unified else slots
        total = serving.context or gguf.context_length or DEFAULT_CONTEXT
        context = _padded(-(-_padded(total) // streams))
        window = context
        if gguf.sliding_window and not serving.full_window_cache:
            sharing = slots if unified else 1
            window = min(context, _padded(gguf.sliding_window * sharing + min(serving.ubatch, serving.batch)))
        return cls(slots=slots, streams=streams, context=context, window=window)


def _padded(cells: int) -> int:
    return -(-cells // PADDING) * PADDING


def _window_layers(gguf: GgufFacts) -> int:
    """Return the number of layers with sliding-window attention; 0 if it is unknown for the architecture."""
    if not gguf.sliding_window or not gguf.layer_count:
        return 0
    if gguf.sliding_window_layers is not None:
        return min(gguf.sliding_window_layers, gguf.layer_count)
    period = _WINDOW_PERIOD.get(gguf.architecture)
    return sum(1 for layer in range(gguf.layer_count) if layer % period < period - 1) if period else 0


def _head_widths(gguf: GgufFacts) -> tuple[float, float] | None:
    """Return the count of numbers in one head's key and value; None if the header lacks them."""
    even = gguf.embedding_size / gguf.head_count if gguf.embedding_size and gguf.head_count else None
    key = gguf.key_length or even
    value = even if gguf.value_length is None else gguf.value_length
    return None if key is None or value is None else (key, value)


def _cache_bytes(gguf: GgufFacts, serving: Serving, cells: _Cells) -> int | None:
    """Return the size in bytes of the key and value cache of all layers; None if the header lacks the numbers.

    Recurrent layers keep a state of fixed size for each slot instead, also if the slots share one cache.
    """
    widths = _head_widths(gguf)
    heads = gguf.head_count_kv if gguf.head_count_kv is not None else gguf.head_count
    if not gguf.layer_count or widths is None or heads is None:
        return None
    all_heads = sum(gguf.head_counts_kv) if gguf.head_counts_kv else heads * gguf.layer_count
    windowed = all_heads * _window_layers(gguf) / gguf.layer_count
    tokens = windowed * cells.window + (all_heads - windowed) * cells.context
    per_head = widths[0] * _bytes_of(serving.cache_type_k) + widths[1] * _bytes_of(serving.cache_type_v)
    return math.ceil(tokens * cells.streams * per_head) + cells.slots * (gguf.recurrent_bytes or 0)


def _compute_bytes(gguf: GgufFacts, serving: Serving, cells: _Cells) -> int | None:
    """Return the size in bytes of the buffers for a batch's graph and logits; None if the header lacks the numbers.

    The memory of a tensor is reused after its last reader, so the buffer has the size of the graph's largest moment:
    within attention, within the feed-forward layer, or at the logits. The numbers of simultaneous tensors at each
    moment come from llama-server's reports for models of different sizes.
    """
    widths = _head_widths(gguf)
    if not gguf.embedding_size or widths is None:
        return None
    tokens = min(serving.ubatch, serving.batch, cells.context * cells.streams)
    unit = tokens * _FLOAT
    hidden = gguf.embedding_size * unit
    query = (gguf.head_count or 1) * widths[0] * unit
    kv = (gguf.head_count_kv or 1) * (widths[0] + widths[1]) * unit
    masked = cells.context + (cells.window if _window_layers(gguf) else 0)
    mask = masked * tokens * (_FLOAT // 2)
    attention = 3 * hidden + 2 * query + kv
    if not serving.flash_attention:
        # Without it, all scores of all heads exist at the same time, and the masks are twice as wide.
        mask *= 2
        attention = (gguf.head_count or 1) * cells.context * unit + 7 * hidden
    feed_forward = 5 * hidden + 3 * (gguf.feed_forward_length or 4 * gguf.embedding_size) * unit
    logits = cells.slots * (gguf.vocabulary_size or 0) * _FLOAT
    return math.ceil(max(attention, feed_forward, 5 * hidden + logits) + mask + logits)


def _host_bytes(gguf: GgufFacts, serving: Serving, *, weights: int, cache: int) -> int:
    """Return the bytes of weights and cache that stay in RAM in addition to a GPU; 0 without a GPU (all is in RAM)."""
    layers = gguf.layer_count
    if not serving.gpu_layers or not layers:
        return 0
    # With several files, the header describes the tensors of the first. The others are assumed to have the same mix.
    share = (gguf.expert_bytes or 0) / gguf.weights_bytes if gguf.weights_bytes else 0.0
    experts = min(share, 1.0) * weights
    kept = 1 - min(serving.gpu_layers, layers) / layers
    moved = max(kept, min(serving.cpu_moe_layers, layers) / layers)
    in_ram = experts * moved + (weights - experts) * kept
    return math.ceil(in_ram + cache * (1.0 if serving.cache_in_ram else kept))


def _bytes_of(cache_type: str) -> float:
    return CACHE_BYTES.get(cache_type, CACHE_BYTES["f16"])
