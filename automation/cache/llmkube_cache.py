"""The caches of InferenceServices and Models behind the interface that the other dialects' caches have."""

from __future__ import annotations

from automation.cache.cluster_cache import ClusterCache
from automation.cache.service_cache import Reference, ServiceCache, Use
from automation.cache.service_index import ServiceIndex
from kubeapi import kinds
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import ServiceKey


class LlmkubeCache:
    """Reads the informers of `ClusterCache`, which are filled before the first pass."""

    name = "llmkube"
    kind = kinds.INFERENCE_SERVICES

    def __init__(self, cluster: ClusterCache) -> None:
        self._cluster = cluster
        self._informers: dict[Kind, Informer] = {
            kinds.INFERENCE_SERVICES: cluster.services,
            kinds.MODELS: cluster.models,
        }

    @property
    def index(self) -> ServiceIndex:
        return self._cluster.index

    def ready(self) -> bool:
        return True

    def postpone(self, key: ServiceKey) -> None:
        """Do nothing: the caches are filled."""

    def get(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        return self._informers[kind].get(namespace, name)

    def listed(self, kind: Kind, namespace: str | None = None) -> list[Json]:
        return self._informers[kind].list(namespace)

    def made_kinds(self) -> frozenset[str]:
        return self._cluster.watched_kinds()

    def trouble(self, kind: Kind) -> str:  # noqa: ARG002 - the interface of `ServiceCache`
        return ""

    def pending(self, kind: Kind, namespace: str, name: str) -> bool:  # noqa: ARG002
        return False

    def will_look_at(self, key: ServiceKey, reference: Reference) -> None:
        """Do nothing: `ServiceIndex` knows the Models of a service by its spec."""

    def needs(self, key: ServiceKey, references: frozenset[Reference], use: Use = "spec") -> None:
        """Do nothing, as `will_look_at`."""

    def version(self, reference: Reference) -> str:
        """Return the resourceVersion: the status of a Model counts."""
        found = self.get(reference.kind, reference.namespace, reference.name)
        return str(found["metadata"].get("resourceVersion")) if found is not None else ""

    def drop_service(self, key: ServiceKey) -> None:
        """Do nothing: `ServiceIndex` follows the custom resources."""


AnyServiceCache = ServiceCache | LlmkubeCache
