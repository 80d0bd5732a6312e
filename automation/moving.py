"""Moves services between the loop and a static fleet without touching what runs: who owns the objects changes, no more.

Called by `herdsman fleet take` and `give`. What keeps either side from deleting or changing what the other has by then
stands on the objects: the controller that the loop writes, the mark of the fleet (`naming.ANNOTATION_FLEET`); the
providers of both obey it (`components.providers.kubernetes_ownership`), whatever their state says.
docs/adr/0017-static-fleets-of-several-places.md tells the order of the steps and why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from automation.service_index import models_of
from components import naming
from components.render import RenderOptions, render
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.errors import Conflict, NotFound
from program.desired import keys
from program.desired.base import JsonObject
from program.desired.errors import DesiredError
from program.dialects.llmkube.model_status import CACHE_MOUNT, known_status
from program.dialects.llmkube.parse import draft_reference, parse_service
from program.dialects.llmkube.parse_model import model_of

Object = dict[str, Any]

MANAGER = "herdsman-move"
SETTLE_S = 2.0
"""Between letting go of the objects and deleting the custom resource: a loop's caches must know the former first."""
ROUNDS = 5
TIMEOUT_S = 60.0
OWNED = (
    *(kinds.DEPLOYMENTS, kinds.SERVICES, kinds.AUTOSCALERS, kinds.DISRUPTION_BUDGETS, kinds.NETWORK_POLICIES),
    *(kinds.INGRESSES, kinds.HOST_PROCESSES, kinds.ENDPOINT_SLICES, *kinds.OPTIONAL),
)
"""Kinds of what is made for a service."""
_NOT_CARRIED = (
    "kubectl.kubernetes.io/last-applied-configuration",
    *(keys.ANNOTATION_CONTROLLER, keys.ANNOTATION_APPROVED, keys.ANNOTATION_MODE),
)
_OF_FILE = ("cacheKey", "gguf", "path", "sourceContentLength", "stagedFiles")
"""What a Model's status knows of its file, and the pods depend on."""


class MoveFailed(Exception):
    """The move stopped half-way, or was refused by somebody; the message says where, and what to do."""


@dataclass
class Move:
    """One service and its way to the other side."""

    key: keys.ServiceKey
    documents: list[Object] = field(default_factory=list)
    """Its Models and itself, as a file has them."""
    objects: list[Object] = field(default_factory=list)
    """What stands in the cluster for it."""
    rendered: RenderedService | None = None
    """As the other side will render it."""
    problems: list[str] = field(default_factory=list)
    """Why it cannot move; nothing is done while there are any."""
    notes: list[str] = field(default_factory=list)
    extensions: set[str] = field(default_factory=set)
    """Optional kinds that the fleet must be told of."""

    @property
    def name(self) -> str:
        return f"{self.key.namespace}/{self.key.name}"


# --- from the loop to a fleet -----------------------------------------------------------------------------------------


def plan_take(client: KubeClient, cr: Object, *, options: RenderOptions) -> Move:
    """Work out what a service takes along, and whether its pods would stay as they are. Reads only."""
    namespace, name = cr["metadata"]["namespace"], cr["metadata"]["name"]
    move = Move(keys.ServiceKey("llmkube", namespace, name))
    move.objects = owned_objects(client, namespace, lambda obj: _is_owned(obj, cr["metadata"]["uid"]))
    optional = {kind.kind: kind.full_name for kind in kinds.OPTIONAL}
    move.extensions = {optional[obj["kind"]] for obj in move.objects if obj["kind"] in optional}
    service = _written(cr)
    deployment = _deployment(move)
    if deployment is not None:
        if naming.ANNOTATION_ASLEEP in deployment["metadata"].get("annotations", {}):
            move.problems.append("it is asleep, and a fleet cannot wake it: send it a request first")
        replicas = deployment["spec"].get("replicas", 1)
        if not service["spec"].get("autoscaling") and replicas != service["spec"].get("replicas", 1):
            service["spec"]["replicas"] = replicas
            move.notes.append(f"spec.replicas is {replicas} in the file, as the Deployment has it now")
    models = {}
    for model in sorted(models_of(cr)):
        try:
            models[model] = _written_model(client.get(kinds.MODELS, namespace, model))
        except NotFound:
            move.problems.append(f"Model `{model}` does not exist")
    move.documents = [*models.values(), service]
    if not move.objects:
        move.problems.append(
            "the loop has made nothing for it yet: there is nothing to take; remove it and name the file"
        )
    if not move.problems:
        installed = options.model_copy(update={"installed": frozenset(move.extensions), "claim_exists": False})
        _render(move, service, models, installed)
        _compare(move)
        _leftovers(move)
    return move


