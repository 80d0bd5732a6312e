"""The vectors of KServe's API, for unit tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).resolve().parents[3] / "conformance" / "kserve"


def vector(number: str) -> dict[str, Any]:
    """Read one vector by its number."""
    (path,) = DIRECTORY.glob(f"{number}-*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def numbers() -> list[str]:
    """Return the numbers of all vectors."""
    return sorted(path.name[:3] for path in DIRECTORY.glob("*.json"))
