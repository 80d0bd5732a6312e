"""What a doctor says of one thing. Made by `herdsman doctor` and by the doctors of state, hosts and agents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    check: str
    state: str
    """ok, warning or missing (an agent's: failed); only the last makes the command fail."""
    detail: str
    hint: str = ""
