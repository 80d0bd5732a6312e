"""The result of one check. `herdsman doctor` and the doctors of state, hosts and agents make them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    check: str
    state: str
    """ok, warning or missing (for an agent: failed). Only missing or failed makes the command exit with code 1."""
    detail: str
    hint: str = ""
