"""Chooses the variant of a model that fits into the memory of a place, and shows the sum. Pure.

The estimate is the one by which the loop places services and hosts admit processes
(`program.runtimes.llamacpp_memory`). The order of concessions: the largest variant that fits with the wanted context;
else half of the context, down to 8,192 tokens; else a KV cache of 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from automation.catalog.entries import CatalogError, Entry, Variant
from program.desired.facts import MemoryFacts
from program.desired.model import GgufFacts
from program.runtimes.llamacpp_memory import Serving, model_memory, projector_memory, together

WANTED_CONTEXT = 32_768
"""Tokens, unless the user names a number or the model was trained with less. More is rarely used and costs memory."""
LEAST_CONTEXT = 8_192
"""Tokens. A shorter context is not chosen without being asked for: agents and documents do not fit into it."""
USABLE_SHARE = 0.95
"""The share of a place's free memory that a model may take, because the estimate can be a few percent too low."""
_SMALL_CACHE = "q8_0"
_CONTEXT_STEP = 1_024
_ALL_LAYERS = 1 << 20

PlaceKind = Literal["machine", "host", "node"]


@dataclass(frozen=True)
class Room:
    """The free memory of one place for a model."""

    name: str
    """The host's or node's name."""
    free_bytes: int
    """Memory for all processes less what running processes have reserved. For a separate GPU: the memory of the GPU."""
    accelerator: str = ""
    """metal, cuda, rocm, vulkan or intel; empty if the processor computes."""
    kind: PlaceKind = "host"

    @property
    def usable_bytes(self) -> int:
        """The memory that a model may take."""
        return int(self.free_bytes * USABLE_SHARE)

    def __str__(self) -> str:
        return f"{self.name} ({self.accelerator})" if self.accelerator else self.name


@dataclass(frozen=True)
class Choice:
    """A variant with a context, and the memory that they need."""

    entry: Entry
    variant: Variant
    context: int
    """Tokens of all slots together."""
    memory: MemoryFacts
    cache_type: str = ""
    """The type of the KV cache if it is not llama.cpp's own default."""
    vision: bool = False
    """Whether the projector is served and counted."""
    room: Room | None = None
    """The place where it fits; None if no place was given."""

    @property
    def sum_text(self) -> str:
        """The sum, in one line."""
        return sum_text(self.memory, self.room)


class DoesNotFit(CatalogError):
    """No variant of a model fits into any of the places."""

    def __init__(self, smallest: Choice, rooms: Sequence[Room]) -> None:
        self.smallest = smallest
        best = max(rooms, key=lambda room: room.free_bytes)
        variant, entry = smallest.variant, smallest.entry
        super().__init__(
            f"model `{entry.id}` does not fit: {variant.quant} with {smallest.context:,} tokens of context needs "
            f"{sum_text(smallest.memory, None)}, and {best} has {gib(best.usable_bytes)} "
            f"({USABLE_SHARE:.0%} of {gib(best.free_bytes)})",
            hint="choose a smaller model, a shorter context, or a place with more memory; "
            "`herdsman catalog list` shows what fits where",
        )


