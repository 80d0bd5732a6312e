"""Keeps the pods that an adopted service of KServe or llmaz runs with, until the service is changed. docs/adr/0022.

As `kept_template` does for LLMKube's one Deployment, for every Deployment and LeaderWorkerSet that a service describes:
`herdsman adopt` writes on the service which of them had which template, each object notes the template that it keeps
and what was asked for then. Of a Deployment the selector is kept too, which could change only with a new object.

The controller asks in each pass, previews ask too. All but `KeptWorkloads` is pure.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Mapping
from dataclasses import replace

from automation.adoption.kept_template import REASON, Record, comparable, digest_of, record_of, template_by_digest
from automation.reconcile.plan import ObjectName
from automation.serving.replica_sets import replica_sets_of
from components import naming
from components.rendered import RenderedObject, RenderedService, fingerprint_of
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.desired.keys import ANNOTATION_KEPT_TEMPLATE, ServiceKey
from program.dialects.registry import qualified

_FIELDS = {kinds.DEPLOYMENTS.kind: "template", kinds.LEADER_WORKER_SETS.kind: "leaderWorkerTemplate"}
"""Where each kind has what its pods are made from."""
_TEMPLATES = ("leaderTemplate", "workerTemplate")
_KINDS = {kind.kind: kind for kind in (kinds.DEPLOYMENTS, kinds.LEADER_WORKER_SETS)}


def runs_pods(kind: str) -> bool:
    """Tell whether objects of a kind hold pod templates that may be kept."""
    return kind in _FIELDS


def kept_digests(cr: Json) -> dict[ObjectName, str]:
    """Read which templates a service is to keep, by the object that has each: `Kind/name=digest`, by comma."""
    text = str((cr["metadata"].get("annotations") or {}).get(ANNOTATION_KEPT_TEMPLATE, ""))
    found = {}
    for part in text.split(","):
        of, _, digest = part.strip().partition("=")
        kind, _, name = of.partition("/")
        if runs_pods(kind) and name and digest:
            found[ObjectName(kind, name)] = digest
    return found


def digests_text(objects: Mapping[ObjectName, Json]) -> str:
    """Write the annotation that keeps the templates of these live objects; empty where none of them has any."""
    parts = [
        f"{name.kind}/{name.name}={workload_digest(obj)}"
        for name, obj in sorted(objects.items())
        if runs_pods(name.kind)
    ]
    return ",".join(parts)


def workload_digest(obj: Json) -> str:
    """Name what the pods of a whole live object are made from: 16 hex digits."""
    return digest_of(_made_from(obj))


def may_keep(name: ObjectName, digests: Mapping[ObjectName, str], each: RenderedObject, live: Json) -> bool:
    """Tell by what is noted whether an object still keeps the template that it is to keep. `live` may be trimmed.

    One that notes nothing has it still while we never applied it; afterwards its template is ours.
    """
    digest, record = digests.get(name, ""), record_of(live)
    if not digest:
        return False
    if record is not None:
        # A release before counted what hashes do not count any more.
        return record in ((digest, asked_of(each)), (digest, asked_of(replace(each, counted_spec=None))))
    annotations = live["metadata"].get("annotations") or {}
    return naming.ANNOTATION_TEMPLATE_HASH not in annotations and naming.ANNOTATION_APPLIED_HASH not in annotations


def asked_of(each: RenderedObject) -> str:
    """Hash what a rendered object asks of its pods, without the commands of init containers, which are ours."""
    made = each.counted["spec"][_FIELDS[each.kind]]
    if each.kind == kinds.DEPLOYMENTS.kind:
        return fingerprint_of(_asked(made))
    return fingerprint_of({key: _asked(value) if key in _TEMPLATES else value for key, value in made.items()})


def kept_live_workloads(cr: Json, rendered: RenderedService, live: Mapping[ObjectName, Json]) -> RenderedService | None:
    """Put what whole live objects keep into what is rendered, for a preview; None where nothing is kept."""
    digests, found = kept_digests(cr), {}
    for each in rendered.objects:
        name = ObjectName(each.kind, each.name)
        obj = live.get(name)
        if obj is None or not may_keep(name, digests, each, obj):
            continue
        if record_of(obj) is not None or workload_digest(obj) == digests[name]:
            found[name] = _kept_of(obj)
    return _keeping(rendered, digests, found, live) if found else None


def problem_of(key: ServiceKey, count: int) -> Problem:
    """Say that templates are kept, and how that ends."""
    of = "the pods keep the template" if count == 1 else f"the pods keep the {count} templates"
    message = (
        f"{of} that they ran with when the service was taken over; Herdsman's comes with the next change of the "
        f"service, or by `herdsman adopt --refresh {qualified(key.dialect, key.name)} -n {key.namespace}`"
    )
    return Problem(reason=REASON, message=message)


class KeptWorkloads:
    """The templates that are kept, each read once and held packed. Thread-safe for different services."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._packed: dict[ServiceKey, dict[ObjectName, tuple[str, bytes]]] = {}

    def apply(
        self, key: ServiceKey, cr: Json, rendered: RenderedService, live: Mapping[ObjectName, Json]
    ) -> tuple[RenderedService, Problem | None]:
        """Return what is to be made, with kept templates where there are any, and what to say of it.

        `live` are the service's objects as the caches have them; those of other kinds do not count. One that the caches
        lack is asked for, since what a peer made may carry no label of ours before we apply it. Raises ApiError when
        the API server cannot be asked.
        """
        digests = kept_digests(cr)
        found: dict[ObjectName, Json] = {}
        known = dict(live)
        for each in rendered.objects if digests else ():
            name = ObjectName(each.kind, each.name)
            if name not in known and name in digests and (asked := self._get(key, name)) is not None:
                known[name] = asked
            obj = known.get(name)
            if obj is None or _owner_uid(obj) != cr["metadata"]["uid"]:
                continue
            if may_keep(name, digests, each, obj):
                kept = self._kept(key, name, digests[name], noted=record_of(obj) is not None)
                if kept is not None:
                    found[name] = kept
        if not found:
            self.drop_service(key)
            return rendered, None
        return _keeping(rendered, digests, found, known), problem_of(key, len(found))

    def drop_service(self, key: ServiceKey) -> None:
        """Let go of a service that keeps nothing, or is gone."""
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
        """Find a template by its digest: it lives, or somebody changed it since and a ReplicaSet has it.

        One that was noted and is nowhere got other defaults by an upgrade: then the live one is it.
        """
        live = self._get(key, name)
        if live is None:
            return None
        kept = _kept_of(live)
        if workload_digest(live) == digest:
            return kept
        if not noted:
            return None
        deployed = name.kind == kinds.DEPLOYMENTS.kind
        older = template_by_digest(replica_sets_of(self._client, key), digest) if deployed else None
        return {**kept, "template": older} if older is not None else kept

    def _get(self, key: ServiceKey, name: ObjectName) -> Json | None:
        try:
            return self._client.get(_KINDS[name.kind], key.namespace, name.name)
        except NotFound:
            return None


