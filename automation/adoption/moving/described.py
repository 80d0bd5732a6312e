"""Plans moves of services that describe their pods themselves: those of KServe and llmaz.

What they refer to comes into the file as the cluster has it, and the file is then read as a fleet reads it. On the way
back the API server is asked what it would make of the service, and that is read as the loop reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import yaml

from automation.adoption.moving.comparing import RUNS, compare, differences, leftovers
from automation.adoption.moving.move import Move, is_gone, is_of_a_fleet, is_owned, owned_objects, written
from automation.adoption.moving.planning import NOTHING_MADE, NOTHING_OF_A_FLEET, extensions_of
from automation.cache.owners import service_of
from automation.preview.lookup import Identity, PreviewLookup
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
from program.dialects.registry import KINDS, dialect_named, is_part_of_another, key_of, kind_text
from program.manifests import Manifests
from program.static.scaling import scaled_without_loop

_REFERRED = {kind.kind: kind for kind in (kinds.OPEN_MODELS, kinds.BACKEND_RUNTIMES, kinds.LLM_CONFIGS)}
"""Kinds that a fleet's files hold for its services, and a cluster for the loop's."""
_LOOKED_AT = {
    **_REFERRED,
    **{kind.kind: kind for kind in (kinds.CONFIG_MAPS, kinds.SERVICE_ACCOUNTS, kinds.SECRETS, kinds.GATEWAYS)},
}
"""What else is looked up for the pods, and stays where it is."""
_SAID: dict[str, tuple[str, ...]] = {"ServiceAccount": ("imagePullSecrets", "secrets"), "Gateway": (), "Secret": ()}
"""Of these only so much: the rest is the cluster's own."""


def plan_take(client: KubeClient, cr: Json, *, options: RenderOptions) -> Move:
    """Work out what a service takes along from the loop to a fleet, and whether its pods would stay as they are."""
    move, metadata = Move(key_of(cr)), cr["metadata"]
    if is_part_of_another(cr):
        owner = next(each for each in metadata["ownerReferences"] if each.get("controller"))
        move.problems.append(f"it is part of {owner['kind']} `{owner['name']}`: move that one")
        return move
    move.objects = owned_objects(
        client, move.key.dialect, move.key.namespace, lambda obj: is_owned(obj, metadata["uid"])
    )
    if not move.objects:
        move.problems.append(NOTHING_MADE)
        return move
    move.extensions = extensions_of(move)
    look = PreviewLookup(client)
    try:
        desired = dialect_named(move.key.dialect).parse(cr, look).desired
    except DesiredError as error:
        move.problems.append(str(error))
        return move
    move.notes += look.notes
    move.problems += _only_by_a_loop(desired)
    if desired.workloads is not None and (certificate := desired.workloads.certificate) is not None:
        move.certificate = certificate.secret
        move.notes.append(f"Secret {certificate.secret}, the pods' certificate, stays, and nobody renews it any more")
    referred = [_document(obj) for obj in look.found() if _says_something(obj)]
    installed = options.model_copy(update={"installed": frozenset(move.extensions)})
    service = written(cr)
    move.rendered = _as_a_fleet(move, [*referred, service], installed)
    if move.rendered is not None and _keep_replicas(move, service):
        move.rendered = _as_a_fleet(move, [*referred, service], installed)
    move.documents = [*referred, service]
    if move.rendered is not None:
        move.objects += _of_the_cluster(client, move)
        compare(move)
        leftovers(move)
    return move


def plan_give(client: KubeClient, service: Json, manifests: Manifests, *, options: RenderOptions) -> Move:
    """Work out whether the loop would leave a fleet's service as it is. `manifests`: the files of the fleet."""
    move = Move(key_of(service))
    kind = replace(KINDS[move.key.dialect], api_version=str(service["apiVersion"]))
    move.objects = owned_objects(
        client, move.key.dialect, move.key.namespace, lambda obj: service_of(obj) == move.key and is_of_a_fleet(obj)
    )
    if not is_gone(client, move.key, None):
        move.problems.append(f"a {kind_text(move.key.dialect)} of this name stands in the cluster already")
    if not move.objects:
        move.problems.append(NOTHING_OF_A_FLEET)
    asked = {Identity.of(each.cr): each.cr for each in manifests.referred}
    document = written(service)
    if move.problems or not _give(client, move, kind, document, asked, options):
        return move
    if _keep_replicas(move, document):
        _give(client, move, kind, document, asked, options)
    move.objects += _of_the_cluster(client, move)
    compare(move)
    leftovers(move)
    return move


