"""The results of renderers: the Kubernetes objects of one service, ready to be registered, printed or compared."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace

from components import naming
from components.downloader import script_by_version
from components.drain import as_in_hashes
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
"""Kinds that a service serves without. A NetworkPolicy is none of them: no pod may run before it stands."""


@dataclass(frozen=True)
class RenderedObject:
    """One Kubernetes object and its place in the Pulumi program."""

    part: str
    """Its name within the service (`deployment`, `service`, `hpa`, `process`); the logical name follows from it."""
    component: str
    """Type token of the component resource that it is a child of (`naming.TYPE_…`)."""
    manifest: Json
    ignore: tuple[str, ...] = ()
    """Paths of fields that others may change: Pulumi's `ignoreChanges`. No part of the fingerprint."""
    on_drift: DriftAction = "repair"
    """What happens where others change anything else of it. No part of the fingerprint."""
    counted_spec: Json | None = None
    """The spec that hashes count, where it is another than that of `manifest` (`components.uncounted_fields`)."""

    @property
    def kind(self) -> str:
        return str(self.manifest["kind"])

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def is_accessory(self) -> bool:
        """Whether the service's pods serve without it, so that its refusal does not keep them from being made.

        The objects that choose a pod for a request are accessories: the Service of the pods leads to them as well.
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
    """All objects of one service. `shared` holds what several services use (cache claims), owned by none of them."""

    key: ServiceKey
    objects: tuple[RenderedObject, ...]
    """In order of creation. The last one carries the applied hash; it is made after all before it, and not at all where
    one of them fails that is no accessory."""
    shared: tuple[RenderedObject, ...] = ()
    fingerprint: str = field(default="")

    @staticmethod
    def of(
        key: ServiceKey, objects: tuple[RenderedObject, ...], shared: tuple[RenderedObject, ...] = ()
    ) -> RenderedService:
        """Seal the rendered objects: compute the fingerprint and write it on the last object.

        Shared objects do not count: an existing cache claim is used as it is, whatever was rendered since.
        """
        fingerprint = fingerprint_of([o.counted for o in objects])
        if not objects:
            return RenderedService(key, objects, shared, fingerprint)
        *first, last = objects
        return RenderedService(key, (*first, _sealed(last, fingerprint)), shared, fingerprint)

    @property
    def incomplete_fingerprint(self) -> str:
        """The applied hash of a service that stands but for accessories which were refused."""
        return f"{self.fingerprint}-incomplete"

    def applied_by(self, applied_hash: str) -> tuple[RenderedObject, ...]:
        """Name the objects that were applied as rendered, by the hash on the last one.

        None for the hash of another version; without accessories, any of which may be the refused one, where one was
        refused.
        """
        if applied_hash == self.fingerprint:
            return self.objects
        if applied_hash == self.incomplete_fingerprint:
            return tuple(obj for obj in self.objects if not obj.is_accessory)
        return ()

    @property
    def last_without_accessories(self) -> RenderedObject:
        """The last object as it is made when an accessory was refused.

        Its hash differs from the fingerprint, so that the loop tries again, and is the same at each try, so that a try
        does not change the object.
        """
        return _sealed(self.objects[-1], self.incomplete_fingerprint)


def _sealed(last: RenderedObject, applied_hash: str) -> RenderedObject:
    metadata = dict(last.manifest["metadata"])
    metadata["annotations"] = {**metadata.get("annotations", {}), naming.ANNOTATION_APPLIED_HASH: applied_hash}
    return replace(last, manifest={**last.manifest, "metadata": metadata})


def fingerprint_of(value: object) -> str:
    """Hash any JSON value: 16 hex digits of SHA-256 over its canonical form.

    Of the downloader's script the version counts and not the text (`components.downloader`), and how pods end
    counts as in releases before the default drain (`components.drain`). An owner reference counts as if it did not
    block the owner's deletion: earlier releases wrote it so, and an upgrade runs no engine.
    """
    text = script_by_version(json.dumps(as_in_hashes(value), sort_keys=True, separators=(",", ":")))
    text = text.replace('"blockOwnerDeletion":true', '"blockOwnerDeletion":false')
    return hashlib.sha256(text.encode()).hexdigest()[:16]