def take(client: KubeClient, cr: Object, move: Move, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Have the loop let go of a service: afterwards its objects belong to nobody, and wait for the fleet.

    Marks them, takes the references to the custom resource off, and deletes that. Raises MoveFailed, ApiError; may be
    called again.
    """
    uid = cr["metadata"]["uid"]
    for _ in range(ROUNDS):
        for obj in move.objects:
            _patch_owners(client, obj, uid, mark=naming.FLEET_TO_COME)
        sleep(SETTLE_S)
        # A run of the loop that was under way may have put its reference back.
        if not owned_objects(client, move.key.namespace, lambda obj: _is_owned(obj, uid)):
            break
    else:
        raise MoveFailed(f"the loop takes the objects of {move.name} back each time; is it older than this command?")
    with suppress(NotFound):
        client.delete(kinds.INFERENCE_SERVICES, move.key.namespace, move.key.name, uid=uid)
    _await(lambda: _is_gone(client, move.key, uid), f"InferenceService {move.name} to go", sleep)
    for obj in move.objects:
        live = _again(client, obj)
        if live is None or live["metadata"]["uid"] != obj["metadata"]["uid"]:
            raise MoveFailed(f"{obj['kind']} {move.name} was made anew meanwhile; `pulumi up` makes what is missing")
    for revision in client.list(kinds.CONTROLLER_REVISIONS, move.key.namespace)["items"]:
        if _is_owned(revision, uid):
            with suppress(NotFound):
                client.delete(kinds.CONTROLLER_REVISIONS, move.key.namespace, revision["metadata"]["name"])


# --- from a fleet to the loop -----------------------------------------------------------------------------------------


def plan_give(client: KubeClient, service: Object, models: dict[str, Object], *, options: RenderOptions) -> Move:
    """Work out whether the loop would leave a fleet's service as it is. `models`: those of its file. Reads only."""
    namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
    move = Move(keys.ServiceKey("llmkube", namespace, name))
    move.objects = owned_objects(
        client, namespace, lambda obj: _is_of(obj, name) and naming.ANNOTATION_FLEET in _annotations(obj)
    )
    if not _is_gone(client, move.key, None):
        move.problems.append("an InferenceService of this name stands in the cluster already")
    if not move.objects:
        move.problems.append("no object in the cluster is a fleet's: there is nothing to give; apply the file instead")
    used = {each: models[each] for each in sorted(models_of(service)) if each in models}
    lacking = sorted(models_of(service) - used.keys())
    move.problems += [f"Model `{each}` is not in the file" for each in lacking]
    if move.problems:
        return move
    for each, document in used.items():
        try:
            live = client.get(kinds.MODELS, namespace, each)
        except NotFound:
            # The loop would name the file after the header that it reads; the pods use the one that the fleet named.
            used[each] = _with_file(document)
        else:
            used[each] = {**document, "status": known_status({**live, "spec": document["spec"]})}
    move.documents = [*used.values(), _written(service)]
    _render(move, service, used, options)
    _compare(move)
    return move


def give(client: KubeClient, move: Move, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Hand a fleet's service to the loop: apply its custom resources, and wait until the loop has adopted the objects.

    Raises MoveFailed, ApiError; may be called again.
    """
    *models, service = move.documents
    for model in models:
        name, status = model["metadata"]["name"], {k: v for k, v in model.get("status", {}).items() if k in _OF_FILE}
        body = {k: v for k, v in model.items() if k != "status"}
        live = client.apply(kinds.MODELS, move.key.namespace, body, field_manager=MANAGER, force=True)
        if status and not known_status(live).get("path"):
            client.patch(kinds.MODELS, move.key.namespace, name, {"status": status}, subresource="status")
    for obj in move.objects:
        kind = _kind(obj)
        unmark = {"metadata": {"annotations": {naming.ANNOTATION_FLEET: None}}}
        client.patch(kind, obj["metadata"]["namespace"], obj["metadata"]["name"], unmark, field_manager=MANAGER)
    applied = client.apply(kinds.INFERENCE_SERVICES, move.key.namespace, service, field_manager=MANAGER)
    uid = applied["metadata"]["uid"]
    _await(
        lambda: all(_is_owned(live, uid) for obj in move.objects if (live := _again(client, obj)) is not None),
        f"the loop to adopt what stands for {move.name}; does it run, and look after this namespace?",
        sleep,
    )


def urns_of(move: Move, deployment: Object) -> list[str]:
    """Find the URNs of a service in a stack's deployment (of `pulumi stack export`), objects before their components.

    Raises MoveFailed where the stack has the service in several clusters.
    """
    own = [each for each in deployment.get("resources") or () if each.get("custom") and _means(each, move.key)]
    if len({(each["type"], each["id"]) for each in own}) < len(own):
        raise MoveFailed(
            f"the stack has {move.name} in several clusters; take out the right URNs by `pulumi state delete`"
        )
    return [*(str(each["urn"]) for each in own), *dict.fromkeys(str(each["parent"]) for each in own)]


def _means(resource: Object, key: keys.ServiceKey) -> bool:
    metadata = (resource.get("inputs") or {}).get("metadata") or {}
    return metadata.get("namespace") == key.namespace and _is_of({"metadata": metadata}, key.name)


# --- what both share --------------------------------------------------------------------------------------------------


def owned_objects(client: KubeClient, namespace: str, wanted: Callable[[Object], bool]) -> list[Object]:
    """Find objects of the kinds that are made for services; kinds that the cluster does not serve have none."""
    found = []
    for kind in OWNED:
        with suppress(NotFound):
            found += [obj for obj in client.list(kind, namespace)["items"] if wanted(obj)]
    return found


def _render(move: Move, service: Object, models: dict[str, Object], options: RenderOptions) -> None:
    try:
        parsed = {name: model_of(model) for name, model in models.items()}
        desired = parse_service(
            service, parsed[service["spec"]["modelRef"]], draft=parsed.get(draft_reference(service))
        )
        move.rendered = render(desired, options)
    except (DesiredError, KeyError) as error:
        move.problems.append(str(error))


def _compare(move: Move) -> None:
    """Refuse what would restart pods: a template that would be rendered differently."""
    deployment, rendered = _deployment(move), move.rendered
    if deployment is None or rendered is None:
        return
    wanted = next((obj.manifest for obj in rendered.objects if obj.kind == "Deployment"), None)
    if wanted is None:
        move.problems.append("the Deployment would go: the file means a host")
        return
    hashes = [_annotations(each).get(naming.ANNOTATION_TEMPLATE_HASH) for each in (wanted, deployment)]
    differing = list(_differences(wanted["spec"]["template"], deployment["spec"]["template"], "spec.template"))
    if hashes[0] != hashes[1] or differing:
        where = ", ".join(differing[:5]) or "something that the API server wrote otherwise"
        move.problems.append(
            f"its pods would restart: {where}. Give this command the loop's own settings (HERDSMAN_…) in its "
            "environment, and change nothing else in the same step"
        )


def _leftovers(move: Move) -> None:
    rendered = {(obj.kind, obj.name) for obj in move.rendered.objects} if move.rendered else set()
    # An agent publishes these for its processes.
    published = (
        ("EndpointSlice", "Service") if any(kind == "HostProcess" for kind, _ in rendered) else ("EndpointSlice",)
    )
    left = [
        obj
        for obj in move.objects
        if (obj["kind"], obj["metadata"]["name"]) not in rendered and obj["kind"] not in published
    ]
    move.problems += [
        f"{obj['kind']} {obj['metadata']['name']} would be left behind: the file does not mean it" for obj in left
    ]


def _differences(wanted: Any, live: Any, path: str) -> Iterator[str]:
    """Name the fields of `wanted` that the live object has otherwise; what the API server added does not count."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        for key, value in wanted.items():
            yield from _differences(value, live.get(key), f"{path}.{key}")
    elif isinstance(wanted, list) and isinstance(live, list) and len(wanted) == len(live):
        for index, (one, other) in enumerate(zip(wanted, live, strict=True)):
            yield from _differences(one, other, f"{path}[{index}]")
    elif (
        wanted != live and not (wanted in (None, "", {}, [], False) and live is None) and not _same_amount(wanted, live)
    ):
        yield path


def _same_amount(one: Any, other: Any) -> bool:
    """Leave quantities to the template's hash: the API server writes `1000m` as `1`."""
    return isinstance(one, str) and isinstance(other, str) and one[:1].isdigit() and other[:1].isdigit()


def _deployment(move: Move) -> Object | None:
    return next((obj for obj in move.objects if obj["kind"] == "Deployment"), None)


def _written(cr: Object) -> Object:
    """Write a custom resource as a file has it."""
    metadata = cr["metadata"]
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in _NOT_CARRIED}
    kept: JsonObject = {"name": metadata["name"], "namespace": metadata["namespace"]}
    if metadata.get("labels"):
        kept["labels"] = dict(metadata["labels"])
    if annotations:
        kept["annotations"] = annotations
    return {"apiVersion": cr["apiVersion"], "kind": cr["kind"], "metadata": kept, "spec": dict(cr.get("spec") or {})}


def _written_model(cr: Object) -> Object:
    status = {name: value for name, value in known_status(cr).items() if name in _OF_FILE}
    return {**_written(cr), **({"status": status} if status else {})}


def _with_file(document: Object) -> Object:
    """Write down how the fleet named a Model's file, which no loop has looked at."""
    desired = model_of(document)
    if not desired.cache_key or not desired.file_name:
        return document
    path = f"{CACHE_MOUNT}/{desired.cache_key}/{desired.file_name}"
    return {**document, "status": {"cacheKey": desired.cache_key, "path": path, **(document.get("status") or {})}}


def _annotations(obj: Object) -> JsonObject:
    return obj["metadata"].get("annotations") or {}


def _is_of(obj: Object, service: str) -> bool:
    return bool((obj["metadata"].get("labels") or {}).get(naming.LABEL_SERVICE) == service)


def _is_owned(obj: Object, uid: str) -> bool:
    return any(reference.get("uid") == uid for reference in obj["metadata"].get("ownerReferences") or ())


def _kind(obj: Object) -> kinds.Kind:
    return next(kind for kind in OWNED if kind.kind == obj["kind"] and kind.api_version == obj["apiVersion"])


def _again(client: KubeClient, obj: Object) -> Object | None:
    try:
        return client.get(_kind(obj), obj["metadata"]["namespace"], obj["metadata"]["name"])
    except NotFound:
        return None


def _patch_owners(client: KubeClient, obj: Object, uid: str, *, mark: str) -> None:
    """Mark an object and take one owner off it, in one write that nobody's write comes between."""
    while (live := _again(client, obj)) is not None and live["metadata"]["uid"] == obj["metadata"]["uid"]:
        metadata = live["metadata"]
        owners = [each for each in metadata.get("ownerReferences") or () if each.get("uid") != uid]
        annotations = {**_annotations(live), naming.ANNOTATION_FLEET: mark}
        body = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
            {"op": "add", "path": "/metadata/annotations", "value": annotations},
            {"op": "add", "path": "/metadata/ownerReferences", "value": owners},
        ]
        try:
            client.patch(
                _kind(obj),
                metadata["namespace"],
                metadata["name"],
                body,
                content_type=JSON_PATCH,
                field_manager=MANAGER,
            )
        except Conflict:
            continue
        return


def _is_gone(client: KubeClient, key: keys.ServiceKey, uid: str | None) -> bool:
    try:
        live = client.get(kinds.INFERENCE_SERVICES, key.namespace, key.name)
    except NotFound:
        return True
    return uid is not None and live["metadata"]["uid"] != uid


def _await(done: Callable[[], bool], what: str, sleep: Callable[[float], None]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not done():
        if time.monotonic() > deadline:
            raise MoveFailed(f"waited {TIMEOUT_S:.0f} s for {what}")
        sleep(0.3)
