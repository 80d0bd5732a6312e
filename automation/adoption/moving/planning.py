"""Works out whether a service can move between the loop and a static fleet, and which objects it takes along.

Reads only.

On the way to a fleet, the service and the objects that it refers to are written into a file, and the file is parsed as
a fleet parses it. On the way back, a dry run of the API server returns the service with its defaults, which is parsed
as the loop parses it. `comparing` then compares the rendered with the live objects. `acting` carries the move out.
"""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from automation.adoption.kept_templates import TEMPLATE_FIELDS
from automation.adoption.moving.comparing import compare, differences, leftovers
from automation.adoption.moving.move import (
    Move,
    annotations_of,
    is_of_a_fleet,
    kind_of_service,
    owned_objects,
    was_released,
    was_unmarked,
    written,
)
from automation.adoption.owner_references import is_owned
from automation.cache.owners import service_of
from automation.cache.service_index import models_of
from automation.preview.lookup import Identity, PreviewLookup
from components import naming
from components.render import RenderOptions, render
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.discovery import served
from kubeapi.errors import ApiError, NotFound
from kubeapi.json_types import Json
from program.desired.errors import DesiredError
from program.desired.keys import ANNOTATION_HOST
from program.desired.service import DesiredService
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.status.model import CACHE_MOUNT, known_status
from program.dialects.registry import (
    LLMKUBE,
    REFERRERS,
    dialect_named,
    is_part_of_another,
    key_of,
    kind_text,
    referrer_of,
)
from program.manifests import Document, Manifests
from program.static.without_loop import scaled_without_loop

_REFERRED = {kind.kind: kind for kind in (kinds.MODELS, kinds.OPEN_MODELS, kinds.BACKEND_RUNTIMES, kinds.LLM_CONFIGS)}
"""Kinds that a fleet's files hold for its services, and a cluster for the loop's."""
_READ_FOR_PODS = {kind.kind for kind in (kinds.CONFIG_MAPS, kinds.SERVICE_ACCOUNTS, kinds.SECRETS, kinds.GATEWAYS)}
"""Other kinds that are looked up for the pods. Their objects stay where they are."""
_FIELDS: dict[str, tuple[str, ...]] = {"ServiceAccount": ("imagePullSecrets", "secrets"), "Gateway": (), "Secret": ()}
"""The fields that the file has of these kinds: all others belong to the cluster."""
MODEL_FILE_STATUS = ("cacheKey", "gguf", "path", "sourceContentLength", "stagedFiles")
"""Fields of a Model's status that describe its file, on which the pods depend."""
NOTHING_MADE = (
    "the loop has not made any object for it yet, so there is nothing to take; delete the service and add its file to "
    "the fleet"
)
NOTHING_OF_A_FLEET = "no object in the cluster belongs to a fleet, so there is nothing to give; apply the file instead"


