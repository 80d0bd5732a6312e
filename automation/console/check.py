"""The result of one check. Made by `herdsman doctor` and by the doctors of state, hosts and agents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    check: str
    state: str
    """ok, warning or missing (an agent's: failed); only the last ends the command with exit code 1."""
    detail: str
    hint: str = ""
