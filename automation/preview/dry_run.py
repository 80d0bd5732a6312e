"""Sends for one object the request that the provider would send, as a dry run. Nothing is ever written.

Called by `previewer`. The rules are the provider's (`components.providers.kubernetes_calls`). Herdsman's objects get
their inputs by server-side apply. An object of another owner is refused unless adoption is requested. Replicas that an
autoscaler owns, and fields that are left to other clients, stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from automation.preview import comparing
from automation.preview.changes import ObjectChange
from automation.preview.dry_creation import dry_run_creation
from components import naming
from components.providers import kubernetes_objects as objects
from components.providers.kubernetes_applied import as_applied
from components.providers.kubernetes_clearing import apply_over
from components.providers.kubernetes_conflicts import left_accounts
from components.providers.kubernetes_diff import MISSING, leaving, parse_path, value_at, with_value
from components.providers.kubernetes_errors import Refused, about_uid, immutable_fields, refusal, role_is_late
from components.providers.kubernetes_foreign import foreign_words, may_adopt
from components.providers.kubernetes_objects import Identity
from components.providers.kubernetes_ownership import canonical, owner_of, owns
from components.providers.kubernetes_records import applied_fields, inherited
from components.providers.kubernetes_templates import as_made
from components.rendered import RenderedObject
from kubeapi.client import KubeClient
from kubeapi.dry_run import MAX_READS, is_same_version
from kubeapi.errors import ApiError, Conflict, Forbidden, Invalid, KindNotServed, NotFound, Unauthorized, Unreachable
from kubeapi.json_types import Json
from kubeapi.kinds import Kind

_REPLICAS = ("spec", "replicas")


@dataclass(frozen=True)
class DryRun:
    """The change of one object, and its two versions."""

    change: ObjectChange
    live: Json | None = None
    after: Json | None = None
    """The object after the change; None where the API server did not return it."""


def dry_run_object(
    client: KubeClient, each: RenderedObject, live: Json | None, *, shared: bool = False, given: bool = False
) -> DryRun:
    """Dry-run the apply of one object over the live one.

    `given`: the object gets another controller before the apply. Since no object can have two controllers, the dry run
    leaves the owners out. Raises Unreachable and Unauthorized; any other refusal of the API server is in the change.
    """
    identity = Identity.of(each.manifest)
    try:
        kind = client.mapping(str(each.manifest["apiVersion"]), each.kind)
        for _ in range(MAX_READS):
            try:
                outcome = _attempt_once(client, kind, each, live, shared=shared, given=given)
                if live is None or outcome.after is None or is_same_version(live, outcome.after):
                    return outcome
                live = _latest(client, kind, identity)
            except (Conflict, NotFound, Invalid) as error:
                if isinstance(error, Invalid) and not about_uid(error):
                    raise
                if isinstance(error, (NotFound, Conflict)) and not _object_changed_since_read(error, live):
                    raise
                live = _latest(client, kind, identity)
        return DryRun(
            comparing.rejected(each, live, "it was changed during the preview; run the command again", shared=shared)
        )
    except (Unreachable, Unauthorized):
        raise
    except ApiError as error:
        asked = f"{'create' if live is None else 'update'} {each.kind} `{identity.id}`"
        return DryRun(comparing.rejected(each, live, refusal(error, asked).message, shared=shared), live)


def _object_changed_since_read(error: ApiError, live: Json | None) -> bool:
    """Return whether the object was created, deleted or replaced since it was read."""
    if isinstance(error, Conflict):
        return live is None or about_uid(error)
    return live is not None and not isinstance(error, KindNotServed)


def _attempt_once(
    client: KubeClient, kind: Kind, each: RenderedObject, live: Json | None, *, shared: bool, given: bool
) -> DryRun:
    wanted = _without_owners(each.manifest) if given else each.manifest
    namespace = Identity.of(wanted).namespace if kind.namespaced else None
    if live is not None and live["metadata"].get("deletionTimestamp"):
        return DryRun(comparing.created(each, shared=shared), live)  # it will be gone by then
    if live is None:
        try:
            after = dry_run_creation(client, kind, namespace, wanted)
        except NotFound as error:
            if not role_is_late(error, wanted):
                raise
            after = None  # its role is made before it, and nothing is made in a preview
        return DryRun(comparing.created(each, shared=shared), None, after)
    owner = owner_of(live, wanted, naming.FIELD_MANAGER)
    if not (owner.ours or given or may_adopt(live, wanted)):
        why = foreign_words(each.kind, Identity.of(wanted), owner.words, live=live, wanted=wanted)
        return DryRun(comparing.rejected(each, live, why, shared=shared), live)
    left = leaving(wanted, live, [parse_path(text) for text in each.ignore])
    wanted = as_made(left, live, field_manager=naming.FIELD_MANAGER)
    replicas = value_at(live, _REPLICAS)
    if value_at(wanted, _REPLICAS) is MISSING and replicas and owns(live, naming.FIELD_MANAGER, _REPLICAS):
        wanted = with_value(wanted, _REPLICAS, replicas)
    if not given and is_applied(wanted, live, naming.FIELD_MANAGER):
        return DryRun(comparing.unchanged(each), live, live)
    claim = objects.with_metadata(wanted, uid=live["metadata"]["uid"])

    def send(sent: Json) -> Json:
        return client.apply(kind, namespace, sent, field_manager=naming.FIELD_MANAGER, force=True, dry_run=True)

    try:
        after = apply_over(client, kind, claim, send, manager=naming.FIELD_MANAGER, dry_run=True, live=live)
    except Refused as refused:
        return DryRun(comparing.rejected(each, live, refused.message, shared=shared), live)
    except (Invalid, Forbidden) as error:
        if fields := immutable_fields(error):
            return DryRun(comparing.replaced(each, live, fields), live)
        raise
    if owner.ours:
        after = without_left_behind(after, live, wanted, naming.FIELD_MANAGER)
    return DryRun(comparing.updated(each, live, after), live, after)


def is_applied(wanted: Json, live: Json, field_manager: str) -> bool:
    """Return whether an apply of `wanted` changes nothing: it has exactly the fields that the manager applied.

    False also where that is not certain, as for a value that the API server writes in another form.
    """
    if applied_fields(live, field_manager) is None or left_accounts(wanted, live, field_manager):
        return False
    # Annotations have the hash of a rendered object. They are compared first, because the rest takes longer.
    known = (live.get("metadata") or {}).get("annotations") or {}
    if any(known.get(key) != value for key, value in (wanted["metadata"].get("annotations") or {}).items()):
        return False
    return canonical(as_applied(live, field_manager)) == canonical(wanted)


def _without_owners(manifest: Json) -> Json:
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "ownerReferences"}
    return {**manifest, "metadata": metadata}


def _latest(client: KubeClient, kind: Kind, identity: Identity) -> Json | None:
    return client.find(kind, identity.namespace if kind.namespaced else None, identity.name)


# --- the first apply over another controller's object ----------------------------------------------------------------


_MAPS = frozenset({"labels", "annotations", "nodeSelector", "limits", "requests"})
"""Fields with free keys, for which the API server sets no defaults."""


def without_left_behind(after: Json, live: Json, wanted: Json, field_manager: str) -> Json:
    """Remove from a dry run's answer the fields that only Herdsman would own and that are not `wanted`."""
    before = (live.get("metadata") or {}).get("managedFields") or []
    entries = inherited(live, field_manager)
    if entries is None:
        return after
    at = next(number for number, (one, other) in enumerate(zip(before, entries, strict=True)) if one != other)
    ours = before[at].get("fieldsV1") or {}
    others = [entry.get("fieldsV1") or {} for number, entry in enumerate(before) if number != at]
    kept: Json = _kept(after, wanted, ours, others, key="")
    return kept


