"""Answers the controller for a dialect of `program.dialects.registry`: caches in, desired state and status out.

The dialect itself is pure; what it looks up is noted here, so that a change of any of it brings the service back.
"""

# ruff: noqa: ARG002 - the port asks more than each dialect needs

from __future__ import annotations

import functools
from collections.abc import Iterable
from datetime import datetime

from automation.approval.modes import Mode, mode_of
from automation.cache.cluster_cache import ClusterCache
from automation.cache.service_cache import ANY, Reference, ServiceCache
from automation.engine.submissions import Asked
from automation.hosts.hosted import without_agent
from automation.reconcile.actions import PatchObject
from automation.reconcile.desire import Desired, problem_of
from automation.reconcile.dialect_facts import described_facts
from automation.reconcile.node_paths import check_node_paths
from automation.reconcile.observe import Observed, observe_described
from automation.status.dialect_event_log import dialect_status_events
from automation.status.event_log import Entry
from automation.status.ownership import written_by_another
from components.extensions import unsupported_by_cluster
from components.render import RenderOptions, render
from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.errors import NotYet, SpecInvalid
from program.desired.facts import Problem, ServiceFacts
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.dialects.dialect import Dialect
from program.dialects.registry import dialect_named, is_part_of_another

API_UNAVAILABLE = "ApiUnavailable"
"""Reason of a service that depends on an API whose objects cannot be listed now."""
_RECORDED = frozenset({kinds.LLM_CONFIGS.kind, kinds.OPEN_MODELS.kind, kinds.BACKEND_RUNTIMES.kind})
"""Kinds that a service's history keeps with it: what it asks for stands partly in them."""


