"""Moves services between the loop and a static fleet: the owners of the objects change, and the pods keep running.

Called by `herdsman fleet take` and `give` with the plan of `planning`. The objects show their owner: the loop writes
owner references, a fleet the annotation `naming.ANNOTATION_FLEET`. Each side's provider leaves the other side's objects
alone, whatever its state contains (`components.providers.kubernetes_ownership`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from automation.adoption.kept_templates import TEMPLATE_FIELDS
from automation.adoption.moving.move import (
    Move,
    MoveFailed,
    is_gone,
    kind_of,
    kind_of_service,
    owned_objects,
    read_again,
)
from automation.adoption.moving.planning import MODEL_FILE_STATUS
from automation.adoption.owner_references import is_owned, replace_owner
from automation.cache.owners import service_of
from automation.certificates.issuing import ANNOTATION_NAMES
from components import naming
from components.naming import owner_reference
from kubeapi import kinds
from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.errors import Conflict, NotFound
from kubeapi.json_types import Json
from kubeapi.rest import METADATA
from program.desired import keys
from program.dialects.llmkube.status.model import known_status
from program.dialects.registry import KINDS, REFERRERS, kind_text, referrer_of

MANAGER = "herdsman-move"
SETTLE_S = 2.0
"""Seconds from the change of the owners to the deletion of the custom resource: the caches must see the first."""
ROUNDS = 5
TIMEOUT_S = 60.0


def release_to_fleet(client: KubeClient, cr: Json, move: Move, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Release the objects of a service from the loop; afterwards they have no owner until the fleet imports them.

    Marks the objects, removes their references to the custom resource, and deletes it. May be called again after a
    failure. Raises MoveFailed and ApiError.
    """
    if move.is_resource:
        _mark_resource(client, move, naming.FLEET_TO_COME)
        return
    uid, kind = cr["metadata"]["uid"], KINDS[move.key.dialect]
    _keep_replicas(client, move)
    # First the Secret: while it has its owner, Kubernetes deletes it with a service that a user deletes half-way.
    if move.secret:
        _own_secret(client, move, remove=uid)
    for _ in range(ROUNDS):
        for obj in move.objects:
            replace_owner(
                client,
                kind_of(obj),
                obj,
                remove=uid,
                annotations={naming.ANNOTATION_FLEET: naming.FLEET_TO_COME},
                field_manager=MANAGER,
            )
        sleep(SETTLE_S)
        # A run of the loop that was under way may have put its reference back.
        if not owned_objects(client, move.key.dialect, move.key.namespace, lambda obj: is_owned(obj, uid)):
            break
    else:
        raise MoveFailed(
            f"the loop adopts the objects of {move.name} again after each release; check that it has the "
            f"version of this command"
        )
    if move.secret:  # a run of the loop may have replaced the certificate, with its owner
        _own_secret(client, move, remove=uid)
    with suppress(NotFound):
        client.delete(kind, move.key.namespace, move.key.name, uid=uid)
    _wait_for(
        lambda: is_gone(client, move.key, uid), f"the deletion of {kind_text(move.key.dialect)} {move.name}", sleep
    )
    for obj in move.objects:
        live = read_again(client, obj)
        if live is None or live["metadata"]["uid"] != obj["metadata"]["uid"]:
            raise MoveFailed(
                f"{obj['kind']} {move.name} was created again during the move; `pulumi up` creates the missing objects"
            )
    for revision in client.list(kinds.CONTROLLER_REVISIONS, move.key.namespace)["items"]:
        if is_owned(revision, uid):
            with suppress(NotFound):
                client.delete(kinds.CONTROLLER_REVISIONS, move.key.namespace, revision["metadata"]["name"])