def plan_take(client: KubeClient, cr: Json, *, options: RenderOptions) -> Move:
    """Work out which objects a service takes along from the loop to a fleet, and whether its pods would restart."""
    move, metadata = Move(key_of(cr)), cr["metadata"]
    if referrer_of(cr):
        mark = annotations_of(cr).get(naming.ANNOTATION_FLEET)
        if mark not in (None, naming.FLEET_TO_COME):
            move.problems.append(f"it belongs to static fleet `{mark}` already")
        document = written(cr)
        annotations = document["metadata"].setdefault("annotations", {})
        annotations.pop(naming.ANNOTATION_FLEET, None)
        # The person who wrote it owns its fields, and the first `pulumi up` takes them over.
        annotations[naming.ANNOTATION_ADOPT] = "true"
        move.objects, move.documents = [cr], [document]
        return move
    if is_part_of_another(cr):
        owner = next(each for each in metadata["ownerReferences"] if each.get("controller"))
        move.problems.append(f"it is part of {owner['kind']} `{owner['name']}`: move the owner instead")
        return move
    move.objects = owned_objects(
        client,
        move.key.dialect,
        move.key.namespace,
        lambda obj: is_owned(obj, metadata["uid"]) or was_released(obj, move.key),
    )
    if not move.objects:
        move.problems.append(NOTHING_MADE)
        return move
    move.extensions = _extensions_of(move)
    if any(naming.ANNOTATION_ASLEEP in annotations_of(obj) for obj in move.objects):
        move.problems.append("it is asleep, and a static fleet cannot wake it; send it a request first")
    look = PreviewLookup(client)
    missing = [name for name in _model_names(move, cr) if look(kinds.MODELS, move.key.namespace, name) is None]
    move.problems += [f"Model `{name}` does not exist" for name in missing]
    if move.problems:
        return move
    try:
        desired = dialect_named(move.key.dialect).parse(cr, look).desired
    except DesiredError as error:
        move.problems.append(str(error))
        return move
    move.notes += look.notes
    placement = desired.host_placement
    if placement is not None and placement.host is None:
        move.problems.append(
            f"the loop chose its host, and a static fleet cannot choose one; name the host in annotation "
            f"{ANNOTATION_HOST} first"
        )
    if secret := _secret_of(desired):
        move.secret = secret
        kept = (
            "the engine's key, stays" if desired.engine_key else "the pods' certificate, stays, and no loop renews it"
        )
        move.notes.append(f"Secret {secret}, {kept} after the move")
    referred, service = [_document(obj) for obj in look.found() if _is_needed(obj)], written(cr)
    options = options.model_copy(update={"installed": frozenset(move.extensions)})
    move.rendered = _render_as_fleet(move, [*referred, service], options)
    if _keep_replicas(move, service):
        move.rendered = _render_as_fleet(move, [*referred, service], options)
    move.documents = [*referred, service]
    _compare_all(client, move)
    return move


def plan_give(client: KubeClient, document: Document, manifests: Manifests, *, options: RenderOptions) -> Move:
    """Work out whether the loop would leave a fleet's service as it is. `manifests`: the files of the fleet.

    After an attempt that failed, the rest of the move is planned.
    """
    service = written(document.cr)
    move = Move(key_of(service))
    if referrer_of(service):
        return _plan_resource(client, move, service)
    live = client.find(kind_of_service(service), move.key.namespace, move.key.name)
    uid = live["metadata"]["uid"] if live is not None else ""
    move.objects = owned_objects(
        client,
        move.key.dialect,
        move.key.namespace,
        lambda obj: service_of(obj) == move.key and (is_of_a_fleet(obj) or was_unmarked(obj, uid)),
    )
    if live is not None and _was_given(move, service, live):
        move.given = live
    elif live is not None:
        move.problems.append(_exists(move))
    if not move.objects:
        move.problems.append(NOTHING_OF_A_FLEET)
    models = {name: manifests(kinds.MODELS, move.key.namespace, name) for name in _model_names(move, service)}
    move.problems += [f"Model `{name}` is not in the file" for name, model in models.items() if model is None]
    if move.problems:
        return move
    try:
        used = [_model_of_fleet(client, model) for model in models.values() if model is not None]
    except DesiredError as error:
        move.problems.append(str(error))
        return move
    referred = {Identity.of(cr): cr for cr in (*(each.cr for each in manifests.referred), *used)}
    if not _render_as_loop(client, move, service, referred, options):
        return move
    if move.given is not None and all(is_owned(obj, uid) for obj in move.objects):
        return move
    if _keep_replicas(move, service):
        if move.given is not None:
            move.problems.append(_exists(move))
            return move
        _render_as_loop(client, move, service, referred, options)
    _compare_all(client, move)
    return move


def _was_given(move: Move, service: Json, live: Json) -> bool:
    """Return whether a custom resource is that of an earlier attempt, which came after the fleet's last mark.

    That attempt wrote the live number of replicas.
    """
    if "deletionTimestamp" in live["metadata"] or not move.objects or any(map(is_of_a_fleet, move.objects)):
        return False
    spec = {name: value for name, value in (service.get("spec") or {}).items() if name != "replicas"}
    return not any(differences({**service, "spec": spec}, live, ""))


def _exists(move: Move) -> str:
    kind = kind_text(move.key.dialect)
    return f"{'an' if kind[0] in 'AEIO' else 'a'} {kind} of this name exists in the cluster already"


