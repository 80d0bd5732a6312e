"""What a restarted agent must know of its fronts: their ports, and which services slept. One small file in the store.

Read and written by `front`. A file that cannot be read counts as empty: ports are chosen anew, and nothing sleeps.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import Field, ValidationError

from agent.contract import Wire

FILE = "front-state.json"


class FrontRecord(Wire):
    """One front as written down."""

    port: int | None = None
    asleep: str | None = None
    """Launch hash of the plan that sleeps; None: it does not."""


class _File(Wire):
    version: int = 1
    fronts: dict[str, FrontRecord] = Field(default_factory=dict)


def load(directory: Path) -> dict[str, FrontRecord]:
    """Read what the agent before us wrote down, by process."""
    try:
        return _File.model_validate_json((directory / FILE).read_bytes()).fronts
    except (OSError, ValidationError):
        return {}


def save(directory: Path, fronts: dict[str, FrontRecord]) -> None:
    """Write it down, all or nothing. Raises OSError."""
    draft = directory / f".{FILE}.new"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(_File(fronts=fronts).model_dump(mode="json", by_alias=True, exclude_none=True), file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(directory / FILE)
