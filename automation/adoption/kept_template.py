"""Keeps the pod template that an adopted service runs with, until the service is changed. docs/adr/0022.

What Herdsman renders differs from LLMKube's template, if only in the downloader's script, and any difference restarts
pods. So `herdsman adopt` writes the live template's digest on the service, and as long as the service asks for the same
as then, the live template is what is made. The Deployment notes both: which template is kept, and what was asked for.

`Checks` asks in each pass, previews ask too. All but `KeptTemplates` is pure.
"""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from automation.serving.replica_sets import replica_sets_of
from automation.serving.rollback import Template, with_template
from automation.serving.rollout import live_template_hash
from components import naming
from components.rendered import RenderedObject, RenderedService, fingerprint_of
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.desired.keys import ANNOTATION_KEPT_TEMPLATE, ServiceKey

REASON = "Adopted"


class Record(NamedTuple):
    """What a Deployment notes of the template that it keeps."""

    digest: str
    """Names the template."""
    asked: str
    """Hash of what the service asked for when it was taken over."""

    def __str__(self) -> str:
        return f"{self.digest}.{self.asked}"


def comparable(template: Json) -> Json:
    """Give a pod template without what the API server or a ReplicaSet adds to it."""
    metadata = template.get("metadata") or {}
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != "pod-template-hash"}
    kept = {key: value for key, value in metadata.items() if key not in ("creationTimestamp", "labels")}
    return {**template, "metadata": {**kept, **({"labels": labels} if labels else {})}}


