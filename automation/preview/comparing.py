"""Compares a live object with the answer of a dry run, and names the change. Pure.

Called by `previewer` and `dry_run`. A dry run's answer differs from the live object only in what the apply changes, and
in what the API server does because of it. So both objects are compared whole, not only in Herdsman's fields.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from automation.engine.differences import differences
from automation.preview.changes import ObjectChange
from automation.reconcile.plan import ObjectName
from components import naming
from components.providers.kubernetes_diff import MISSING, changes, value_at
from components.providers.kubernetes_objects import LAST_APPLIED_ANNOTATION
from components.providers.kubernetes_ownership import drift
from components.providers.kubernetes_templates import as_made
from components.rendered import RenderedObject, RenderedService
from kubeapi.json_types import Json

_QUIET = frozenset(
    {
        *(naming.ANNOTATION_APPLIED_HASH, naming.ANNOTATION_TEMPLATE_HASH, naming.ANNOTATION_UNCOUNTED),
        LAST_APPLIED_ANNOTATION,
    }
)
"""Annotations in which Herdsman and kubectl note what they applied. Previews do not show them."""
_ASSIGNED = ("clusterIP", "clusterIPs", "healthCheckNodePort")
"""Fields of a Service that get another value from the API server in each dry run."""
_DIGITS = 16


def created(each: RenderedObject, *, shared: bool = False, refused: str = "") -> ObjectChange:
    """Return the creation of an object that does not exist."""
    wanted = _visible(each.manifest, each.manifest)
    wanted["metadata"].pop("ownerReferences", None)  # the uid of a custom resource that does not exist yet
    return ObjectChange("create", each.kind, each.name, digest=_hash(wanted), refused=refused, shared=shared)


def unchanged(each: RenderedObject) -> ObjectChange:
    """Return that an object stays as it is."""
    return ObjectChange("same", each.kind, each.name)


def updated(each: RenderedObject, live: Json, after: Json) -> ObjectChange:
    """Compare a live object with the answer of the dry run of its apply."""
    before, then = _visible(live, each.manifest), _visible(after, each.manifest)
    if before == then:
        return unchanged(each)
    fields = differences(before, then) or ("in another order",)
    return ObjectChange("update", each.kind, each.name, fields, _hash(_changed_values(before, then)))


def replaced(each: RenderedObject, live: Json, immutable: Iterable[str]) -> ObjectChange:
    """Return the replacement of an object whose fields `immutable` cannot change in place."""
    wanted = _visible(each.manifest, each.manifest)
    kept = tuple(f"{field} cannot change in place" for field in dict.fromkeys(immutable))
    differing = differences(_like(_visible(live, each.manifest), wanted), wanted)
    wanted["metadata"].pop("ownerReferences", None)
    digest = _hash([live["metadata"].get("uid"), wanted])
    return ObjectChange("replace", each.kind, each.name, (*kept, *differing), digest)


def rejected(each: RenderedObject, live: Json | None, why: str, *, shared: bool = False) -> ObjectChange:
    """Return the change of an object that is refused, and why."""
    change = created(each, shared=shared, refused=why)
    return change if live is None else replace(change, op="update")


def deleted(name: ObjectName, uid: str) -> ObjectChange:
    """Return the deletion of an object that is not rendered any more."""
    return ObjectChange("delete", name.kind, name.name, digest=_hash(uid))


def is_settled(rendered: RenderedService, live: Mapping[ObjectName, Json]) -> bool:
    """Return whether no object of a service changes, without a dry run.

    The last object has the hash of all applied objects, and the API server records in managedFields whether another
    client changed one since (docs/adr/0005).
    """
    if rendered.shared or not rendered.objects or applied(rendered, live) != rendered.objects:
        return False
    found = [(each, live.get(ObjectName(each.kind, each.name))) for each in rendered.objects]
    return all(
        obj is not None
        and "deletionTimestamp" not in obj["metadata"]
        and not drift(as_made(each.manifest, obj, field_manager=naming.FIELD_MANAGER), obj, naming.FIELD_MANAGER)
        for each, obj in found
    )


def applied(rendered: RenderedService, live: Mapping[ObjectName, Json]) -> tuple[RenderedObject, ...]:
    """Return the objects that were applied as rendered: any difference of a live one is a change of another client."""
    last = rendered.objects[-1] if rendered.objects else None
    obj = live.get(ObjectName(last.kind, last.name)) if last is not None else None
    return rendered.applied_by(_annotations(obj).get(naming.ANNOTATION_APPLIED_HASH, "")) if obj is not None else ()


def pod_template_changes(live: Json, after: Json) -> bool:
    """Return whether a Deployment or LeaderWorkerSet gets another pod template, so that its pods are replaced."""
    paths = (("spec", "template"), ("spec", "leaderWorkerTemplate"))
    return any(value_at(live, path) != value_at(after, path) for path in paths)


def _visible(obj: Json, manifest: Json) -> Json:
    """Return the fields whose change a preview shows, without assigned fields of a Service that `manifest` lacks."""
    metadata = obj.get("metadata") or {}
    annotations = {key: value for key, value in _annotations(obj).items() if key not in _QUIET}
    kept = {"labels": metadata.get("labels") or {}, "annotations": annotations}
    if references := metadata.get("ownerReferences"):
        kept["ownerReferences"] = references
    shown = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata", "status")}
    if manifest.get("kind") == "Service" and isinstance(shown.get("spec"), dict):
        shown["spec"] = _without_assigned(shown["spec"], manifest.get("spec") or {})
    return {"metadata": kept, **shown}


def _without_assigned(spec: Json, given: Json) -> Json:
    ports = {port.get("name"): port for port in given.get("ports") or ()}

    def port_of(port: Json) -> Json:
        asked = "nodePort" in ports.get(port.get("name"), {})
        return port if asked else {key: value for key, value in port.items() if key != "nodePort"}

    kept = {key: value for key, value in spec.items() if key not in _ASSIGNED or key in given}
    return {**kept, "ports": [port_of(port) for port in spec.get("ports") or ()]}


def _annotations(obj: Json) -> Json:
    return (obj.get("metadata") or {}).get("annotations") or {}


def _like(live: Any, wanted: Any) -> Any:
    """Return the part of a live value that `wanted` has, so that defaults do not look like differences."""
    if isinstance(live, dict) and isinstance(wanted, dict):
        return {key: _like(live[key], value) for key, value in wanted.items() if key in live}
    if isinstance(live, list) and isinstance(wanted, list) and len(live) == len(wanted):
        return [_like(one, other) for one, other in zip(live, wanted, strict=True)]
    return live


def _changed_values(before: Json, after: Json) -> list[list[Any]]:
    def at(obj: Json, path: tuple[str | int, ...]) -> Any:
        value = value_at(obj, path)
        return [] if value is MISSING else [value]

    return [[list(each.path), at(before, each.path), at(after, each.path)] for each in changes(before, after)]


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