def _plan_resource(client: KubeClient, move: Move, document: Json) -> Move:
    """Work out whether a ModelRouter, ModelPool or LoRAAdapter of a fleet can leave it: it stays as it is."""
    try:
        live = client.get(REFERRERS[move.key.dialect], move.key.namespace, move.key.name)
    except NotFound:
        move.problems.append(NOTHING_OF_A_FLEET)
        return move
    if not is_of_a_fleet(live):
        move.problems.append(NOTHING_OF_A_FLEET)
    move.objects, move.documents = [live], [document]
    return move


def _render_as_fleet(move: Move, documents: list[Json], options: RenderOptions) -> RenderedService | None:
    """Parse documents as a fleet parses its files, and render the service. None if there is a problem."""
    manifests = Manifests(move.key.namespace, options=options)
    manifests.read_text("the file", yaml.safe_dump_all(documents))
    found = next((desired for _, desired in manifests.services() if desired.key == move.key), None)
    if found is None or manifests.errors:
        move.problems += [error for error in manifests.errors if error not in move.problems]
        return None
    try:
        return render(scaled_without_loop(found), options)
    except DesiredError as error:
        move.problems.append(str(error))
        return None


def _render_as_loop(
    client: KubeClient, move: Move, service: Json, referred: Mapping[Identity, Json], options: RenderOptions
) -> bool:
    """Render the service as the loop will, with the objects that the cluster will have then.

    False if there is a problem.
    """
    kind = kind_of_service(service)
    look = PreviewLookup(client, applied=referred)
    try:
        would_be = move.given or client.apply(
            kind, move.key.namespace, service, field_manager="herdsman-move", dry_run=True
        )
        metadata = {name: value for name, value in would_be["metadata"].items() if name != "uid"}
        would_be = {**would_be, "metadata": metadata}
        desired = dialect_named(move.key.dialect).parse(would_be, look).desired
        move.rendered = render(desired, options.model_copy(update={"installed": _installed(client)}))
    except NotFound:
        family = {LLMKUBE: "", "kserve": " --dialect kserve"}.get(move.key.dialect, " --dialect llmaz")
        move.problems.append(
            f"the cluster serves no {kind.plural}.{kind.group}; install them first: "
            f"`herdsman crds{family} | kubectl create -f -`"
        )
        return False
    except (DesiredError, ApiError) as error:
        move.problems.append(str(error))
        return False
    move.secret = _secret_of(desired)
    used = [referred[identity] for identity in sorted(look.seen.keys() & referred.keys())]
    move.documents = [*(_applicable(each) for each in used if _is_to_apply(client, move, each)), service]
    return True


def _compare_all(client: KubeClient, move: Move) -> None:
    """Compare the rendered objects, if there are any, with all live objects."""
    if move.rendered is None:
        return
    move.objects += _cluster_bindings(client, move)
    compare(move)
    leftovers(move)


def _is_to_apply(client: KubeClient, move: Move, document: Json) -> bool:
    """Return whether a file's object is applied to the cluster for the loop: Models are, others where they are missing.

    A different object in the cluster is a problem.
    """
    identity = Identity.of(document)
    if identity.kind == kinds.MODELS.kind:
        return True
    try:
        live = client.get(_REFERRED[identity.kind], identity.namespace or None, identity.name)
    except NotFound:
        return True
    if where := list(differences(document.get("spec") or {}, live.get("spec") or {}, "spec"))[:5]:
        problem = f"{identity.kind} `{identity.name}` in the cluster differs from the file: "
        problem += f"{', '.join(where)}; make the fields equal first"
        move.problems += [problem] if problem not in move.problems else []
    return False


def _applicable(document: Json) -> Json:
    """Return an object as it is applied: a Model with its status."""
    return document if document["kind"] == kinds.MODELS.kind else written(document)


