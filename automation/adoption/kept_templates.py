"""Keeps the pod templates that an adopted service runs with until the service changes. docs/adr/0022, docs/adr/0029.

Herdsman renders other pod templates than the upstream controllers, and any difference restarts pods. `herdsman adopt`
therefore writes a digest of each live template on the service. While the service's request is the same as then, the
loop applies the live template. Each Deployment and LeaderWorkerSet has an annotation with the template's digest and a
hash of the request. A Deployment keeps its selector too, because the API server refuses a change of it.

The loop calls `KeptTemplates` in each pass, previews call `with_live_templates`. All but `KeptTemplates` is pure.
"""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from automation.adoption.owner_references import controller_uid
from automation.reconcile.plan import ObjectName
from automation.serving.rollback import replica_sets_of
from components import naming
from components.rendered import RenderedObject, RenderedService, fingerprint_of
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.desired.keys import ANNOTATION_KEPT_TEMPLATE, ServiceKey
from program.dialects.registry import LLMKUBE, qualified

REASON = "Adopted"
TEMPLATE_FIELDS = {kinds.DEPLOYMENTS.kind: "template", kinds.LEADER_WORKER_SETS.kind: "leaderWorkerTemplate"}
"""The field of the spec that pods are made from, by the kinds of objects that run pods."""
WORKLOAD_KINDS = {kind.kind: kind for kind in (kinds.DEPLOYMENTS, kinds.LEADER_WORKER_SETS)}
_POD_TEMPLATES = ("leaderTemplate", "workerTemplate")


class Record(NamedTuple):
    """The annotation of an object that keeps a template."""

    digest: str
    """The digest of the template."""
    request: str
    """Hash of the request: the fields that decide the pods, at the time of the adoption."""

    def __str__(self) -> str:
        return f"{self.digest}.{self.request}"


def comparable(template: Json) -> Json:
    """Return a pod template without the fields that the API server or a ReplicaSet adds to it."""
    metadata = template.get("metadata") or {}
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != "pod-template-hash"}
    kept = {key: value for key, value in metadata.items() if key not in ("creationTimestamp", "labels")}
    return {**template, "metadata": {**kept, **({"labels": labels} if labels else {})}}