def choose(
    entry: Entry,
    rooms: Sequence[Room],
    context: int | None = None,
    quant: str | None = None,
    *,
    vision: bool = False,
) -> Choice:
    """Return the largest variant that fits into one of the rooms, and that room.

    `context` in tokens and `quant` narrow the choice. A room with an accelerator goes before one without, even if only
    a smaller variant fits there. Of several rooms the largest is taken. Without rooms the entry's first variant is
    returned, with no room. `vision` counts the projector, too. Raises DoesNotFit, UnknownVariant for a quantisation
    that the model lacks, and CatalogError for a projector or a context that it lacks.
    """
    variants = _candidates(entry, quant)
    if vision and any(variant.projector is None for variant in variants):
        raise CatalogError(
            f"the catalog names no projector for model `{entry.id}`, which it needs to read pictures",
            hint="serve it without pictures, or add the projector to the Model's spec.files and spec.mmproj",
        )
    wanted = contexts(entry, context)
    if not rooms:
        variant = entry.variant(quant) if quant else entry.variants[0]
        return _choice(entry, variant, wanted[0], "", None, vision)
    largest_first = sorted(rooms, key=lambda room: -room.free_bytes)
    for group in (
        [room for room in largest_first if room.accelerator],
        [room for room in largest_first if not room.accelerator],
    ):
        for tokens, cache_type in _concessions(wanted):
            for variant in variants:
                for room in group:
                    found = _choice(entry, variant, tokens, cache_type, room, vision)
                    if found.memory.total_bytes <= room.usable_bytes:
                        return found
    raise DoesNotFit(_choice(entry, variants[-1], wanted[-1], _SMALL_CACHE, None, vision), rooms)


def contexts(entry: Entry, context: int | None) -> list[int]:
    """Return the contexts to try, in tokens, the longest first: only `context` if the user names one.

    Raises CatalogError for more tokens than the model was trained with.
    """
    trained = entry.context
    if context is not None:
        if trained is not None and context > trained:
            raise CatalogError(
                f"model `{entry.id}` was trained with {trained:,} tokens of context, and {context:,} are wanted",
                hint=f"ask for at most {trained:,} tokens",
            )
        return [context]
    tokens = min(trained or WANTED_CONTEXT, WANTED_CONTEXT)
    found = [tokens]
    while tokens // 2 >= LEAST_CONTEXT:
        tokens = tokens // 2 // _CONTEXT_STEP * _CONTEXT_STEP
        found.append(tokens)
    return found


def memory_of(
    entry: Entry, variant: Variant, *, context: int, room: Room | None = None, cache: str = ""
) -> MemoryFacts:
    """Estimate the memory of a variant. `cache` is the type of the KV cache, empty for llama.cpp's default."""
    on_gpu = room is not None and room.accelerator not in ("", "metal")
    serving = Serving(
        context=context,
        gpu_layers=_ALL_LAYERS if on_gpu else 0,
        **({"cache_type_k": cache, "cache_type_v": cache} if cache else {}),
    )
    return model_memory(entry.header or GgufFacts(), serving, weights_bytes=variant.bytes)


def sum_text(memory: MemoryFacts, room: Room | None) -> str:
    """Return the parts of an estimate and their sum, in one line, with the memory of the room if there is one."""
    text = (
        f"weights {gib(memory.weights_bytes)} + KV cache {gib(memory.cache_bytes)} + buffers "
        f"{gib(memory.compute_bytes)} = {gib(memory.total_bytes)}"
    )
    return text if room is None else f"{text} of {gib(room.free_bytes)} on {room}"


def gib(size_bytes: int) -> str:
    """Format bytes in GiB; below 0.1 GiB in MiB."""
    if size_bytes < (1 << 30) // 10:
        return f"{size_bytes / (1 << 20):.0f} MiB"
    return f"{size_bytes / (1 << 30):.1f} GiB"


def _candidates(entry: Entry, quant: str | None) -> tuple[Variant, ...]:
    if quant:
        return (entry.variant(quant),)
    return tuple(each for each in entry.by_size if not each.is_small) or entry.by_size


def _concessions(wanted: list[int]) -> Iterator[tuple[int, str]]:
    for tokens in wanted:
        yield tokens, ""
    yield wanted[-1], _SMALL_CACHE


def _choice(entry: Entry, variant: Variant, tokens: int, cache_type: str, room: Room | None, vision: bool) -> Choice:
    memory = memory_of(entry, variant, context=tokens, room=room, cache=cache_type)
    if vision and variant.projector is not None:
        memory = together([memory, projector_memory(variant.projector.bytes)])
    return Choice(entry, variant, tokens, memory, cache_type, vision, room)
