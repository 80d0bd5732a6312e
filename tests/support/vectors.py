"""The conformance vectors: the input that LLMKube was given and its output, one situation after the other."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kubeapi.json_types import Json

DIRECTORY = Path(__file__).resolve().parents[1] / "conformance" / "llmkube"


@dataclass(frozen=True)
class Situation:
    """The cluster after one step: the objects of the user, and the statuses that the peer wrote."""

    label: str
    """Empty for the first; `step1`, `step2`, … as in the vectors' `peer_defects`."""
    objects: dict[str, Json]
    """By `Kind/name`, as written by the user, with namespace."""
    simulated: dict[str, Json]
    """Statuses that the test wrote in place of kubelets and controllers, by `Kind/name`."""
    recorded: dict[str, Json]
    """Statuses that the peer wrote, by `Kind/name`."""


@dataclass(frozen=True)
class Vector:
    """One recorded case."""

    name: str
    document: Json

    @property
    def rejections(self) -> dict[str, set[str]]:
        """The field paths that the API server named, by `Kind/name` of the object that it refused."""
        answers = self.document.get("admission") or ()
        return {answer["object"]: _fields(answer) for answer in answers if answer["code"] >= 400}

    @property
    def inputs(self) -> dict[str, Json]:
        """All manifests, by `Kind/name`, with namespace."""
        return {_key(obj): self._placed(obj) for obj in self.document["input"]}

    def situations(self) -> Iterator[Situation]:
        """Replay the case."""
        objects = {key: obj for key, obj in self.inputs.items() if key not in self.rejections}
        simulated: dict[str, Json] = {}
        yield Situation("", dict(objects), {}, self.document["output"]["status"])
        for number, step in enumerate(self.document.get("steps") or (), 1):
            key = f"{step['kind']}/{step['name']}"
            match step["op"]:
                case "merge-patch" if "admission" not in step:
                    objects[key] = merged(objects[key], step["patch"])
                case "simulate-status":
                    simulated[key] = step["status"]
                case "merge-patch":
                    pass
                case other:
                    raise NotImplementedError(f"{self.name} step {number}: {other}")
            yield Situation(f"step{number}", dict(objects), dict(simulated), step["output"]["status"])

    def rejected_patches(self) -> Iterator[tuple[str, Json, set[str]]]:
        """Yield each refused merge patch: `Kind/name`, the patch, the field paths."""
        for step in self.document.get("steps") or ():
            if "admission" in step:
                yield f"{step['kind']}/{step['name']}", step["patch"], _fields(step["admission"])

    def _placed(self, obj: Json) -> Json:
        placed = copy.deepcopy(obj)
        placed["metadata"]["namespace"] = self.document["namespace"]
        return placed


def vectors() -> list[Vector]:
    """All vectors, by name."""
    return [Vector(path.stem, json.loads(path.read_text())) for path in sorted(DIRECTORY.glob("*.json"))]


def merged(target: Json, patch: Json) -> Json:
    """Apply a JSON merge patch (RFC 7386)."""
    result = dict(target)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            result[name] = merged(result.get(name) or {}, value)
        else:
            result[name] = value
    return result


def _key(obj: Json) -> str:
    return f"{obj['kind']}/{obj['metadata']['name']}"


def _fields(answer: Json) -> set[str]:
    # A cause without a field only reports that other rules were not checked. `.spec.replicas` is the name of the scale
    # subresource for a field that is listed already.
    return {cause["field"] for cause in answer["causes"] if cause["field"][:1] not in ("<", ".")}