def digest_of(template: Json) -> str:
    """Return the digest of a live template: 16 hex digits, the same for a Deployment's and its ReplicaSet's."""
    text = json.dumps(comparable(template), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def workload_digest(obj: Json) -> str:
    """Return the digest of the template of a whole live Deployment or LeaderWorkerSet."""
    return digest_of(obj["spec"][TEMPLATE_FIELDS[obj["kind"]]])


def template_by_digest(replica_sets: Iterable[Json], digest: str) -> Json | None:
    """Find the template with a digest among ReplicaSets."""
    for replica_set in replica_sets:
        template = replica_set["spec"]["template"]
        if digest_of(template) == digest:
            return comparable(template)
    return None


def kept_digests(key: ServiceKey, cr: Json) -> dict[ObjectName, str]:
    """Read the digests of the templates that a service is to keep, by the object that has each.

    The annotation is a list of `Kind/name=digest`, or for an InferenceService the digest of its one Deployment.
    """
    text = str((cr["metadata"].get("annotations") or {}).get(ANNOTATION_KEPT_TEMPLATE, ""))
    found = {}
    for part in text.split(","):
        of, equals, digest = part.strip().partition("=")
        kind, _, name = of.partition("/")
        if equals and kind in TEMPLATE_FIELDS and name and digest:
            found[ObjectName(kind, name)] = digest
        elif of and not equals and key.dialect == LLMKUBE:
            found[ObjectName(kinds.DEPLOYMENTS.kind, naming.deployment_name(key.name))] = of
    return found


def digests_text(dialect: str, objects: Mapping[ObjectName, Json]) -> str:
    """Return the annotation that keeps the templates of live objects; empty where none of them runs pods."""
    running = [(name, obj) for name, obj in sorted(objects.items()) if name.kind in TEMPLATE_FIELDS]
    if dialect == LLMKUBE:
        return ",".join(workload_digest(obj) for _, obj in running)
    return ",".join(f"{name.kind}/{name.name}={workload_digest(obj)}" for name, obj in running)


def read_record(obj: Json) -> Record | None:
    """Return the annotation of a live object; None when it keeps nothing."""
    text = (obj["metadata"].get("annotations") or {}).get(ANNOTATION_KEPT_TEMPLATE, "")
    digest, _, request = text.partition(".")
    return Record(digest, request) if digest and request else None


def request_hash(obj: RenderedObject) -> str:
    """Hash the fields of a rendered object that decide its pods.

    The commands of init containers do not count: Herdsman writes them, and a version that changes them must not restart
    pods that never ran them.
    """
    made = obj.counted["spec"][TEMPLATE_FIELDS[obj.kind]]
    if obj.kind == kinds.DEPLOYMENTS.kind:
        return fingerprint_of(_without_init_commands(made))
    return fingerprint_of(
        {key: _without_init_commands(value) if key in _POD_TEMPLATES else value for key, value in made.items()}
    )


def keeps_template(dialect: str, digest: str, obj: RenderedObject, live: Json) -> bool:
    """Return whether a live object still keeps the template with this digest, by its annotation. `live` may be trimmed.

    An object without the annotation has the template until Herdsman has applied the object. Then it has Herdsman's.
    """
    record = read_record(live)
    if record is not None:
        # Development versions counted fields that hashes do not count any more.
        return record in ((digest, request_hash(obj)), (digest, request_hash(replace(obj, counted_spec=None))))
    applied = {naming.ANNOTATION_APPLIED_HASH}
    if dialect != LLMKUBE:  # LLMKube's own controller writes the hash of the template too
        applied.add(naming.ANNOTATION_TEMPLATE_HASH)
    return applied.isdisjoint(live["metadata"].get("annotations") or {})


def with_live_templates(cr: Json, rendered: RenderedService, live: Mapping[ObjectName, Json]) -> RenderedService | None:
    """Put the templates that whole live objects keep into a rendered service; None where no object keeps one."""
    digests, found = kept_digests(rendered.key, cr), {}
    for each in rendered.objects:
        name = ObjectName(each.kind, each.name)
        obj = live.get(name)
        if obj is None or name not in digests or not keeps_template(rendered.key.dialect, digests[name], each, obj):
            continue
        if read_record(obj) is not None or workload_digest(obj) == digests[name]:
            found[name] = _kept_fields(obj)
    return _with_templates(rendered, digests, found, live) if found else None


def problem_of(key: ServiceKey, count: int) -> Problem:
    """Return the problem that names the number of kept templates and how to stop keeping them."""
    of = "the pods keep the template" if count == 1 else f"the pods keep the {count} templates"
    name = key.name if key.dialect == LLMKUBE else qualified(key.dialect, key.name)
    message = (
        f"{of} that they had at the adoption; the next change of the service replaces it with Herdsman's, as does "
        f"`herdsman adopt --refresh {name} -n {key.namespace}`"
    )
    return Problem(reason=REASON, message=message)


class KeptTemplates:
    """Reads each kept template once and holds it compressed. Thread-safe for different services."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._packed: dict[ServiceKey, dict[ObjectName, tuple[str, bytes]]] = {}

    def apply(
        self, key: ServiceKey, cr: Json, rendered: RenderedService, live: Mapping[ObjectName, Json]
    ) -> tuple[RenderedService, Problem | None]:
        """Return the service with its kept templates, and the problem that reports them.

        `live` are the service's objects in the caches. An object that the caches lack is read from the API server:
        objects of an upstream controller may lack the labels that the caches select by. Raises ApiError.
        """
        digests = kept_digests(key, cr)
        found: dict[ObjectName, Json] = {}
        known = dict(live)
        for each in rendered.objects if digests else ():
            name = ObjectName(each.kind, each.name)
            if name not in digests:
                continue
            if name not in known and (read := self._get(key, name)) is not None:
                known[name] = read
            obj = known.get(name)
            if obj is None or controller_uid(obj) != cr["metadata"]["uid"]:
                continue
            if keeps_template(key.dialect, digests[name], each, obj):
                kept = self._kept(key, name, digests[name], noted=read_record(obj) is not None)
                if kept is not None:
                    found[name] = kept
        if not found:
            self.drop_service(key)
            return rendered, None
        return _with_templates(rendered, digests, found, known), problem_of(key, len(found))

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the templates of a service that keeps none, or is gone."""
        with self._lock:
            self._packed.pop(key, None)

    def _kept(self, key: ServiceKey, name: ObjectName, digest: str, *, noted: bool) -> Json | None:
        with self._lock:
            known = self._packed.get(key, {}).get(name)
        if known is not None and known[0] == digest:
            unpacked: Json = json.loads(zlib.decompress(known[1]))
            return unpacked
        kept = self._find(key, name, digest, noted=noted)
        if kept is not None:
            packed = zlib.compress(json.dumps(kept, separators=(",", ":")).encode())
            with self._lock:
                self._packed.setdefault(key, {})[name] = (digest, packed)
        return kept

    def _find(self, key: ServiceKey, name: ObjectName, digest: str, *, noted: bool) -> Json | None:
        """Find a template by its digest: in the live object, or in a ReplicaSet if the object was changed since.

        If neither has a `noted` template, an upgrade of Kubernetes has added defaults to it. Then the live template is
        kept.
        """
        live = self._get(key, name)
        if live is None:
            return None
        kept = _kept_fields(live)
        if workload_digest(live) == digest:
            return kept
        if not noted:
            return None
        deployed = name.kind == kinds.DEPLOYMENTS.kind
        older = template_by_digest(replica_sets_of(self._client, key), digest) if deployed else None
        return {**kept, "template": older} if older is not None else kept

    def _get(self, key: ServiceKey, name: ObjectName) -> Json | None:
        return self._client.find(WORKLOAD_KINDS[name.kind], key.namespace, name.name)


def _kept_fields(obj: Json) -> Json:
    """Return the fields of a live object's spec that are kept."""
    spec, field = obj["spec"], TEMPLATE_FIELDS[obj["kind"]]
    if obj["kind"] != kinds.DEPLOYMENTS.kind:
        return {field: spec[field]}
    return {field: comparable(spec[field]), "selector": spec["selector"]}


def _without_init_commands(template: Json) -> Json:
    spec = dict(template.get("spec") or {})
    if "initContainers" in spec:
        spec["initContainers"] = [
            {key: value for key, value in each.items() if key != "command"} for each in spec["initContainers"]
        ]
    return {**template, "spec": spec}


def _with_templates(
    rendered: RenderedService,
    digests: Mapping[ObjectName, str],
    found: Mapping[ObjectName, Json],
    live: Mapping[ObjectName, Json],
) -> RenderedService:
    """Put kept fields into the rendered objects, and annotate them.

    The hash of a kept template stays, whoever wrote it.
    """
    objects = []
    for each in rendered.objects:
        name = ObjectName(each.kind, each.name)
        metadata = dict(each.manifest["metadata"])
        spec = each.manifest.get("spec")
        if each is rendered.objects[-1] or name in found:
            notes = dict(metadata.get("annotations") or {})
            notes.pop(naming.ANNOTATION_APPLIED_HASH, None)
            metadata["annotations"] = notes
        if name in found:
            before = live[name]["metadata"].get("annotations") or {}
            notes[naming.ANNOTATION_TEMPLATE_HASH] = before.get(naming.ANNOTATION_TEMPLATE_HASH) or digests[name]
            notes[ANNOTATION_KEPT_TEMPLATE] = str(Record(digests[name], request_hash(each)))
            notes.pop(naming.ANNOTATION_UNCOUNTED, None)
            spec = {**(spec or {}), **found[name]}
        manifest = {**each.manifest, "metadata": metadata, **({"spec": spec} if spec is not None else {})}
        counted = None if name in found else each.counted_spec
        objects.append(replace(each, manifest=manifest, counted_spec=counted))
    return RenderedService.of(rendered.key, tuple(objects), rendered.shared)
