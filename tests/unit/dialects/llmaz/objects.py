"""Objects of llmaz for tests, and a look-up over the objects that a test provides."""

from __future__ import annotations

from typing import Any

from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind


class Cluster:
    """A `Lookup` over these objects."""

    reads_model_status = False

    def __init__(self, *things: Json) -> None:
        self._things = {(thing["kind"], thing["metadata"]["name"]): thing for thing in things}

    def __call__(self, kind: Kind, namespace: str | None, name: str, /) -> Json | None:
        found = self._things.get((kind.kind, name))
        return found if found is None or found["apiVersion"] == kind.api_version else None

    def listed(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        return tuple(thing for (of, _), thing in sorted(self._things.items()) if of == kind.kind)


def made(kind: Kind, name: str, spec: Json, **annotations: str) -> Json:
    """Make an object as the API server would return it."""
    metadata: Json = {"name": name, "uid": f"uid-of-{name}", "generation": 3}
    if kind.namespaced:
        metadata["namespace"] = "default"
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}


def open_model(name: str = "m", *, flavors: list[Json] | None = None, **source: Any) -> Json:
    """Make an OpenModel; without a `source` its source is a repository of Hugging Face."""
    spec: Json = {"familyName": "acme-lm", "source": source or {"modelHub": {"modelID": f"acme/{name}"}}}
    if flavors is not None:
        spec["inferenceConfig"] = {"flavors": flavors}
    return made(kinds.OPEN_MODELS, name, spec)


def runtime(name: str = "engine", **spec: Any) -> Json:
    """Make a BackendRuntime, with one config if `recommendedConfigs` is not given."""
    told = {"image": "registry.example/engine", "version": "1.0", "recommendedConfigs": [{"name": "default"}]}
    return made(kinds.BACKEND_RUNTIMES, name, {**told, **spec})


def playground(annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    """Make a Playground, of model `m` if `modelClaims` is not given."""
    claimed = {} if "modelClaims" in spec else {"modelClaim": {"modelName": "m"}}
    return made(kinds.PLAYGROUNDS, "chat", {**claimed, **spec}, **(annotations or {}))


def runner(**fields: Any) -> Json:
    """Make the container that runs the engine."""
    return {"name": "model-runner", "image": "registry.example/engine:1", **fields}


def service(
    worker: Json | None = None, annotations: dict[str, str] | None = None, *, template: Json | None = None, **spec: Any
) -> Json:
    """Make a Service of llmaz with one container; `template` adds to its workload template."""
    written = {"workerTemplate": {"spec": {"containers": [worker or runner()]}}, **(template or {})}
    claims = {"modelClaims": {"models": [{"name": "m"}]}, "workloadTemplate": written}
    return made(kinds.LLMAZ_SERVICES, "wide", {**claims, **spec}, **(annotations or {}))
