"""The services of one dialect for the controller: custom resources, desired state, status.

The dialect itself (`program.dialects.dialect`) is pure. This module notes the objects that the dialect looks up, so
that a change of any of them enqueues the service.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from automation.cache.cluster_cache import ClusterCache
from automation.cache.service_cache import ANY, Reference, ServiceCache
from automation.engine.submissions import Asked
from automation.reconcile.actions import PatchObject
from automation.reconcile.desire import Desired, Desirer
from automation.reconcile.observe import Observed, observe
from automation.status.ownership import held_by_upstream
from components.options import RenderOptions
from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.errors import NotYet
from program.desired.facts import ServiceFacts
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.dialects.dialect import Dialect
from program.dialects.registry import DIALECTS, dialect_named, is_part_of_another
from program.dialects.status.accepted_version import with_accepted

API_UNAVAILABLE = "ApiUnavailable"
"""Reason of a service that depends on an API whose objects cannot be listed now."""
_RECORDED = frozenset({kinds.MODELS, kinds.LLM_CONFIGS, kinds.OPEN_MODELS, kinds.BACKEND_RUNTIMES})
"""Kinds that hold a part of a service's spec. Its history keeps them with it."""


class CacheLookup:
    """A `Lookup` in the caches for one service. It notes each object before it reads it.

    With `for_spec`, it raises NotYet for an object of a kind that is served and cannot be listed: its content is
    unknown, and the service must not be rendered as if the object did not exist.
    """

    reads_model_status = True

    def __init__(
        self,
        cache: ServiceCache,
        key: ServiceKey,
        *,
        for_spec: bool,
        is_held: Callable[[Json], bool] = lambda _: False,
    ) -> None:
        """`is_held`: whether a mode holds the present version of a LoRAAdapter back."""
        self._is_held = is_held
        self._cache = cache
        self._key = key
        self._for_spec = for_spec
        self.seen: dict[Reference, str] = {}
        """The objects that were looked up; with `for_spec`, their versions at that moment."""

    def __call__(self, kind: Kind, namespace: str | None, name: str, /) -> Json | None:
        self._note(Reference(kind, namespace or "", name))
        found = self._cache.get(kind, namespace, name)
        if found is None and self._for_spec and self._cache.pending(kind, namespace or "", name):
            why = f"{kind.kind} {namespace}/{name} has not been read yet"
            raise NotYet(reason=API_UNAVAILABLE, why=why, retry_after_s=5.0)
        return found

    def listed(self, kind: Kind, namespace: str) -> tuple[Json, ...]:
        self._note(Reference(kind, namespace, ANY))
        found = tuple(self._cache.listed(kind, namespace))
        if kind is not kinds.LORA_ADAPTERS:
            return found
        used = (with_accepted(cr) if self._is_held(cr) else cr for cr in found)
        return tuple(cr for cr in used if cr is not None)

    def _note(self, reference: Reference) -> None:
        self._cache.will_look_at(self._key, reference)
        self.seen[reference] = self._cache.version(reference) if self._for_spec else ""
        if self._for_spec and (why := self._cache.trouble(reference.kind)):
            raise NotYet(reason=API_UNAVAILABLE, why=f"{reference.kind.full_name} cannot be listed: {why}")


