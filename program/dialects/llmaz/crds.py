"""The CustomResourceDefinitions of llmaz's kinds, for clusters where the peer's own are not installed."""

from __future__ import annotations

from program.dialects.crd_schema import Json


def documents() -> list[Json]:
    """Give them as documents ready to apply."""
    return []