def _kept(value: Any, wanted: Any, ours: Json, others: list[Json], *, key: str) -> Any:
    if isinstance(value, dict):
        return _members(value, wanted if isinstance(wanted, dict) else {}, ours, others, is_map=key in _MAPS)
    if isinstance(value, list) and any(key.startswith("k:") for key in ours):
        return _items(value, wanted if isinstance(wanted, list) else [], ours, others)
    return value


def _members(value: Json, wanted: Json, ours: Json, others: list[Json], *, is_map: bool) -> Json:
    kept = {}
    for key, child in value.items():
        field = f"f:{key}"
        below = [each[field] for each in others if field in each]
        if field in ours and key in wanted:
            kept[key] = _kept(child, wanted[key], ours[field], below, key=key)
        elif field not in ours or below or not is_map:
            kept[key] = child
        # Otherwise only Herdsman would own the field, and does not apply it: it is removed.
    return kept


def _items(value: list[Any], wanted: list[Any], ours: Json, others: list[Json]) -> list[Any]:
    kept = []
    for item in value:
        field = next((key for key in ours if key.startswith("k:") and _has(item, key)), None)
        if field is None:
            kept.append(item)
            continue
        below = [each[field] for each in others if field in each]
        found = next((each for each in wanted if _has(each, field)), None)
        if found is not None:
            kept.append(_kept(item, found, ours[field], below, key=""))
        elif below:
            kept.append(item)
    return kept


def _has(item: Any, field: str) -> bool:
    key: Iterable[tuple[str, Any]] = json.loads(field[2:]).items()
    return isinstance(item, dict) and all(item.get(name, value) == value for name, value in key)
