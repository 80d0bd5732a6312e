"""Works out whether a service can move, and what it takes along. Reads only; `acting` does it.

InferenceServices here, with their Models; `described` plans for the other dialects.
"""

from __future__ import annotations

from automation.adoption.moving.comparing import compare, leftovers
from automation.adoption.moving.move import (
    Move,
    annotations_of,
    is_gone,
    is_of_a_fleet,
    is_owned,
    owned_objects,
    written,
)
from automation.cache.owners import service_of
from automation.cache.service_index import models_of
from components import naming
from components.render import RenderOptions, render
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.desired.errors import DesiredError
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import draft_reference, parse_service
from program.dialects.llmkube.status.model import CACHE_MOUNT, known_status
from program.dialects.registry import LLMKUBE, dialect_of, key_of
from program.manifests import Document, Manifests

OF_FILE = ("cacheKey", "gguf", "path", "sourceContentLength", "stagedFiles")
"""What a Model's status knows of its file, and the pods depend on."""


def plan_take(client: KubeClient, cr: Json, *, options: RenderOptions) -> Move:
    """Work out what a service takes along from the loop to a fleet, and whether its pods would stay as they are."""
    if dialect_of(cr) != LLMKUBE:
        from automation.adoption.moving.described import plan_take as plan_described

        return plan_described(client, cr, options=options)
    namespace = cr["metadata"]["namespace"]
    move = Move(key_of(cr))
    move.objects = owned_objects(client, LLMKUBE, namespace, lambda obj: is_owned(obj, cr["metadata"]["uid"]))
    move.extensions = extensions_of(move)
    service = written(cr)
    deployment = next((obj for obj in move.objects if obj["kind"] == "Deployment"), None)
    if deployment is not None:
        if naming.ANNOTATION_ASLEEP in annotations_of(deployment):
            move.problems.append("it is asleep, and a fleet cannot wake it: send it a request first")
        replicas = deployment["spec"].get("replicas", 1)
        if not service["spec"].get("autoscaling") and replicas != service["spec"].get("replicas", 1):
            service["spec"] = {**service["spec"], "replicas": replicas}
            move.notes.append(f"spec.replicas is {replicas} in the file, as the Deployment has it now")
    models = {}
    for model in sorted(models_of(cr)):
        try:
            models[model] = _written_model(client.get(kinds.MODELS, namespace, model))
        except NotFound:
            move.problems.append(f"Model `{model}` does not exist")
    move.documents = [*models.values(), service]
    if not move.objects:
        move.problems.append(NOTHING_MADE)
    if not move.problems:
        installed = options.model_copy(update={"installed": frozenset(move.extensions), "claim_exists": False})
        _render(move, service, models, installed)
        compare(move)
        leftovers(move)
    return move


NOTHING_MADE = "the loop has made nothing for it yet: there is nothing to take; remove it and name the file"
NOTHING_OF_A_FLEET = "no object in the cluster is a fleet's: there is nothing to give; apply the file instead"


def plan_give(client: KubeClient, document: Document, manifests: Manifests, *, options: RenderOptions) -> Move:
    """Work out whether the loop would leave a fleet's service as it is. `manifests`: the files of the fleet."""
    service = document.cr
    if dialect_of(service) != LLMKUBE:
        from automation.adoption.moving.described import plan_give as plan_described

        return plan_described(client, service, manifests, options=options)
    namespace = document.namespace
    models = {d.name: d.cr for d in manifests.documents if d.cr["kind"] == "Model" and d.namespace == namespace}
    move = Move(key_of(service))
    move.objects = owned_objects(
        client, LLMKUBE, namespace, lambda obj: service_of(obj) == move.key and is_of_a_fleet(obj)
    )
    if not is_gone(client, move.key, None):
        move.problems.append("an InferenceService of this name stands in the cluster already")
    if not move.objects:
        move.problems.append(NOTHING_OF_A_FLEET)
    used = {each: models[each] for each in sorted(models_of(service)) if each in models}
    lacking = sorted(models_of(service) - used.keys())
    move.problems += [f"Model `{each}` is not in the file" for each in lacking]
    if move.problems:
        return move
    for each, model in used.items():
        try:
            live = client.get(kinds.MODELS, namespace, each)
        except NotFound:
            # The loop would name the file after the header that it reads; the pods use the one that the fleet named.
            used[each] = _with_file(model)
        else:
            used[each] = {**model, "status": known_status({**live, "spec": model["spec"]})}
    move.documents = [*used.values(), written(service)]
    _render(move, service, used, options)
    compare(move)
    return move


def extensions_of(move: Move) -> set[str]:
    """Name the optional kinds that objects of a service are of, as a fleet's config names them."""
    optional = {kind.kind: kind.full_name for kind in kinds.OPTIONAL}
    return {optional[obj["kind"]] for obj in move.objects if obj["kind"] in optional}


def _render(move: Move, service: Json, models: dict[str, Json], options: RenderOptions) -> None:
    try:
        parsed = {name: model_of(model) for name, model in models.items()}
        desired = parse_service(
            service, parsed[str(service["spec"]["modelRef"])], draft=parsed.get(draft_reference(service))
        )
        move.rendered = render(desired, options)
    except (DesiredError, KeyError) as error:
        move.problems.append(str(error))


def _written_model(cr: Json) -> Json:
    status = {name: value for name, value in known_status(cr).items() if name in OF_FILE}
    return {**written(cr), **({"status": status} if status else {})}


def _with_file(document: Json) -> Json:
    """Write down how the fleet named a Model's file, which no loop has looked at."""
    desired = model_of(document)
    if not desired.cache_key or not desired.file_name:
        return document
    path = f"{CACHE_MOUNT}/{desired.cache_key}/{desired.file_name}"
    return {**document, "status": {"cacheKey": desired.cache_key, "path": path, **(document.get("status") or {})}}
