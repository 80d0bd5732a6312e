"""An index of services by the objects that they name, and of objects by their service. `service_cache` fills it."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

from components import naming
from kubeapi.json_types import Json
from kubeapi.kinds import DEPLOYMENTS, HOST_PROCESSES, PODS, Kind
from program.dialects.registry import DIALECTS, LLMKUBE, ServiceMark


class ServiceIndex:
    """Relations between cached objects, of the services of one dialect. Thread-safe."""

    def __init__(self, mark: ServiceMark = DIALECTS[LLMKUBE].mark) -> None:
        """`mark` returns the service that an object was made for."""
        self._mark = mark
        self._lock = threading.Lock()
        self._by_model: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._by_service_name: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._by_claim: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._objects: dict[tuple[str, str], dict[tuple[str, str], Json]] = defaultdict(dict)
        self._pods: dict[tuple[str, str], dict[str, Json]] = defaultdict(dict)

    def service_changed(self, old: Json | None, new: Json | None) -> None:
        with self._lock:
            for obj, add in ((old, False), (new, True)):
                if obj is None:
                    continue
                namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
                for model in models_of(obj):
                    _update(self._by_model, (namespace, model), name, add=add)
                _update(self._by_service_name, (namespace, naming.service_name(name)), name, add=add)

    def service_of(self, kind: Kind, obj: Json) -> str:
        """Return the name of the service that an object was made for; empty for an object of no service."""
        labels = obj["metadata"]["labels"]
        # The HostProcesses of all dialects carry the same label.
        return str(labels.get(naming.LABEL_SERVICE, "") if kind is HOST_PROCESSES else self._mark.service_of(labels))

    def object_changed(self, kind: Kind, old: Json | None, new: Json | None) -> str:
        """Record an object or a pod of a service and return `service_of` it."""
        obj: Json = new or old or {}
        metadata, service = obj["metadata"], self.service_of(kind, obj)
        if not service:
            return ""
        at = (metadata["namespace"], service)
        with self._lock:
            if kind is PODS:
                _set(self._pods, at, metadata["name"], new)
                return service
            name = (kind.kind, metadata["name"])
            before = self._objects.get(at, {}).get(name)
            for each, add in ((before, False), (new, True)):
                for claim in (each or {}).get("spec", {}).get("claims", ()) if kind is DEPLOYMENTS else ():
                    _update(self._by_claim, (metadata["namespace"], claim), service, add=add)
            _set(self._objects, at, name, new)
        return service

    def services_of_model(self, namespace: str, model: str) -> list[str]:
        with self._lock:
            return sorted(self._by_model.get((namespace, model), ()))

    def services_of_claim(self, namespace: str, claim: str) -> list[str]:
        """Return the names of the services whose pods mount a claim."""
        with self._lock:
            return sorted(self._by_claim.get((namespace, claim), ()))

    def rivals(self, namespace: str, name: str) -> list[str]:
        """Return the other services whose Kubernetes Service would have the same name."""
        with self._lock:
            return sorted(self._by_service_name.get((namespace, naming.service_name(name)), set()) - {name})

    def services_named(self, namespace: str, service_name: str) -> list[str]:
        """Return the names of the services whose Kubernetes Service has this name."""
        with self._lock:
            return sorted(self._by_service_name.get((namespace, service_name), ()))

    def objects(self, namespace: str, service: str) -> dict[tuple[str, str], Json]:
        with self._lock:
            return dict(self._objects.get((namespace, service), {}))

    def pods(self, namespace: str, service: str) -> list[Json]:
        with self._lock:
            return list(self._pods.get((namespace, service), {}).values())

    def services_with_objects(self) -> list[tuple[str, str]]:
        with self._lock:
            return list(self._objects)


def _set(index: dict[tuple[str, str], dict[Any, Json]], service: tuple[str, str], name: Any, obj: Json | None) -> None:
    if obj is not None:
        index[service][name] = obj
    elif service in index:
        index[service].pop(name, None)
        if not index[service]:
            del index[service]


def _update(index: dict[tuple[str, str], set[str]], key: tuple[str, str], name: str, *, add: bool) -> None:
    if add:
        index[key].add(name)
    elif key in index:
        index[key].discard(name)
        if not index[key]:
            del index[key]


def models_of(service: Json) -> set[str]:
    """Name the Models that a service refers to: the one it serves and, for speculative decoding, the draft."""
    names = (_at(service, "spec", *path) for path in _MODEL_PATHS)
    return {name for name in names if name and isinstance(name, str)}


_MODEL_PATHS = (("modelRef",), ("vllmConfig", "speculative", "model"), ("speculativeDecoding", "draftModelRef"))


def _at(value: Any, *path: str) -> Any:
    """Return the value at a path of an object that may be of any shape; None where any part of it is absent."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