class NotingLookup:
    """A `Lookup` over the caches for one service. It notes each object before it reads it.

    With `for_spec` it raises NotYet for an object of a kind that is served and cannot be listed: what it says is not
    known, and a service must not be made as if it were not there.
    """

    reads_model_status = True

    def __init__(self, caches: ServiceCache, key: ServiceKey, *, for_spec: bool) -> None:
        self._caches = caches
        self._key = key
        self._for_spec = for_spec
        self.seen: set[Reference] = set()

    def __call__(self, kind: Kind, namespace: str | None, name: str, /) -> Json | None:
        self._note(Reference(kind, namespace or "", name))
        found = self._caches.get(kind, namespace, name)
        if found is None and self._for_spec and self._caches.pending(kind, namespace or "", name):
            why = f"{kind.kind} {namespace}/{name} has not been read yet"
            raise NotYet(reason=API_UNAVAILABLE, why=why, retry_after_s=5.0)
        return found

    def listed(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        self._note(Reference(kind, namespace, ANY))
        return tuple(self._caches.listed(kind, namespace))

    def _note(self, reference: Reference) -> None:
        self.seen.add(reference)
        self._caches.will_look_at(self._key, reference)
        if self._for_spec and (why := self._caches.trouble(reference.kind)):
            raise NotYet(reason=API_UNAVAILABLE, why=f"{reference.kind.full_name} cannot be listed: {why}")


class DialectServices:
    """The services of one dialect that describe their pods themselves. Thread-safe for different services."""

    status_mark = "Reconciling"

    def __init__(self, cluster: ClusterCache, caches: ServiceCache) -> None:
        self.kind = caches.kind
        self.shared_conditions = frozenset({"Ready"}) if caches.name == "kserve" else frozenset()
        self._cluster = cluster
        self._caches = caches
        self._parsed_from: dict[ServiceKey, frozenset[Reference]] = {}

    @functools.cached_property
    def _dialect(self) -> Dialect:
        """Imported once there is something to ask it: most clusters have no services of its kind."""
        return dialect_named(self._caches.name)

    def ready(self) -> bool:
        return self._caches.ready()

    def postpone(self, key: ServiceKey) -> None:
        self._caches.postpone(key)

    def get(self, namespace: str, name: str) -> Json | None:
        return self._caches.get(self.kind, namespace, name)

    def listed(self) -> list[Json]:
        return self._caches.listed(self.kind)

    def is_ours(self, cr: Json) -> bool:
        """Tell whether this loop reconciles a service. A Playground owns the Service that llmaz makes for it."""
        return not is_part_of_another(cr) and self._cluster.is_ours(cr, held=self._is_held(cr))

    def _is_held(self, cr: Json) -> bool:
        """Tell whether the peer's controller has, or had, this service in its hands."""
        finalizers = cr["metadata"].get("finalizers") or ()
        held = any(each in self._dialect.peer_finalizers for each in finalizers)
        return held or written_by_another(cr.get("status"), self.status_mark)

    def asked(self, key: ServiceKey, cr: Json) -> Asked:
        metadata = cr["metadata"]
        found = sorted(self._parsed_from.get(key, ()), key=str)
        versions = tuple(self._caches.version(reference) for reference in found)
        return metadata["uid"], metadata.get("generation"), metadata.get("annotations"), versions

    def observe(self, key: ServiceKey, *, owner: str | None) -> Observed:
        return observe_described(self._cluster, self._caches.index, key, owner=owner)

    def desire(self, key: ServiceKey, cr: Json, observed: Observed, options: RenderOptions) -> Desired:
        look, registry = NotingLookup(self._caches, key, for_spec=True), self._cluster.registry
        mode: Mode = "Apply"
        try:
            mode = mode_of(cr, self._cluster.namespace_annotations(key.namespace))
            parsed = self._dialect.parse(cr, look)
            check_node_paths(parsed.node_paths, options.node_path_roots)
            service, hosts = registry.place(parsed.desired, created=str(cr["metadata"].get("creationTimestamp", "")))
            rendered = render(service, options)
            unsupported = (
                *parsed.unsupported,
                *unsupported_by_cluster(service, options),
                *without_agent(registry, service),
            )
            retry_after_s = hosts.retry_after_s if hosts is not None else None
            return Desired(
                service, rendered, hosts=hosts, mode=mode, unsupported=unsupported, retry_after_s=retry_after_s
            )
        except SpecInvalid as error:
            return Desired(problem=problem_of(error, terminal=True), mode=mode)
        except NotYet as error:
            problem = problem_of(error, terminal=False)
            return Desired(problem=problem, mode=mode, retry_after_s=error.retry_after_s)
        finally:
            self._parsed_from[key] = frozenset(look.seen)
            self._caches.needs(key, frozenset(look.seen))

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
        return described_facts(
            observed,
            desired,
            registry=self._cluster.registry,
            applying=applying,
            objects_exist=objects_exist,
            problem=problem,
            quota=quota,
            now=now,
        )

    def status(
        self, key: ServiceKey, cr: Json, service: DesiredService | None, facts: ServiceFacts, *, now: datetime
    ) -> Json:
        look = NotingLookup(self._caches, key, for_spec=False)
        try:
            return self._dialect.status(cr, service, facts, look, now=now)
        finally:
            self._caches.needs(key, frozenset(look.seen), "status")

    def status_events(self, cr: Json, status: Json, facts: ServiceFacts) -> Iterable[Entry]:
        return dialect_status_events(cr, status, facts)

    def made_kinds(self) -> frozenset[str]:
        return self._caches.made_kinds() | {"HostProcess"}

    def references(self, cr: Json) -> tuple[Json, ...]:
        metadata = cr["metadata"]
        key = ServiceKey(self._caches.name, metadata["namespace"], metadata["name"])
        found = sorted(self._parsed_from.get(key, ()), key=str)
        objects = (self._caches.get(each.kind, each.namespace or None, each.name) for each in found if each.name)
        return tuple(obj for obj in objects if obj and obj["kind"] in _RECORDED)

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service."""
        self._parsed_from.pop(key, None)
        self._caches.drop_service(key)

    def patches(self, key: ServiceKey, cr: Json) -> tuple[PatchObject, ...]:
        """Give custom resources the labels that the peer's webhook gives, or take the peer's finalizers off one.

        Nobody else takes those off once the peer's controller is gone, and the object could never be deleted.
        """
        metadata = cr["metadata"]
        if "deletionTimestamp" in metadata:
            finalizers = metadata.get("finalizers") or []
            kept = [each for each in finalizers if each not in self._dialect.peer_finalizers]
            return (PatchObject(self.kind, cr, {"finalizers": kept}),) if kept != finalizers else ()
        models = (each for each in self._parsed_from.get(key, ()) if each.kind is kinds.OPEN_MODELS)
        found = []
        for kind, obj in (
            (self.kind, cr),
            *((each.kind, self._caches.get(each.kind, None, each.name)) for each in models),
        ):
            labels = (obj or {}).get("metadata", {}).get("labels") or {}
            missing = {k: v for k, v in (self._dialect.labels(obj) if obj else {}).items() if labels.get(k) != v}
            if obj is not None and missing:
                found.append(PatchObject(kind, obj, {"labels": missing}))
        return tuple(found)
