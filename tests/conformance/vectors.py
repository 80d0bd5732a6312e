"""Reads the vectors from disk."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kubeapi.json_types import Json
from tests.conformance.comparison import Defect

HERE = Path(__file__).parent
FOLDER = HERE / "llmkube"
FIXTURES = FOLDER / "fixtures"


@dataclass(frozen=True)
class Recorded:
    """The objects of a case and the peer's output, after its input or after one of its steps."""

    prefix: str
    """The prefix of paths in defects, such as `step2:`; empty after the input."""
    inputs: list[Json]
    """The user's objects at this stage, without refused ones."""
    objects: list[Json]
    """All objects of the peer at this stage, including unchanged ones."""
    statuses: dict[str, Json]
    """By `Kind/name`; statuses that the step does not record are those of the stage before."""
    admission: Json | None = None
    """The API server's refusal of the step."""
    stored: dict[str, Json] = field(default_factory=dict)
    """Inputs as the API server returned them, by `Kind/name`, where the recording has them."""


@dataclass(frozen=True)
class Vector:
    """One case: the user's manifests, and the peer's objects, statuses and refusals."""

    path: Path

    @cached_property
    def raw(self) -> Json:
        loaded: Json = json.loads(self.path.read_text(encoding="utf-8"))
        return loaded

    @property
    def family(self) -> str:
        return self.path.parent.name

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
        """The API server's refusals, by `Kind/name`."""
        return {entry["object"]: entry for entry in self.raw.get("admission", ()) if entry.get("code", 200) >= 400}

    @property
    def accepted(self) -> list[Json]:
        """The input without refused objects."""
        return [cr for cr in self.input if named(cr) not in self.rejected]

    @property
    def globals(self) -> Json:
        """Settings of the peer that differ in this case."""
        return dict(self.raw.get("globals") or {})

    @property
    def defects(self) -> list[Defect]:
        return [Defect.of(entry) for entry in self.raw.get("peer_defects", ())]

    def stages(self) -> list[Recorded]:
        """Return the state after the input and after each step.

        Values that a step does not record are those of the previous stage.
        """
        output = self.raw["output"]
        stages = [Recorded("", self.accepted, self.objects, self.status, None, output.get("stored") or {})]
        for number, step in enumerate(self.steps, start=1):
            before, output = stages[-1], step["output"]
            gone = {_vanished(name) for name in (*output.get("removed", ()), *output.get("gone", ()))}
            objects = {_key(thing): thing for thing in before.objects if _key(thing) not in gone}
            objects.update({_key(thing): thing for thing in output["objects"]})
            inputs = before.inputs if "admission" in step else _after(before.inputs, step)
            there = {named(cr) for cr in inputs}
            statuses = {**before.statuses, **output["status"]}
            mine = {name for name in statuses if name in there or name in output["status"]}
            stages.append(
                Recorded(
                    f"step{number}:",
                    inputs,
                    list(objects.values()),
                    {name: statuses[name] for name in statuses if name in mine},
                    step.get("admission"),
                    {**before.stored, **(output.get("stored") or {})},
                )
            )
        return stages

    def needs_local_files(self) -> bool:
        """Return whether a Model reads `/srv/models` on the machine that runs the loop."""
        return any("/srv/models/" in str(thing.get("spec", {}).get("source", "")) for thing in self.input)


def all_vectors(family: str = "llmkube") -> list[Vector]:
    """Return the vectors of `llmkube`, `kserve` or `llmaz`, sorted by file name."""
    return [Vector(path) for path in sorted((HERE / family).glob("*.json"))]


def named(thing: Json) -> str:
    """Return the name of an object in the vectors: `Kind/name`, and the group after the kind for llmaz's Service."""
    theirs = thing["kind"] == "Service" and thing["apiVersion"].startswith("inference.llmaz.io/")
    return f"{thing['kind']}{'.inference.llmaz.io' if theirs else ''}/{thing['metadata']['name']}"


def merged(target: Any, patch: Any) -> Any:
    """Apply an RFC 7386 merge patch."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def target(step: Json) -> str:
    """Return `Kind/name` of the object that a step changes; empty for a step that only plays controllers."""
    if "kind" in step:
        return f"{step['kind']}/{step['name']}"
    return step["object"] if isinstance(step.get("object"), str) else ""


def _after(inputs: list[Json], step: Json) -> list[Json]:
    action = step.get("op") or step.get("action")
    if action == "create":
        return [*inputs, step["object"]]
    if action == "delete":
        return [cr for cr in inputs if named(cr) != target(step)]
    if action == "merge-patch":
        return [merged(cr, step["patch"]) if named(cr) == target(step) else cr for cr in inputs]
    if action == "scale":
        count = {"spec": {"replicas": step["replicas"]}}
        return [merged(copy.deepcopy(cr), count) if named(cr) == target(step) else cr for cr in inputs]
    return inputs


def _key(thing: Json) -> tuple[str, str, str]:
    return thing["apiVersion"].rpartition("/")[0], thing["kind"], thing["metadata"]["name"]


_GROUPS = {
    "Deployment": "apps",
    "StatefulSet": "apps",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io",
    "HTTPRoute": "gateway.networking.k8s.io",
    "InferencePool": "inference.networking.k8s.io",
    "ClusterRoleBinding": "rbac.authorization.k8s.io",
    "Role": "rbac.authorization.k8s.io",
    "RoleBinding": "rbac.authorization.k8s.io",
    "HorizontalPodAutoscaler": "autoscaling",
    "ScaledObject": "keda.sh",
    "ResourceClaimTemplate": "resource.k8s.io",
    "Service.inference.llmaz.io": "inference.llmaz.io",
}


def _vanished(name: str) -> tuple[str, str, str]:
    kind, _, rest = name.partition("/")
    if rest.endswith(".x-k8s.io"):
        return "inference.networking.x-k8s.io", kind, rest.removesuffix(".x-k8s.io")
    return _GROUPS.get(kind, ""), kind.partition(".")[0], rest