def give_to_loop(client: KubeClient, move: Move, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Apply the custom resources of a fleet's service, and wait until the loop has adopted the objects.

    May be called again after a failure. Raises MoveFailed and ApiError.
    """
    if move.is_resource:
        _mark_resource(client, move, None)
        return
    *referred, service = move.documents
    for document in referred:
        _apply_referred(client, document)
    for obj in move.objects:
        metadata, unmark = obj["metadata"], {"metadata": {"annotations": {naming.ANNOTATION_FLEET: None}}}
        client.patch(kind_of(obj), metadata.get("namespace"), metadata["name"], unmark, field_manager=MANAGER)
    applied = move.given or client.apply(kind_of_service(service), move.key.namespace, service, field_manager=MANAGER)
    uid = applied["metadata"]["uid"]
    if move.secret:
        _own_secret(client, move, add_to=applied)
    ownable = [obj for obj in move.objects if obj["metadata"].get("namespace")]
    _wait_for(
        lambda: all(is_owned(live, uid) for obj in ownable if (live := read_again(client, obj)) is not None),
        f"the loop to adopt the objects of {move.name}; check that it runs and manages this namespace",
        sleep,
    )


def _mark_resource(client: KubeClient, move: Move, mark: str | None) -> None:
    """Mark a ModelRouter, ModelPool or LoRAAdapter for a fleet, or remove the mark. All else stays."""
    body = {"metadata": {"annotations": {naming.ANNOTATION_FLEET: mark}}}
    for obj in move.objects:
        client.patch(kind_of(obj), move.key.namespace, move.key.name, body, field_manager=MANAGER)


def urns_of(key: keys.ServiceKey, deployment: Json) -> list[str]:
    """Find the URNs of a service in a stack's deployment (of `pulumi stack export`), objects before their components.

    Raises MoveFailed where the stack has the service in several clusters.
    """
    own = [each for each in deployment.get("resources") or () if each.get("custom") and _belongs_to(each, key)]
    if len({(each["type"], each["id"]) for each in own}) < len(own):
        raise MoveFailed(
            f"the stack has {key.namespace}/{key.name} in several clusters; remove the URNs of one cluster with "
            f"`pulumi state delete`"
        )
    return [*(str(each["urn"]) for each in own), *dict.fromkeys(str(each["parent"]) for each in own)]


def _belongs_to(resource: Json, key: keys.ServiceKey) -> bool:
    inputs = resource.get("inputs") or {}
    metadata = inputs.get("metadata") or {}
    if (word := referrer_of(inputs)) or key.dialect in REFERRERS:
        return (word, metadata.get("namespace"), metadata.get("name")) == (key.dialect, key.namespace, key.name)
    # A binding of the whole cluster is in no namespace; the account that it binds is.
    namespaces = {metadata.get("namespace"), *(one.get("namespace") for one in inputs.get("subjects") or ())} - {None}
    return namespaces == {key.namespace} and service_of({"metadata": {**metadata, "namespace": key.namespace}}) == key


def _apply_referred(client: KubeClient, document: Json) -> None:
    """Apply an object that a service refers to; of a Model also the status that describes its file."""
    metadata, kind = document["metadata"], client.mapping(document["apiVersion"], document["kind"])
    status = {k: v for k, v in document.get("status", {}).items() if k in MODEL_FILE_STATUS}
    body = {k: v for k, v in document.items() if k != "status"}
    live = client.apply(kind, metadata.get("namespace"), body, field_manager=MANAGER, force=True)
    if status and not known_status(live).get("path"):
        client.patch(kind, metadata["namespace"], metadata["name"], {"status": status}, subresource="status")


def _keep_replicas(client: KubeClient, move: Move) -> None:
    """Own the number of replicas where the fleet leaves it to an autoscaler and the loop does not.

    A field that its only owner no longer applies returns to its default, which is one pod. An autoscaler owns the field
    from its first write on.
    """
    for each in move.rendered.objects if move.rendered is not None else ():
        live = move.live(each.kind, each.name)
        if each.kind not in TEMPLATE_FIELDS or live is None or "replicas" in each.manifest["spec"]:
            continue
        metadata = {key: live["metadata"][key] for key in ("name", "namespace", "uid")}
        claim = {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": metadata}
        claim["spec"] = {"replicas": live["spec"].get("replicas", 1)}
        with suppress(Conflict):  # another client has scaled it meanwhile, and owns the field
            client.apply(kind_of(live), metadata["namespace"], claim, field_manager=MANAGER)


def _is_made_here(metadata: Json) -> bool:
    return not {ANNOTATION_NAMES, keys.ANNOTATION_ENGINE_KEY}.isdisjoint(metadata.get("annotations") or {})


def _own_secret(client: KubeClient, move: Move, *, remove: str = "", add_to: Json | None = None) -> None:
    """Remove a service from the owners of the Secret that the loop made, or add it. The data are never read."""
    path = kinds.SECRETS.path(move.key.namespace, move.secret)
    while True:
        try:
            metadata = client.request("GET", path, accept=METADATA)["metadata"]
        except NotFound:
            return
        owners = metadata.get("ownerReferences") or []
        if add_to is None:
            kept = [each for each in owners if each.get("uid") != remove]
        elif _is_made_here(metadata) and not any(each.get("controller") for each in owners):
            kept = [*owners, owner_reference(keys.Owner.of(add_to))]
        else:
            return
        if kept == owners:
            return
        body = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
            {"op": "add", "path": "/metadata/ownerReferences", "value": kept},
        ]
        with suppress(Conflict):
            client.request(
                "PATCH",
                path,
                query={"fieldManager": MANAGER},
                body=body,
                content_type=JSON_PATCH,
                accept=METADATA,
            )
            return


def _wait_for(done: Callable[[], bool], what: str, sleep: Callable[[float], None]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not done():
        if time.monotonic() > deadline:
            raise MoveFailed(f"waited {TIMEOUT_S:.0f} s for {what}")
        sleep(0.3)
