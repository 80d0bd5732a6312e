"""Answers the controller for InferenceServices."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from automation.cache.cluster_cache import ClusterCache, models_of
from automation.engine.submissions import Asked
from automation.reconcile.actions import PatchObject
from automation.reconcile.desire import Desired, desire
from automation.reconcile.observe import Observed, observe, service_facts
from automation.serving.sleep import Sleep
from automation.status.event_log import Entry, advice, status_events
from components.render import RenderOptions
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.facts import Problem, ServiceFacts
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.dialects.llmkube.status.service import service_status


class LlmkubeServices:
    """The InferenceServices of the caches of `ClusterCache`."""

    kind = kinds.INFERENCE_SERVICES
    status_mark = "Ready"
    shared_conditions: frozenset[str] = frozenset()

    def __init__(self, cluster: ClusterCache, sleep: Sleep | None = None) -> None:
        self._cluster = cluster
        self._sleep = sleep

    def ready(self) -> bool:
        return True

    def postpone(self, key: ServiceKey) -> None:
        """These caches are filled before the first pass."""

    def get(self, namespace: str, name: str) -> Json | None:
        return self._cluster.services.get(namespace, name)

    def listed(self) -> list[Json]:
        return self._cluster.services.list()

    def is_ours(self, cr: Json) -> bool:
        return self._cluster.is_ours(cr)

    def asked(self, key: ServiceKey, cr: Json) -> Asked:
        metadata = cr["metadata"]
        models = (self._model(key, cr), *self._drafts(key, cr))
        versions = tuple(((found or {}).get("metadata") or {}).get("resourceVersion") for found in models)
        return metadata["uid"], metadata.get("generation"), metadata.get("annotations"), versions

    def observe(self, key: ServiceKey, *, owner: str | None) -> Observed:
        return observe(self._cluster, key, owner=owner)

    def desire(self, key: ServiceKey, cr: Json, observed: Observed, options: RenderOptions) -> Desired:
        return desire(self._cluster, key, cr, self._model(key, cr), observed, options=options, sleep=self._sleep)

    def facts(
        self,
        key: ServiceKey,
        cr: Json,
        desired: Desired,
        observed: Observed,
        *,
        applying: bool,
        objects_exist: bool,
        problem: Problem | None,
        quota: Problem | None,
        now: datetime,
    ) -> ServiceFacts:
        return service_facts(
            observed,
            desired=desired.service,
            cr=cr,
            model=self._model(key, cr),
            applying=applying,
            objects_exist=objects_exist,
            problem=problem,
            unsupported=desired.unsupported,
            quota=quota,
            registry=self._cluster.registry,
            hosts=desired.hosts,
            now=now,
        )

    def status(
        self,
        key: ServiceKey,  # noqa: ARG002 - an InferenceService's status follows from its facts alone
        cr: Json,
        service: DesiredService | None,
        facts: ServiceFacts,
        *,
        now: datetime,
    ) -> Json:
        return service_status(cr, service, facts, now=now)

    def status_events(self, cr: Json, status: Json, facts: ServiceFacts) -> Iterable[Entry]:
        before = cr.get("status")
        edited = (before or {}).get("observedGeneration") != status.get("observedGeneration")
        return (*status_events(before, status, facts), *(advice(cr) if edited else ()))

    def made_kinds(self) -> frozenset[str]:
        return self._cluster.watched_kinds()

    def references(self, cr: Json) -> tuple[Json, ...]:
        return self._cluster.models_of(cr)

    def patches(self, key: ServiceKey, cr: Json) -> tuple[PatchObject, ...]:  # noqa: ARG002 - the protocol's names
        """LLMKube has no webhook and no finalizer."""
        return ()

    def drop_service(self, key: ServiceKey) -> None:
        """Nothing is remembered here."""

    def _model(self, key: ServiceKey, cr: Json) -> Json | None:
        return self._cluster.models.get(key.namespace, str(cr["spec"].get("modelRef", "")))

    def _drafts(self, key: ServiceKey, cr: Json) -> tuple[Json | None, ...]:
        names = sorted(models_of(cr) - {cr["spec"].get("modelRef")})
        return tuple(self._cluster.models.get(key.namespace, name) for name in names)
