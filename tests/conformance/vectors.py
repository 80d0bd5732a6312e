"""The vectors on disk: reading them, and what of them the tests ask for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.conformance.comparison import Defect

Json = dict[str, Any]
FOLDER = Path(__file__).parent / "llmkube"
FIXTURES = FOLDER / "fixtures"


@dataclass(frozen=True)
class Vector:
    """One case: what is put in, and what the peer made of it."""

    path: Path

    @cached_property
    def raw(self) -> Json:
        loaded: Json = json.loads(self.path.read_text(encoding="utf-8"))
        return loaded

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def number(self) -> str:
        return self.name[:3]

    @property
    def namespace(self) -> str:
        return str(self.raw["namespace"])

    @property
    def input(self) -> list[Json]:
        return list(self.raw["input"])

    @property
    def objects(self) -> list[Json]:
        return list(self.raw["output"]["objects"])

    @property
    def status(self) -> dict[str, Json]:
        return dict(self.raw["output"]["status"])

    @property
    def steps(self) -> list[Json]:
        return list(self.raw.get("steps", ()))

    @property
    def rejected(self) -> dict[str, Json]:
        """Answers of the API server that were rejections, by `Kind/name`."""
        return {entry["object"]: entry for entry in self.raw.get("admission", ()) if entry.get("code", 200) >= 400}

    @property
    def defects(self) -> list[Defect]:
        return [Defect.of(entry) for entry in self.raw.get("peer_defects", ())]

    def needs_local_files(self) -> bool:
        """Tell whether a Model reads `/srv/models` of the machine that the loop runs on."""
        return any("/srv/models/" in str(thing.get("spec", {}).get("source", "")) for thing in self.input)


def all_vectors() -> list[Vector]:
    return [Vector(path) for path in sorted(FOLDER.glob("*.json"))]
