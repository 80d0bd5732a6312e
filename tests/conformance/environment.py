"""The objects in the cluster of the recording apart from a vector's input, and a look-up over all objects.

Replays create `objects` on a real API server. `file_lookup` gives the same objects to dialects offline.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import yaml

from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.dialects.dialect import Lookup
from tests.conformance.vectors import HERE, Vector, merged

SYSTEM_NAMESPACES = {"kserve": "kserve", "llmaz": "llmaz-system"}
GATEWAY_ADDRESS = "203.0.113.10"
_THEN = "2026-01-01T00:00:00Z"
_CLUSTER_SCOPED = ("OpenModel", "BackendRuntime", "ClusterRoleBinding")


def backend_runtimes() -> list[Json]:
    """Return the BackendRuntimes of the peer's chart; instead of each script they have its length and digest."""
    loaded: list[Json] = json.loads((HERE / "llmaz" / "fixtures" / "backendruntimes.json").read_text(encoding="utf-8"))
    return loaded


def objects(vector: Vector) -> list[Json]:
    """List the objects of the recording's cluster apart from the input of a case, with the settings of that case."""
    if vector.family == "kserve":
        return [_gateway(), _kserve_settings(vector.globals)]
    return [_llmaz_settings(as_the_chart_has_it=vector.number == "059"), *backend_runtimes()]


def _gateway() -> Json:
    gateway: Json = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "kserve-ingress-gateway", "namespace": "kserve", "generation": 1},
        "spec": {
            "gatewayClassName": "simulated",
            "listeners": [
                {"name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "All"}}}
            ],
        },
    }
    return {**gateway, "status": gateway_status(gateway)}


def gateway_status(thing: Json) -> Json:
    """Return the status of a Gateway that has an address and whose listeners all work."""
    generation = thing["metadata"].get("generation", 1)
    return {
        "addresses": [{"type": "IPAddress", "value": GATEWAY_ADDRESS}],
        "conditions": [condition(kind, True, kind, generation) for kind in ("Accepted", "Programmed")],
        "listeners": [
            {
                "name": listener["name"],
                "attachedRoutes": 0,
                "supportedKinds": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute"}],
                "conditions": [
                    condition(kind, True, kind, generation) for kind in ("Accepted", "Programmed", "ResolvedRefs")
                ],
            }
            for listener in thing["spec"]["listeners"]
        ],
    }


def condition(type_: str, truth: bool, reason: str, generation: int | None = None) -> Json:
    """Return a condition, with `observedGeneration` if `generation` is given."""
    told: Json = {"type": type_, "status": str(truth), "reason": reason, "message": "", "lastTransitionTime": _THEN}
    return told if generation is None else {**told, "observedGeneration": generation}


_KSERVE = {
    "ingress": {
        "kserveIngressGateway": "kserve/kserve-ingress-gateway",
        "urlScheme": "http",
        "enableLLMInferenceServiceTLS": False,
        "modelBasedRoutingHeaderName": "X-Gateway-Model-Name",
        "modelBasedRoutingMode": "enabled",
    },
    "storageInitializer": {
        "image": "kserve/storage-initializer:latest",
        "memoryRequest": "100Mi",
        "memoryLimit": "1Gi",
        "cpuRequest": "100m",
        "cpuLimit": "1",
        "enableModelcar": True,
        "cpuModelcar": "10m",
        "memoryModelcar": "15Mi",
        "uidModelcar": 1010,
    },
}


def _kserve_settings(changes: Json) -> Json:
    """Return the peer's ConfigMap; `changes` are merged into the JSON text of its keys."""
    told: Json = merged(_KSERVE, changes)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "inferenceservice-config", "namespace": "kserve"},
        "data": {key: json.dumps(value) for key, value in told.items()},
    }


def _llmaz_settings(*, as_the_chart_has_it: bool) -> Json:
    """Return the peer's ConfigMap; the chart's version of it names no image for the loader."""
    told = {"scheduler-name": "default-scheduler"}
    if not as_the_chart_has_it:
        told["init-container-image"] = "inftyai/model-loader:v0.0.10"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "llmaz-global-config", "namespace": "llmaz-system"},
        "data": {"config.data": yaml.safe_dump(told)},
    }


class FileLookup:
    """A `program.dialects.dialect.Lookup` over a list of objects."""

    def __init__(self, things: Iterable[Json], namespace: str = "") -> None:
        """Put each object without a namespace into `namespace`, unless its kind is cluster-scoped."""
        self._things: dict[tuple[str, str, str, str], Json] = {}
        for thing in things:
            kind, metadata = thing["kind"], thing["metadata"]
            home = "" if kind in _CLUSTER_SCOPED else metadata.get("namespace") or namespace
            placed = {**thing, "metadata": {"uid": f"uid-of-{metadata['name']}", "generation": 1, **metadata}}
            if home:
                placed["metadata"]["namespace"] = home
            self._things[thing["apiVersion"].rpartition("/")[0], kind, home, metadata["name"]] = placed

    def __call__(self, kind: Kind, namespace: str | None, name: str, /) -> Json | None:
        return self._things.get((kind.group, kind.kind, namespace or "", name))

    def listed(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        """List the objects of a kind in a namespace, sorted by name."""
        return tuple(
            thing
            for (group, of, home, _), thing in sorted(self._things.items(), key=lambda item: item[0])
            if (group, of, home) == (kind.group, kind.kind, namespace)
        )


def file_lookup(vector: Vector, step: int = 0, extra: Iterable[Json] = ()) -> Lookup:
    """Return a look-up over the environment and the inputs of a case after a step (0: after the input).

    `extra` objects replace others of the same kind and name.
    """
    inputs = vector.stages()[step].inputs
    return FileLookup([*objects(vector), *inputs, *extra], vector.namespace)
