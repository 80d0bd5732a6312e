"""Services and configs for the tests of their merge, and the recorded services."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kubeapi.json_types import Json
from kubeapi.kinds import Kind

FOLDER = Path(__file__).parents[3] / "conformance" / "kserve"


@dataclass
class Objects:
    """A `Lookup` over the objects of a cluster."""

    reads_model_status = False
    objects: dict[tuple[str, str | None, str], Json] = field(default_factory=dict)

    def __call__(self, kind: Kind, namespace: str | None, name: str, /) -> Json | None:
        return self.objects.get((kind.kind, namespace, name))

    def listed(self, kind: Kind, namespace: str | None, /) -> tuple[Json, ...]:
        return tuple(obj for (of, where, _), obj in self.objects.items() if (of, where) == (kind.kind, namespace))

    def add(self, obj: Json, namespace: str) -> None:
        where = obj["metadata"].get("namespace", namespace)
        self.objects[obj["kind"], where, obj["metadata"]["name"]] = obj


def service(spec: Json | None = None, *, name: str = "chat", **more: Any) -> Json:
    """Return an LLMInferenceService in namespace `team`."""
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"model": {"uri": "hf://acme/tiny-1b"}, **(spec or {})},
        **more,
    }


def cluster(*objects: Json, **configs: Json) -> Objects:
    """Return a cluster with these objects, and with a config of each name and spec, all in namespace `team`."""
    found = Objects()
    for obj in objects:
        found.add(obj, "team")
    for name, spec in configs.items():
        found.add(config(name, spec), "team")
    return found


def config(name: str, spec: Json, namespace: str = "team") -> Json:
    """Return an LLMInferenceServiceConfig."""
    return {
        "kind": "LLMInferenceServiceConfig",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def settings_map(**keys: Json | str) -> Json:
    """Return the ConfigMap with KServe's settings."""
    return {
        "kind": "ConfigMap",
        "metadata": {"name": "inferenceservice-config", "namespace": "kserve"},
        "data": {key: value if isinstance(value, str) else json.dumps(value) for key, value in keys.items()},
    }


def main(pod: Json) -> Json:
    """Return the container `main` of a pod spec."""
    return next(container for container in pod["containers"] if container["name"] == "main")


@dataclass(frozen=True)
class Recorded:
    """One service of a vector, with the peer's objects and status."""

    vector: str
    cr: Json
    look: Objects
    made: tuple[Json, ...]
    status: Json

    def __str__(self) -> str:
        return f"{self.vector[:3]}-{self.cr['metadata']['name']}"

    def pod(self, name: str) -> Json | None:
        """Return the pod spec of a Deployment, or of the leader of a LeaderWorkerSet; None if there is none."""
        for obj in self.made:
            if obj["metadata"]["name"] == name:
                if obj["kind"] == "Deployment":
                    return dict(obj["spec"]["template"]["spec"])
                if obj["kind"] == "LeaderWorkerSet":
                    return dict(obj["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"])
        return None


@cache
def recorded() -> tuple[Recorded, ...]:
    """Return all services that have a status after the input of their vector."""
    return tuple(_recorded())


def _recorded() -> Iterator[Recorded]:
    for path in sorted(FOLDER.glob("[0-9]*.json")):
        vector = json.loads(path.read_text(encoding="utf-8"))
        if "status" not in vector.get("output", {}):
            continue
        look = Objects()
        for obj in vector["input"]:
            look.add(obj, vector["namespace"])
        if vector.get("globals"):
            look.add(settings_map(**vector["globals"]), "kserve")
        for obj in vector["input"]:
            status = vector["output"]["status"].get(f"LLMInferenceService/{obj['metadata']['name']}")
            if obj["kind"] == "LLMInferenceService" and status:
                cr = {**obj, "metadata": {"namespace": vector["namespace"], **obj["metadata"]}}
                yield Recorded(path.stem, cr, look, tuple(vector["output"]["objects"]), status)
