"""Moves services between the loop and a static fleet without touching what runs: who owns the objects changes, no more.

Called by `herdsman fleet take` and `give` with what `planning` worked out. What keeps either side from deleting or
changing what the other has by then stands on the objects: the controller that the loop writes, the mark of the fleet
(`naming.ANNOTATION_FLEET`); the providers of both obey it (`components.providers.kubernetes_ownership`), whatever their
state says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from automation.adoption.moving.comparing import RUNS
from automation.adoption.moving.move import (
    Move,
    MoveFailed,
    again,
    annotations_of,
    is_gone,
    is_owned,
    kind_of,
    owned_objects,
)
from automation.adoption.moving.planning import OF_FILE
from automation.cache.owners import service_of
from automation.certificates.issuing import ANNOTATION_NAMES
from components import naming
from components.object_metadata import owner_reference
from kubeapi import kinds
from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.errors import Conflict, NotFound
from kubeapi.json_types import Json
from kubeapi.rest import METADATA
from program.desired import keys
from program.dialects.llmkube.status.model import known_status
from program.dialects.registry import KINDS, kind_text

MANAGER = "herdsman-move"
SETTLE_S = 2.0
"""Between letting go of the objects and deleting the custom resource: a loop's caches must know the former first."""
ROUNDS = 5
TIMEOUT_S = 60.0