def _owner_uid(obj: Json) -> str:
    """Give the uid of the custom resource that an object belongs to, of a whole object or of a trimmed one."""
    metadata = obj["metadata"]
    references = metadata.get("ownerReferences") or ()
    whole = next((each["uid"] for each in references if each.get("controller")), "")
    return str(metadata.get("owner") or whole)


def _made_from(obj: Json) -> Json:
    found: Json = obj["spec"][_FIELDS[obj["kind"]]]
    return found


def _kept_of(obj: Json) -> Json:
    """Give the fields of a live object's spec that are kept."""
    spec, field = obj["spec"], _FIELDS[obj["kind"]]
    if obj["kind"] != kinds.DEPLOYMENTS.kind:
        return {field: spec[field]}
    return {field: comparable(spec[field]), "selector": spec["selector"]}


def _asked(template: Json) -> Json:
    spec = dict(template.get("spec") or {})
    if "initContainers" in spec:
        spec["initContainers"] = [
            {key: value for key, value in each.items() if key != "command"} for each in spec["initContainers"]
        ]
    return {**template, "spec": spec}


def _keeping(
    rendered: RenderedService,
    digests: Mapping[ObjectName, str],
    found: Mapping[ObjectName, Json],
    live: Mapping[ObjectName, Json],
) -> RenderedService:
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
            notes[ANNOTATION_KEPT_TEMPLATE] = str(Record(digests[name], asked_of(each)))
            notes.pop(naming.ANNOTATION_UNCOUNTED, None)
            spec = {**(spec or {}), **found[name]}
        manifest = {**each.manifest, "metadata": metadata, **({"spec": spec} if spec is not None else {})}
        counted = None if name in found else each.counted_spec
        objects.append(replace(each, manifest=manifest, counted_spec=counted))
    return RenderedService.of(rendered.key, tuple(objects), rendered.shared)
