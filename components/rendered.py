"""The results of renderers: the Kubernetes objects of one service, to be registered, printed or compared."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace

from components import naming
from components.downloader import STAND_IN, download_script, script_by_version
from components.drained_pods import as_in_hashes
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.desired.service import DriftAction

ACCESSORY_KINDS = frozenset(
    kind.kind
    for kind in (
        *(kinds.AUTOSCALERS, kinds.SCALED_OBJECTS, kinds.DISRUPTION_BUDGETS, kinds.HTTP_ROUTES, kinds.INGRESSES),
        *(kinds.INFERENCE_POOLS, kinds.POD_MONITORS, kinds.SERVICE_LEVEL_OBJECTIVES),
    )
)
"""Kinds that a service can serve without. A NetworkPolicy is not one of them: it must exist before a pod runs."""


@dataclass(frozen=True)
class RenderedObject:
    """One Kubernetes object and its place in the Pulumi program."""

    part: str
    """Its name within the service (`deployment`, `service`, `hpa`, `process`), from which its logical name is built."""
    component: str
    """Type token of the component resource that is its parent (`naming.TYPE_…`)."""
    manifest: Json
    ignore: tuple[str, ...] = ()
    """Paths of fields that other clients may change: Pulumi's `ignoreChanges`. Not part of the fingerprint."""
    on_drift: DriftAction = "repair"
    """The action if other clients change any other field. Not part of the fingerprint."""
    counted_spec: Json | None = None
    """The spec that hashes count; None if it is that of `manifest` (`components.uncounted_fields`)."""

    @property
    def kind(self) -> str:
        return str(self.manifest["kind"])

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def is_accessory(self) -> bool:
        """Whether the service's pods serve without it, so that they are made even if the cluster refuses it.

        Objects that choose a pod for a request are accessories, because clients can also use the Service of the pods.
        """
        return self.kind in ACCESSORY_KINDS or self.component == naming.TYPE_ROUTING

    @property
    def counted(self) -> Json:
        """The manifest as the fingerprint counts it."""
        if self.counted_spec is None:
            return self.manifest
        metadata = dict(self.manifest["metadata"])
        annotations = {k: v for k, v in metadata["annotations"].items() if k != naming.ANNOTATION_UNCOUNTED}
        return {**self.manifest, "metadata": {**metadata, "annotations": annotations}, "spec": self.counted_spec}


@dataclass(frozen=True)
class RenderedService:
    """All objects of one service.

    `shared` holds objects that several services use (cache claims); no service owns them.
    """

    key: ServiceKey
    objects: tuple[RenderedObject, ...]
    """In order of creation. The last one carries the applied hash. It is made after all others, and not at all if one
    of them fails that is not an accessory."""
    shared: tuple[RenderedObject, ...] = ()
    fingerprint: str = field(default="")

    @staticmethod
    def of(
        key: ServiceKey, objects: tuple[RenderedObject, ...], shared: tuple[RenderedObject, ...] = ()
    ) -> RenderedService:
        """Return the rendered objects with their fingerprint, which is written on the last object.

        Shared objects do not count: an existing cache claim is used without changes.
        """
        fingerprint = fingerprint_of([o.counted for o in objects])
        if not objects:
            return RenderedService(key, objects, shared, fingerprint)
        *first, last = objects
        return RenderedService(key, (*first, _sealed(last, fingerprint)), shared, fingerprint)

    @property
    def incomplete_fingerprint(self) -> str:
        """The applied hash of a service whose objects all exist except refused accessories."""
        return f"{self.fingerprint}-incomplete"

    def applied_by(self, applied_hash: str) -> tuple[RenderedObject, ...]:
        """Return the objects that were applied as rendered, according to the hash on the last object.

        Returns no objects for the hash of another version. If an accessory was refused, returns none of the
        accessories, because the hash does not identify the refused one.
        """
        if applied_hash == self.fingerprint:
            return self.objects
        if applied_hash == self.incomplete_fingerprint:
            return tuple(obj for obj in self.objects if not obj.is_accessory)
        return ()

    @property
    def last_without_accessories(self) -> RenderedObject:
        """The last object in the form for a service of which an accessory was refused.

        Its hash differs from the fingerprint, so that the loop tries again. It is the same at each try, so that a try
        does not change the object.
        """
        return _sealed(self.objects[-1], self.incomplete_fingerprint)


def _sealed(last: RenderedObject, applied_hash: str) -> RenderedObject:
    metadata = dict(last.manifest["metadata"])
    metadata["annotations"] = {**metadata.get("annotations", {}), naming.ANNOTATION_APPLIED_HASH: applied_hash}
    return replace(last, manifest={**last.manifest, "metadata": metadata})


def fingerprint_of(value: object) -> str:
    """Return 16 hex digits of the SHA-256 of a JSON value in canonical form.

    The downloader's script counts by its version and not by its text (`components.downloader`). The end of pods counts
    in the form of the versions before the default drain (`components.drained_pods`). An owner reference counts with
    `blockOwnerDeletion: false`, which development versions wrote, so that an upgrade runs no engine.
    """
    counted = as_in_hashes(value, {download_script(): STAND_IN})
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"))
    text = script_by_version(text.replace('"blockOwnerDeletion":true', '"blockOwnerDeletion":false'))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