def _keep_replicas(move: Move, service: Json) -> bool:
    """Write the live number of replicas into a document that asks for another number; True when it changed.

    Only the pods that serve have a field for their number in every dialect: they are rendered last.
    """
    changed = False
    for each in move.rendered.objects if move.rendered is not None else ():
        wanted, live = (each.manifest.get("spec") or {}).get("replicas"), move.live(each.kind, each.name)
        if each.kind not in TEMPLATE_FIELDS or wanted is None or live is None:
            continue
        replicas = live["spec"].get("replicas", 1)
        if replicas == wanted:
            continue
        if move.rendered is not None and each is move.rendered.objects[-1]:
            service["spec"] = {**service["spec"], "replicas": replicas}
            of = "the Deployment" if move.key.dialect == LLMKUBE else f"{each.kind} {each.name}"
            move.notes.append(f"spec.replicas is {replicas} in the file, as {of} has it now")
            changed = True
        else:
            move.problems.append(
                f"{each.kind} {each.name} has {replicas} replicas and the service specifies {wanted}: make the "
                f"numbers equal"
            )
    return changed


def _is_needed(obj: Json) -> bool:
    """Return whether a file must have an object that the service refers to."""
    kind = str(obj["kind"])
    if kind == kinds.SECRETS.kind:
        return bool(obj["metadata"].get("annotations"))
    fields = _FIELDS.get(kind, ())
    return (kind in _REFERRED or kind in _READ_FOR_PODS) and (not fields or any(obj.get(field) for field in fields))


def _document(obj: Json) -> Json:
    """Return a referred object as a file has it: only the fields that are read for the pods."""
    document = written(obj)
    if obj["kind"] == kinds.MODELS.kind:
        status = {name: value for name, value in known_status(obj).items() if name in MODEL_FILE_STATUS}
        return {**document, **({"status": status} if status else {})}
    fields = _FIELDS.get(str(obj["kind"]))
    kept = ("apiVersion", "kind", "metadata", *(fields if fields is not None else document))
    return {key: value for key, value in document.items() if key in kept}


def _model_names(move: Move, cr: Json) -> list[str]:
    """Return the names of the Models that an InferenceService refers to."""
    return sorted(models_of(cr)) if move.key.dialect == LLMKUBE else []


def _model_of_fleet(client: KubeClient, model: Json) -> Json:
    """Return a Model of a fleet's files with the status that describes its file.

    A Model that the cluster lacks gets the file name that the fleet uses. The loop would take another, by the header.
    """
    metadata = model["metadata"]
    try:
        live = client.get(kinds.MODELS, metadata["namespace"], metadata["name"])
    except NotFound:
        desired = model_of(model)
        if not desired.cache_key or not desired.file_name:
            return model
        path = f"{CACHE_MOUNT}/{desired.cache_key}/{desired.file_name}"
        return {**model, "status": {"cacheKey": desired.cache_key, "path": path, **(model.get("status") or {})}}
    return {**model, "status": known_status({**live, "spec": model["spec"]})}


def _secret_of(desired: DesiredService) -> str:
    """Return the name of the Secret that the loop keeps for the pods; empty for none."""
    if desired.engine_key is not None:
        return desired.engine_key.name
    workloads = desired.workloads
    return workloads.certificate.secret if workloads is not None and workloads.certificate is not None else ""


def _cluster_bindings(client: KubeClient, move: Move) -> list[Json]:
    """Read the ClusterRoleBindings that are made for this service: they are in no namespace."""
    found = []
    for each in move.rendered.objects if move.rendered is not None else ():
        if each.kind != kinds.CLUSTER_ROLE_BINDINGS.kind:
            continue
        try:
            live = client.get(kinds.CLUSTER_ROLE_BINDINGS, None, each.name)
        except NotFound:
            continue
        if {one.get("namespace") for one in live.get("subjects") or ()} == {move.key.namespace}:
            found.append(live)
    return found


def _extensions_of(move: Move) -> set[str]:
    """Return the optional kinds of a service's objects, by their names in a fleet's config."""
    optional = {kind.kind: kind.full_name for kind in kinds.OPTIONAL}
    return {optional[obj["kind"]] for obj in move.objects if obj["kind"] in optional}


def _installed(client: KubeClient) -> frozenset[str]:
    """Return the names of the optional kinds that the cluster serves. Raises ApiError."""
    answer = served(lambda path: client.request("GET", path), kinds.OPTIONAL)
    return frozenset(kind.full_name for kind, is_served in answer.items() if is_served)