def _give(
    client: KubeClient,
    move: Move,
    kind: kinds.Kind,
    service: Json,
    asked: dict[Identity, Json],
    options: RenderOptions,
) -> bool:
    """Render the service as the loop will, with what would be in the cluster then; False when that is a problem."""
    look = PreviewLookup(client, asked=asked)
    try:
        would_be = client.apply(kind, move.key.namespace, service, field_manager="herdsman-move", dry_run=True)
        would_be["metadata"].pop("uid", None)
        desired = dialect_named(move.key.dialect).parse(would_be, look).desired
        move.rendered = render(desired, options.model_copy(update={"installed": _installed(client)}))
    except NotFound:
        family = "kserve" if move.key.dialect == "kserve" else "llmaz"
        move.problems.append(
            f"the cluster serves no {kind.plural}.{kind.group}; install them first: "
            f"`herdsman crds --dialect {family} | kubectl create -f -`"
        )
        return False
    except (DesiredError, ApiError) as error:
        move.problems.append(str(error))
        return False
    if desired.workloads is not None and desired.workloads.certificate is not None:
        move.certificate = desired.workloads.certificate.secret
    missing = []
    for identity in sorted(look.seen & asked.keys()):
        written_so = written(asked[identity])
        try:
            live = client.get(_REFERRED[identity.kind], identity.namespace or None, identity.name)
        except NotFound:
            missing.append(written_so)
            continue
        if where := list(differences(written_so.get("spec") or {}, live.get("spec") or {}, "spec"))[:5]:
            problem = f"{identity.kind} `{identity.name}` of the cluster says otherwise than the file: "
            problem += f"{', '.join(where)}; make them the same first"
            move.problems += [problem] if problem not in move.problems else []
    move.documents = [*missing, service]
    return True


def _only_by_a_loop(desired: DesiredService) -> Iterator[str]:
    placement = desired.host_placement
    if placement is not None and placement.host is None:
        yield f"the loop chose its host, and in a fleet nobody does: name it by annotation {ANNOTATION_HOST} first"


def _as_a_fleet(move: Move, documents: list[Json], options: RenderOptions) -> RenderedService | None:
    """Read documents as a fleet reads its files, and render the service; None when that is a problem."""
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


def _keep_replicas(move: Move, service: Json) -> bool:
    """Write into a document how many pods there are where something else would be asked for; True when it changed.

    Only the pods that serve have a field that means them in every dialect.
    """
    rendered = move.rendered
    if rendered is None:
        return False
    changed = False
    for each in rendered.objects:
        wanted, live = (each.manifest.get("spec") or {}).get("replicas"), move.live(each.kind, each.name)
        if each.kind not in RUNS or wanted is None or live is None or live["spec"].get("replicas", 1) == wanted:
            continue
        replicas = live["spec"].get("replicas", 1)
        if each is rendered.objects[-1]:
            service["spec"] = {**service["spec"], "replicas": replicas}
            move.notes.append(f"spec.replicas is {replicas} in the file, as {each.kind} {each.name} has it now")
            changed = True
        else:
            move.problems.append(
                f"{each.kind} {each.name} has {replicas} replicas and the service asks for {wanted}: make them the same"
            )
    return changed


def _says_something(obj: Json) -> bool:
    """Tell whether a file must have an object: a fleet reads no more of an account than what its pods get of it."""
    if obj["kind"] == kinds.SECRETS.kind:
        return bool(obj["metadata"].get("annotations"))
    fields = _SAID.get(str(obj["kind"]), ())
    return obj["kind"] in _LOOKED_AT and (not fields or any(obj.get(field) for field in fields))


def _document(obj: Json) -> Json:
    """Write what a service looks at, as far as it is looked at."""
    document = written(obj)
    fields = _SAID.get(str(obj["kind"]))
    kept = ("apiVersion", "kind", "metadata", *(fields if fields is not None else document))
    return {key: value for key, value in document.items() if key in kept}


def _of_the_cluster(client: KubeClient, move: Move) -> list[Json]:
    """Read the bindings that no namespace holds, and that are made for this service."""
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


def _installed(client: KubeClient) -> frozenset[str]:
    """Name the optional kinds that the cluster serves. Raises ApiError."""
    answer = served(lambda path: client.request("GET", path), kinds.OPTIONAL)
    return frozenset(kind.full_name for kind, is_served in answer.items() if is_served)
