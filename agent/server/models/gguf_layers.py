"""Reads from a header's numbers which layers have a KV cache, and how large the state of the recurrent layers is. Pure.

Called by `gguf_header`. In a hybrid model only some layers have attention, and the others keep a state of fixed size
for each slot (Mamba, gated delta nets, short convolutions). The rules are those of llama.cpp (build 11434):
`load_arch_hparams` of each architecture for the layers, `llama_hparams::n_embd_r` and `n_embd_s` for the numbers of a
layer's state, `llama_memory_recurrent` for their type. Other architectures than these have attention in all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from agent.server.models import gguf_format as form

_BY_INTERVAL = frozenset({"qwen3next", "qwen35", "qwen35moe"})
"""Every n-th layer has attention; a list in the header has precedence."""
_DEFAULT_INTERVAL = 4
_BY_HEADS = frozenset({"granitehybrid", "jamba", "lfm2", "lfm2moe", "plamo2"})
"""A layer without KV heads is recurrent."""
_BY_HEADS_AND_WIDTH = frozenset({"nemotron_h", "nemotron_h_moe"})
"""A layer without KV heads is recurrent if it has no feed-forward width either. Else it is a feed-forward layer."""
_BOTH_IN_EACH = frozenset({"falcon-h1"})
HYBRID = _BY_INTERVAL | _BY_HEADS | _BY_HEADS_AND_WIDTH | _BOTH_IN_EACH
_MOST_LAYERS = 1024
_MOST_BYTES = 1 << 40
"""Above these limits a header counts as hostile, and its numbers are not used."""
_FLOAT_BYTES = 4
"""llama.cpp keeps the states in F32, whatever the type of the KV cache."""


class LayerFacts(NamedTuple):
    """The KV heads and the recurrent state of a model's layers."""

    head_counts_kv: tuple[int, ...]
    """KV heads by layer, only if layers differ; 0 for a layer without a KV cache."""
    recurrent_bytes: int | None
    """The state of all recurrent layers for one slot; None for a model without such layers, or of unknown sizes."""


def layer_facts(
    architecture: str, number: Callable[[str], int | None], lists: Mapping[str, tuple[int, ...]]
) -> LayerFacts:
    """Return the facts about the layers of one architecture. `number` and `lists` have its keys without its name."""
    heads = lists.get(form.HEAD_COUNT_KV, ())
    layers = number(form.BLOCK_COUNT)
    if architecture not in HYBRID or not layers or layers > _MOST_LAYERS:
        return LayerFacts(heads, None)
    recurrent = _recurrent_layers(architecture, layers, number, lists)
    if architecture in _BY_INTERVAL and recurrent is not None:
        heads = _attention_heads(layers, recurrent, heads, number)
    numbers = _state_numbers(number)
    if recurrent is None or numbers is None:
        return LayerFacts(heads, None)
    state = sum(recurrent) * numbers * _FLOAT_BYTES
    return LayerFacts(heads, state if state <= _MOST_BYTES else None)


def _attention_heads(
    layers: int, recurrent: list[bool], heads: tuple[int, ...], number: Callable[[str], int | None]
) -> tuple[int, ...]:
    """Return the KV heads by layer for a header that has one number for all layers, the recurrent ones included."""
    trunk = _trunk_layers(layers, number)
    every = number(form.HEAD_COUNT_KV)
    every = number(form.HEAD_COUNT) if every is None else every
    given = heads if len(heads) == layers else (every or 0,) * layers
    return tuple(0 if recurrent[layer] or layer >= trunk else given[layer] for layer in range(layers))


def _trunk_layers(layers: int, number: Callable[[str], int | None]) -> int:
    """Return the number of layers without the last ones, which predict several tokens at once.

    Those are never recurrent. llama-server makes a separate cache for them, and only with an option.
    """
    extra = number(form.NEXTN_PREDICT_LAYERS) or 0
    return layers - extra if extra < layers else layers


def _recurrent_layers(
    architecture: str, layers: int, number: Callable[[str], int | None], lists: Mapping[str, tuple[int, ...]]
) -> list[bool] | None:
    """Return for each layer whether it is recurrent; None if the header lacks the numbers."""
    trunk = _trunk_layers(layers, number)
    if architecture in _BOTH_IN_EACH:
        return [True] * layers
    if architecture in _BY_INTERVAL:
        told = lists.get(form.RECURRENT_LAYERS, ())
        if len(told) == layers:
            return [bool(each) for each in told]
        interval = number(form.FULL_ATTENTION_INTERVAL) or _DEFAULT_INTERVAL
        return [layer < trunk and (layer + 1) % interval != 0 for layer in range(layers)]
    heads = lists.get(form.HEAD_COUNT_KV, ())
    if len(heads) != layers:
        return None
    if architecture in _BY_HEADS_AND_WIDTH:
        widths = lists.get(form.FEED_FORWARD_LENGTH, ())
        if len(widths) != layers:
            return None
        return [layer < trunk and not heads[layer] and not widths[layer] for layer in range(layers)]
    return [not each for each in heads]


def _state_numbers(number: Callable[[str], int | None]) -> int | None:
    """Return the count of numbers that one recurrent layer keeps for one slot; None if the header lacks the sizes."""
    width, convolution = number(form.EMBEDDING_LENGTH), number(form.SHORTCONV_L_CACHE)
    inner, state = number(form.SSM_INNER_SIZE), number(form.SSM_STATE_SIZE)
    if convolution and width:
        return width * (convolution - 1) + (inner or 0) * (state or 0)
    if not inner or not state:
        return None
    kernel, groups = number(form.SSM_CONV_KERNEL) or 0, number(form.SSM_GROUP_COUNT) or 0
    return max(0, kernel - 1) * (inner + 2 * groups * state) + state * inner