def take(client: KubeClient, cr: Json, move: Move, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Have the loop let go of a service: afterwards its objects belong to nobody, and wait for the fleet.

    Marks them, takes the references to the custom resource off, and deletes that. Raises MoveFailed, ApiError; may be
    called again.
    """
    uid, kind = cr["metadata"]["uid"], KINDS[move.key.dialect]
    _keep_replicas(client, move)
    for _ in range(ROUNDS):
        for obj in move.objects:
            _patch_owners(client, obj, uid, mark=naming.FLEET_TO_COME)
        sleep(SETTLE_S)
        # A run of the loop that was under way may have put its reference back.
        if not owned_objects(client, move.key.dialect, move.key.namespace, lambda obj: is_owned(obj, uid)):
            break
    else:
        raise MoveFailed(f"the loop takes the objects of {move.name} back each time; is it older than this command?")
    if move.certificate:
        _own_certificate(client, move, take_from=uid)
    with suppress(NotFound):
        client.delete(kind, move.key.namespace, move.key.name, uid=uid)
    _await(lambda: is_gone(client, move.key, uid), f"{kind_text(move.key.dialect)} {move.name} to go", sleep)
    for obj in move.objects:
        live = again(client, obj)
        if live is None or live["metadata"]["uid"] != obj["metadata"]["uid"]:
            raise MoveFailed(f"{obj['kind']} {move.name} was made anew meanwhile; `pulumi up` makes what is missing")
    for revision in client.list(kinds.CONTROLLER_REVISIONS, move.key.namespace)["items"]:
        if is_owned(revision, uid):
            with suppress(NotFound):
                client.delete(kinds.CONTROLLER_REVISIONS, move.key.namespace, revision["metadata"]["name"])


def give(client: KubeClient, move: Move, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Hand a fleet's service to the loop: apply its custom resources, and wait until the loop has adopted the objects.

    Raises MoveFailed, ApiError; may be called again.
    """
    *referred, service = move.documents
    for document in referred:
        _apply_referred(client, document)
    for obj in move.objects:
        metadata, unmark = obj["metadata"], {"metadata": {"annotations": {naming.ANNOTATION_FLEET: None}}}
        client.patch(kind_of(obj), metadata.get("namespace"), metadata["name"], unmark, field_manager=MANAGER)
    kind = replace(KINDS[move.key.dialect], api_version=str(service["apiVersion"]))
    applied = client.apply(kind, move.key.namespace, service, field_manager=MANAGER)
    uid = applied["metadata"]["uid"]
    if move.certificate:
        _own_certificate(client, move, give_to=applied)
    ownable = [obj for obj in move.objects if obj["metadata"].get("namespace")]
    _await(
        lambda: all(is_owned(live, uid) for obj in ownable if (live := again(client, obj)) is not None),
        f"the loop to adopt what stands for {move.name}; does it run, and look after this namespace?",
        sleep,
    )


def urns_of(key: keys.ServiceKey, deployment: Json) -> list[str]:
    """Find the URNs of a service in a stack's deployment (of `pulumi stack export`), objects before their components.

    Raises MoveFailed where the stack has the service in several clusters.
    """
    own = [each for each in deployment.get("resources") or () if each.get("custom") and _means(each, key)]
    if len({(each["type"], each["id"]) for each in own}) < len(own):
        raise MoveFailed(
            f"the stack has {key.namespace}/{key.name} in several clusters; take out the right URNs by "
            "`pulumi state delete`"
        )
    return [*(str(each["urn"]) for each in own), *dict.fromkeys(str(each["parent"]) for each in own)]


def _means(resource: Json, key: keys.ServiceKey) -> bool:
    inputs = resource.get("inputs") or {}
    metadata = inputs.get("metadata") or {}
    # A binding of the whole cluster is in no namespace; the account that it binds is.
    namespaces = {metadata.get("namespace"), *(one.get("namespace") for one in inputs.get("subjects") or ())} - {None}
    return namespaces == {key.namespace} and service_of({"metadata": {**metadata, "namespace": key.namespace}}) == key


def _apply_referred(client: KubeClient, document: Json) -> None:
    """Apply what a service refers to; of a Model also what is known of its file."""
    metadata, kind = document["metadata"], client.mapping(document["apiVersion"], document["kind"])
    status = {k: v for k, v in document.get("status", {}).items() if k in OF_FILE}
    body = {k: v for k, v in document.items() if k != "status"}
    live = client.apply(kind, metadata.get("namespace"), body, field_manager=MANAGER, force=True)
    if status and not known_status(live).get("path"):
        client.patch(kind, metadata["namespace"], metadata["name"], {"status": status}, subresource="status")


def _keep_replicas(client: KubeClient, move: Move) -> None:
    """Hold the number of pods where the fleet leaves it to an autoscaler and the loop did not.

    A field that its only owner no longer applies goes back to its default, which would be one pod; an autoscaler takes
    it from us at its first write.
    """
    for each in move.rendered.objects if move.rendered is not None else ():
        live = move.live(each.kind, each.name)
        if each.kind not in RUNS or live is None or "replicas" in each.manifest["spec"]:
            continue
        metadata = {key: live["metadata"][key] for key in ("name", "namespace", "uid")}
        claim = {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": metadata}
        claim["spec"] = {"replicas": live["spec"].get("replicas", 1)}
        with suppress(Conflict):  # somebody scaled it meanwhile, and owns the field
            client.apply(kind_of(live), metadata["namespace"], claim, field_manager=MANAGER)


def _own_certificate(client: KubeClient, move: Move, *, take_from: str = "", give_to: Json | None = None) -> None:
    """Have the Secret that the loop issued stay without the service, or come back to it. Its data are never read."""
    path = kinds.SECRETS.path(move.key.namespace, move.certificate)
    while True:
        try:
            metadata = client.request("GET", path, accept=METADATA)["metadata"]
        except NotFound:
            return
        owners = metadata.get("ownerReferences") or []
        if give_to is None:
            kept = [each for each in owners if each.get("uid") != take_from]
        elif ANNOTATION_NAMES in (metadata.get("annotations") or {}) and not any(e.get("controller") for e in owners):
            kept = [*owners, owner_reference(keys.Owner.of(give_to))]
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


def _patch_owners(client: KubeClient, obj: Json, uid: str, *, mark: str) -> None:
    """Mark an object and take one owner off it, in one write that nobody's write comes between."""
    while (live := again(client, obj)) is not None and live["metadata"]["uid"] == obj["metadata"]["uid"]:
        metadata = live["metadata"]
        owners = [each for each in metadata.get("ownerReferences") or () if each.get("uid") != uid]
        body = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
            {
                "op": "add",
                "path": "/metadata/annotations",
                "value": {**annotations_of(live), naming.ANNOTATION_FLEET: mark},
            },
            {"op": "add", "path": "/metadata/ownerReferences", "value": owners},
        ]
        try:
            client.patch(
                kind_of(obj),
                metadata.get("namespace"),
                metadata["name"],
                body,
                content_type=JSON_PATCH,
                field_manager=MANAGER,
            )
        except Conflict:
            continue
        return


def _await(done: Callable[[], bool], what: str, sleep: Callable[[float], None]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not done():
        if time.monotonic() > deadline:
            raise MoveFailed(f"waited {TIMEOUT_S:.0f} s for {what}")
        sleep(0.3)
