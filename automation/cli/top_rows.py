"""Sorts and formats the rows of `herdsman top`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from automation.places.resource_use import HostUse, ServiceUse

Order = Literal["name", "memory", "tokens"]
_SLEEPING = frozenset({"Stopped", "Asleep"})


def sorted_hosts(uses: Iterable[HostUse], order: Order) -> list[HostUse]:
    """Sort hosts: the largest value first, then by name."""
    return sorted(uses, key=lambda use: (_rank(order, use.memory_bytes, use.tokens_per_second), use.name))


def sorted_services(uses: Iterable[ServiceUse], order: Order) -> list[ServiceUse]:
    """Sort services: the largest value first, then by namespace and name."""

    def key(use: ServiceUse) -> tuple[float, bool, str, str]:
        # Sleeping services have no values, and follow running services without values.
        rank = _rank(order, use.memory_bytes, use.tokens_per_second)
        return rank, order != "name" and use.phase in _SLEEPING, use.namespace, use.name

    return sorted(uses, key=key)


def _rank(order: Order, memory: float | None, tokens: float | None) -> float:
    if order == "name":
        return 0.0
    value = memory if order == "memory" else tokens
    return 1.0 if value is None else -value


def rate_text(value: float | None) -> str:
    """Format a rate or a share."""
    return "-" if value is None else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def slots_text(use: ServiceUse) -> str:
    """Format the numbers of busy slots and of all slots."""
    if use.slots_busy is None:
        return "-"
    return f"{use.slots_busy}/{use.slots}" if use.slots is not None else str(use.slots_busy)


def bar(share: float | None, width: int) -> str:
    """Draw a bar for a share."""
    if share is None:
        return " " * width
    full = min(width, round(share * width))
    return "█" * full + "░" * (width - full)
