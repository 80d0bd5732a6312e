"""Small things that many commands read out of objects: a condition, an age."""

from __future__ import annotations

from datetime import datetime

from kubeapi.json_types import Json


def condition_of(status: Json, kind: str) -> Json:
    """Find a condition by its type; empty where there is none."""
    return next((dict(c) for c in status.get("conditions") or () if c["type"] == kind), {})


def age_text(metadata: Json, *, now: datetime) -> str:
    """Write how long ago an object was made."""
    return duration_text((now - datetime.fromisoformat(metadata["creationTimestamp"])).total_seconds())


def duration_text(seconds: float) -> str:
    """Write a duration as kubectl does: its largest unit."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{int(seconds // length_s)}{unit}"
    return f"{int(seconds)}s"
