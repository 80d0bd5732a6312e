"""What a doctor says of one thing. Made by `herdsman doctor`, `host doctor` and `agent doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    check: str
    state: str
    """ok, warning or missing; only `missing` makes the command fail."""
    detail: str
    hint: str = ""
