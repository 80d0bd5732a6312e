"""The result of one check. `herdsman doctor` and `herdsman state doctor` make them."""

from __future__ import annotations

from dataclasses import dataclass

SKIPPED = "skipped"
"""The state of what was not checked."""
FATAL = frozenset({"missing", "failed"})
"""The states with which a command exits with code 1."""


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    check: str
    state: str
    """ok, warning, skipped, or missing (for an agent: failed). Only missing and failed have exit code 1."""
    detail: str
    hint: str = ""