def digest_of(template: Json) -> str:
    """Name a live pod template: 16 hex digits, the same for a Deployment's and its ReplicaSet's."""
    text = json.dumps(comparable(template), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def asked_hash(rendered: RenderedService) -> str:
    """Hash what a service asks of its pods; empty where it has none.

    That is the rendered template without the commands of its init containers: they are ours, and a release that changes
    them is no reason to restart pods that never ran them.
    """
    manifest = _deployment(rendered)
    if manifest is None:
        return ""
    template = manifest["spec"]["template"]
    spec = dict(template["spec"])
    if "initContainers" in spec:
        spec["initContainers"] = [
            {key: value for key, value in each.items() if key != "command"} for each in spec["initContainers"]
        ]
    return fingerprint_of({**template, "spec": spec})


def wanted_digest(cr: Json) -> str:
    """Give the digest of the template that a service is to keep; empty where none is."""
    return str((cr["metadata"].get("annotations") or {}).get(ANNOTATION_KEPT_TEMPLATE, "")).strip()


def record_of(deployment: Json) -> Record | None:
    """Read what a live Deployment notes; None where it keeps nothing."""
    text = (deployment["metadata"].get("annotations") or {}).get(ANNOTATION_KEPT_TEMPLATE, "")
    digest, _, asked = text.partition(".")
    return Record(digest, asked) if digest and asked else None


def may_keep(cr: Json, rendered: RenderedService, deployment: Json) -> bool:
    """Tell by what is noted whether a service still keeps the template that it is to keep.

    A Deployment that notes nothing has it still while we never applied it; afterwards its template is ours.
    """
    digest, record = wanted_digest(cr), record_of(deployment)
    if not digest:
        return False
    if record is not None:
        return record == (digest, asked_hash(rendered))
    return naming.ANNOTATION_APPLIED_HASH not in (deployment["metadata"].get("annotations") or {})


def keeping(cr: Json, rendered: RenderedService, deployment: Json, template: Json) -> RenderedService:
    """Put a kept template into what is rendered, and note so. The template's hash stays too, whoever wrote it."""
    record = Record(wanted_digest(cr), asked_hash(rendered))
    name = live_template_hash({"metadata": {"annotations": deployment["metadata"].get("annotations") or {}}})
    kept = with_template(rendered, Template(name or record.digest, comparable(template)))
    return RenderedService.of(kept.key, tuple(_noting(obj, record) for obj in kept.objects), kept.shared)


def kept_live(cr: Json, rendered: RenderedService, deployment: Json | None) -> RenderedService | None:
    """Do the same with a whole live Deployment, for a preview; None where nothing is kept."""
    if deployment is None or _deployment(rendered) is None or not may_keep(cr, rendered, deployment):
        return None
    template = deployment["spec"]["template"]
    if record_of(deployment) is None and digest_of(template) != wanted_digest(cr):
        return None
    return keeping(cr, rendered, deployment, template)


def _noting(obj: RenderedObject, record: Record) -> RenderedObject:
    if obj.kind != "Deployment":
        return obj
    metadata = obj.manifest["metadata"]
    notes = {k: v for k, v in metadata["annotations"].items() if k != naming.ANNOTATION_APPLIED_HASH}
    notes[ANNOTATION_KEPT_TEMPLATE] = str(record)
    return replace(obj, manifest={**obj.manifest, "metadata": {**metadata, "annotations": notes}})


def _deployment(rendered: RenderedService) -> Json | None:
    return next((obj.manifest for obj in rendered.objects if obj.kind == "Deployment"), None)


def problem_of(key: ServiceKey) -> Problem:
    """Say that a template is kept, and how that ends."""
    message = (
        "the pods keep the template that they ran with when the service was taken over; Herdsman's comes with the next "
        f"change of the service, or by `herdsman adopt --refresh {key.name} -n {key.namespace}`"
    )
    return Problem(reason=REASON, message=message)


class KeptTemplates:
    """The templates that are kept, read once for each service, and held packed. Thread-safe for different services."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._packed: dict[ServiceKey, tuple[str, bytes]] = {}

    def apply(
        self, key: ServiceKey, cr: Json, rendered: RenderedService, deployment: Json | None
    ) -> tuple[RenderedService, Problem | None]:
        """Return what is to be made, with the kept template where one is, and what to say of it.

        `deployment` is the live one as the cache has it. Raises ApiError when the API server cannot be asked.
        """
        ours = deployment is not None and deployment["metadata"]["owner"] == cr["metadata"]["uid"]
        if deployment is None or not ours or _deployment(rendered) is None or not may_keep(cr, rendered, deployment):
            self.drop_service(key)
            return rendered, None
        template = self._template(key, wanted_digest(cr), noted=record_of(deployment) is not None)
        if template is None:
            return rendered, None
        return keeping(cr, rendered, deployment, template), problem_of(key)

    def drop_service(self, key: ServiceKey) -> None:
        """Let go of a service that keeps nothing, or is gone."""
        with self._lock:
            self._packed.pop(key, None)

    def _template(self, key: ServiceKey, digest: str, *, noted: bool) -> Json | None:
        with self._lock:
            known = self._packed.get(key)
        if known is not None and known[0] == digest:
            unpacked: Json = json.loads(zlib.decompress(known[1]))
            return unpacked
        template = self._find(key, digest, noted=noted)
        if template is not None:
            packed = zlib.compress(json.dumps(template, separators=(",", ":")).encode())
            with self._lock:
                self._packed[key] = (digest, packed)
        return template

    def _find(self, key: ServiceKey, digest: str, *, noted: bool) -> Json | None:
        """Find a template by its digest: it lives, or somebody changed it since and a ReplicaSet has it.

        One that was noted and is nowhere got other defaults by an upgrade of Kubernetes: then the live one is it.
        """
        try:
            live: Json = self._client.get(kinds.DEPLOYMENTS, key.namespace, naming.deployment_name(key.name))
        except NotFound:
            return None
        template: Json = live["spec"]["template"]
        if digest_of(template) == digest:
            return comparable(template)
        if not noted:
            return None
        older = template_by_digest(replica_sets_of(self._client, key), digest)
        return older if older is not None else comparable(template)


def template_by_digest(replica_sets: Iterable[Json], digest: str) -> Json | None:
    """Find the template of a digest among ReplicaSets."""
    for replica_set in replica_sets:
        template = replica_set["spec"]["template"]
        if digest_of(template) == digest:
            return comparable(template)
    return None