class Services:
    """The services of one dialect. Reads caches only. Thread-safe for different services."""

    def __init__(
        self,
        cluster: ClusterCache,
        cache: ServiceCache,
        desirer: Desirer,
        is_held: Callable[[Json], bool] = lambda _: False,
    ) -> None:
        """`is_held` returns whether a mode holds the present version of a LoRAAdapter back."""
        self._is_held = is_held
        self.info = DIALECTS[cache.name]
        self._cluster = cluster
        self._cache = cache
        self._desirer = desirer
        self._references: dict[ServiceKey, tuple[Reference, ...]] = {}
        """The objects that the last parse of a service looked up."""

    @functools.cached_property
    def _dialect(self) -> Dialect:
        """The dialect. Imported for the first service, because most clusters have services of one dialect."""
        return dialect_named(self.info.name)

    def ready(self) -> bool:
        """Return whether the dialect is served and its caches are filled. Until then its services are not changed."""
        return self._cache.ready()

    def postpone(self, key: ServiceKey) -> None:
        """Enqueue a service once `ready`. Nothing else enqueues one whose custom resource is gone."""
        self._cache.postpone(key)

    def get(self, namespace: str, name: str) -> Json | None:
        """Return a service's custom resource; None where there is none."""
        return self._cache.get(self.info.kind, namespace, name)

    def list(self) -> Sequence[Json]:
        """Return the custom resources of all services."""
        return self._cache.listed(self.info.kind)

    def is_ours(self, cr: Json) -> bool:
        """Return whether this loop reconciles a service. It skips the Service that llmaz makes for a Playground."""
        return not is_part_of_another(cr) and self._cluster.is_ours(cr, held=held_by_upstream(cr, self.info.name))

    def asked(self, key: ServiceKey, cr: Json) -> Asked:
        """Return the versions of everything that decides the rendered objects.

        These are uid, generation and annotations of the custom resource, and the versions of the objects that the last
        parse looked up (see `Desired.versions`).
        """
        metadata, versions = cr["metadata"], map(self._cache.version, self._references.get(key, ()))
        return metadata["uid"], metadata.get("generation"), metadata.get("annotations"), tuple(versions)

    def observe(self, key: ServiceKey, *, owner: str | None) -> Observed:
        """Return what exists for a service; see `automation.reconcile.observe`."""
        return observe(self._cluster, self._cache, key, owner=owner)

    def desire(self, key: ServiceKey, cr: Json, observed: Observed, options: RenderOptions) -> Desired:
        """Return the desired state of a service; see `automation.reconcile.desire`."""
        look = CacheLookup(self._cache, key, for_spec=True, is_held=self._is_held)
        try:
            desired = self._desirer.desire(key, cr, observed, self._dialect, look, options=options)
        finally:
            references = sorted(look.seen, key=str)
            self._references[key] = tuple(references)
            self._cache.needs(key, frozenset(references))
        return replace(desired, versions=tuple(look.seen[each] for each in references))

    def status(
        self, key: ServiceKey, cr: Json, service: DesiredService | None, facts: ServiceFacts, *, now: datetime
    ) -> Json:
        """Return the status; the same dict as in `cr` when nothing has changed."""
        look = CacheLookup(self._cache, key, for_spec=False)
        try:
            return self._dialect.status(cr, service, facts, look, now=now)
        finally:
            self._cache.needs(key, frozenset(look.seen), "status")

    def made_kinds(self) -> frozenset[str]:
        """Return the kinds of objects made for services that the caches hold. Of other kinds nothing is known."""
        return self._cache.made_kinds()

    def references(self, key: ServiceKey) -> tuple[Json, ...]:
        """Return the custom resources that hold a part of a service's spec, for its history."""
        found = (each for each in self._references.get(key, ()) if each.name and each.kind in _RECORDED)
        objects = (self._cache.get(each.kind, each.namespace or None, each.name) for each in found)
        return tuple(obj for obj in objects if obj is not None)

    def patches(self, key: ServiceKey, cr: Json) -> tuple[PatchObject, ...]:
        """Return the patches that add the labels of the upstream webhook, or that remove its finalizers at a deletion.

        After the upstream controller is gone, nothing else removes the finalizers, and the object could never be
        deleted.
        """
        metadata, kind = cr["metadata"], self.info.kind
        if "deletionTimestamp" in metadata:
            finalizers = metadata.get("finalizers") or []
            kept = [each for each in finalizers if each not in self._dialect.peer_finalizers]
            return (PatchObject(kind, cr, {"finalizers": kept}),) if kept != finalizers else ()
        models = [each for each in self._references.get(key, ()) if each.kind is kinds.OPEN_MODELS]
        found = []
        for of, obj in ((kind, cr), *((each.kind, self._cache.get(each.kind, None, each.name)) for each in models)):
            labels = (obj or {}).get("metadata", {}).get("labels") or {}
            missing = {k: v for k, v in (self._dialect.labels(obj) if obj else {}).items() if labels.get(k) != v}
            if obj is not None and missing:
                found.append(PatchObject(of, obj, {"labels": missing}))
        return tuple(found)

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service."""
        self._references.pop(key, None)
        self._cache.drop_service(key)
