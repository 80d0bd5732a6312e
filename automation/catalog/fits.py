"""Which models of a catalog fit where, as rows for tables and JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from automation.catalog.entries import Entry, ModelFile
from automation.catalog.fitting import Choice, DoesNotFit, Room, choose


@dataclass(frozen=True)
class Fit:
    """The best choice of one model on one place, or why there is none."""

    place: str
    choice: Choice | None
    refusal: DoesNotFit | None = None


def fits(
    entry: Entry,
    rooms: Sequence[Room],
    *,
    context: int | None = None,
    quant: str | None = None,
    vision: bool = False,
) -> list[Fit]:
    """Return the best choice for each place, in the order of the rooms. A place may have several rooms.

    Raises UnknownVariant, and CatalogError for a context or projector that the model lacks.
    """
    found = []
    for place in dict.fromkeys(room.name for room in rooms):
        try:
            own = [room for room in rooms if room.name == place]
            found.append(Fit(place, choose(entry, own, context, quant, vision=vision)))
        except DoesNotFit as refusal:
            found.append(Fit(place, None, refusal))
    return found


def entry_object(entry: Entry, found: Sequence[Fit]) -> dict[str, Any]:
    """Return a model for `-o json`. `source` and `bytes` are those of the first variant."""
    first = entry.variants[0]
    return {
        "id": entry.id,
        "source": first.source,
        "quant": first.quant,
        "bytes": first.bytes,
        "bytesAreRounded": first.is_rounded,
        "context": entry.context,
        "licence": entry.licence or None,
        "parameters": entry.parameters or None,
        "activeParameters": entry.active_parameters or None,
        "capabilities": list(entry.capabilities),
        "template": entry.template,
        "released": entry.released.isoformat() if entry.released else None,
        "unchecked": list(entry.unchecked),
        "variants": [
            {
                "quant": variant.quant,
                "source": variant.source,
                "bytes": variant.bytes,
                "files": [_file_object(file) for file in variant.files],
                "projector": _file_object(variant.projector) if variant.projector else None,
            }
            for variant in entry.by_size
        ],
        "fits": [fit_object(each) for each in found],
    }


def _file_object(file: ModelFile) -> dict[str, Any]:
    return {"path": file.path, "bytes": file.bytes, "sha256": file.sha256}


def fit_object(fit: Fit) -> dict[str, Any]:
    """Return one place for `-o json`, with the sum. Of a model that does not fit, the sum is of its smallest form."""
    choice = fit.choice or (fit.refusal.smallest if fit.refusal else None)
    assert choice is not None
    room, memory = choice.room, choice.memory
    return {
        "place": fit.place,
        "fits": fit.choice is not None,
        "quant": choice.variant.quant,
        "context": choice.context,
        "cacheType": choice.cache_type or None,
        "accelerator": (room.accelerator if room else "") or None,
        "weightsBytes": memory.weights_bytes,
        "cacheBytes": memory.cache_bytes,
        "buffersBytes": memory.compute_bytes,
        "neededBytes": memory.total_bytes,
        "freeBytes": room.free_bytes if room else None,
    }


def fits_text(found: Sequence[Fit], *, long: bool = False) -> str:
    """Return the places where a model fits, each with the variant; with `long` also the context. `-` for none."""
    parts = []
    for each in found:
        if each.choice is None:
            continue
        tokens = f" {tokens_text(each.choice.context)}" if long else ""
        cache = f" {each.choice.cache_type}" if long and each.choice.cache_type else ""
        parts.append(f"{each.place}: {each.choice.variant.quant}{tokens}{cache}")
    return ", ".join(parts) or "-"


def tokens_text(tokens: int | None) -> str:
    """Format a number of tokens: `32K` for 32,768; `-` for an unknown one."""
    if tokens is None:
        return "-"
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)
