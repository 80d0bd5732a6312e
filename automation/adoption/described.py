"""Judges which services of KServe and llmaz `herdsman adopt` may take over, and says what is written to take one.

Called by `adopter`. What KServe makes belongs to its custom resource and stays that one's. llmaz puts a Service of its
own between a Playground and what runs: LeaderWorkerSet and core Service belong to that, so they are given to the
Playground first, and the Service between is nobody's from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from automation.adoption.candidates import Candidate, State, is_applied
from automation.adoption.kept_workloads import digests_text
from automation.adoption.ownership import controller_of
from automation.cache.owners import selector_of
from automation.reconcile.plan import ObjectName
from components import naming
from components.object_metadata import owner_reference
from components.providers.kubernetes_records import applied_fields
from kubeapi import kinds
from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.errors import Conflict, Forbidden, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import ANNOTATION_ADOPT, ANNOTATION_KEPT_TEMPLATE, Owner
from program.dialects.llmaz.naming import ANNOTATION_WORKLOAD, LABEL_GROUP
from program.dialects.registry import dialect_of, is_part_of_another

_RUNS = (kinds.DEPLOYMENTS, kinds.LEADER_WORKER_SETS)
_HELD = {kind.kind: kind for kind in (*_RUNS, kinds.SERVICES)}
"""Kinds that llmaz's Service owns."""
FIELD_MANAGER = "herdsman-adopt"
_TRIES = 10


def described_candidates(client: KubeClient, services: Sequence[Json], controller_class: str) -> Iterable[Candidate]:
    """Judge services of one dialect in one namespace by what exists for them. Raises ApiError."""
    dialect, namespace = dialect_of(services[0]), services[0]["metadata"]["namespace"]
    said = client.get(kinds.NAMESPACES, None, namespace)["metadata"].get("annotations") or {}
    running = [obj for kind in _RUNS for obj in _listed(client, kind, namespace)]
    between = _listed(client, kinds.LLMAZ_SERVICES, namespace) if dialect == "llmaz" else []
    fronts = _listed(client, kinds.SERVICES, namespace) if between else []
    bindings = _listed(client, kinds.CLUSTER_ROLE_BINDINGS, None, selector_of(dialect)) if dialect == "kserve" else []
    pods = _listed(client, kinds.PODS, namespace)
    for cr in sorted(services, key=lambda each: str(each["metadata"]["name"])):
        uid = cr["metadata"]["uid"]
        middle = next((each for each in between if controller_uid(each) == uid), None)
        owners = {uid} | ({middle["metadata"]["uid"]} if middle is not None else set())
        own = {
            ObjectName(obj["kind"], obj["metadata"]["name"]): obj for obj in running if controller_uid(obj) in owners
        }
        held = [
            obj
            for obj in (*running, *fronts)
            if middle is not None and controller_uid(obj) == middle["metadata"]["uid"]
        ]
        yield _candidate(
            cr,
            workloads=own,
            pods=frozenset(each["metadata"]["uid"] for each in pods if _runs_for(each, own)),
            between=middle,
            held=tuple(held),
            foreign_names=tuple(
                str(each["metadata"]["name"])
                for each in bindings
                if _binds(each, cr) and applied_fields(each, naming.FIELD_MANAGER) is None
            ),
            named=controller_of(cr, said),
            controller_class=controller_class,
        )


def _candidate(cr: Json, *, named: str, controller_class: str, **found: Any) -> Candidate:
    workloads: Mapping[ObjectName, Json] = found["workloads"]
    state, why = State.ADOPTABLE, ""
    if is_part_of_another(cr):
        owner = next(each for each in cr["metadata"]["ownerReferences"] if each.get("controller"))
        state, why = State.FOREIGN, f"{owner['kind']} `{owner['name']}` has made it: adopt that one"
    elif named == controller_class and (not workloads or any(map(is_applied, workloads.values()))):
        state, why = State.OURS, f"a loop of class `{controller_class}` looks after it"
    return Candidate(cr, state, why, **found)


def marks_of(one: Candidate) -> dict[str, str]:
    """Say what is written on a service beside its controller, so that its pods stay as they are."""
    annotations = one.cr["metadata"].get("annotations") or {}
    marks = {}
    if kept := digests_text(one.workloads):
        marks[ANNOTATION_KEPT_TEMPLATE] = kept
    in_groups = any(name.kind == kinds.LEADER_WORKER_SETS.kind for name in one.workloads)
    if one.key.dialect != "kserve" and in_groups and ANNOTATION_WORKLOAD not in annotations:
        marks[ANNOTATION_WORKLOAD] = kinds.LEADER_WORKER_SETS.kind
    if one.foreign_names:
        marks[ANNOTATION_ADOPT] = "true"
    return marks


def notes_of(one: Candidate) -> tuple[str, ...]:
    """Say for a preview what happens beside the changes of objects."""
    if one.between is None:
        return ()
    name = one.between["metadata"]["name"]
    passed = " and ".join(f"{obj['kind']} {obj['metadata']['name']}" for obj in one.held) or "nothing"
    return (
        f"{passed} pass{'es' if len(one.held) == 1 else ''} from llmaz's Service `{name}` to the Playground; that "
        "Service stays and is nobody's: it is for llmaz to find again, should you give the Playground back",
    )


def give_to_playground(client: KubeClient, one: Candidate) -> None:
    """Put a Playground in the place of the Service between, as owner of what runs. May be called again."""
    if one.between is not None:
        for obj in one.held:
            _change_owner(client, obj, take=str(one.between["metadata"]["uid"]), give=owner_reference(Owner.of(one.cr)))


def give_back(client: KubeClient, one: Candidate) -> None:
    """Take our notes off what runs, and give llmaz's own Service what it owned, where that is still there."""
    for name in one.workloads:
        notes = dict.fromkeys((naming.ANNOTATION_APPLIED_HASH, ANNOTATION_KEPT_TEMPLATE))
        kind = _HELD[name.kind]
        try:
            client.patch(kind, one.key.namespace, name.name, {"metadata": {"annotations": notes}})
        except NotFound:
            continue
    if one.key.dialect != "llmaz":
        return
    uid = str(one.cr["metadata"]["uid"])
    front = ObjectName(kinds.SERVICES.kind, f"{one.key.name}-lb")
    for name in (*one.workloads, front):
        try:
            obj = client.get(_HELD[name.kind], one.key.namespace, name.name)
        except NotFound:
            continue
        if controller_uid(obj) == uid and name.kind != kinds.DEPLOYMENTS.kind:
            _change_owner(
                client, obj, take=uid, give=owner_reference(Owner.of(one.between)) if one.between is not None else None
            )


def controller_uid(obj: Json) -> str:
    """Give the uid of an object's controller; empty for none."""
    references = obj["metadata"].get("ownerReferences") or ()
    return next((str(each["uid"]) for each in references if each.get("controller")), "")


def _change_owner(client: KubeClient, obj: Json, *, take: str, give: Json | None) -> None:
    """Change the controller of an object in one write that nobody's comes between."""
    kind, metadata = _HELD[obj["kind"]], obj["metadata"]
    for _ in range(_TRIES):
        try:
            live = client.get(kind, metadata["namespace"], metadata["name"])
        except NotFound:
            return
        references = live["metadata"].get("ownerReferences") or []
        if live["metadata"]["uid"] != metadata["uid"] or not any(each.get("uid") == take for each in references):
            return
        owners = [*(each for each in references if each.get("uid") != take), *([give] if give else [])]
        body = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]},
            {"op": "add", "path": "/metadata/ownerReferences", "value": owners},
        ]
        try:
            client.patch(
                kind,
                metadata["namespace"],
                metadata["name"],
                body,
                content_type=JSON_PATCH,
                field_manager=FIELD_MANAGER,
            )
        except Conflict:
            continue
        return
    raise Conflict(409, "Conflict", f"{obj['kind']} `{metadata['name']}` is written to all the time")


def _runs_for(pod: Json, workloads: Mapping[ObjectName, Json]) -> bool:
    """Tell whether a pod is a service's, by the labels that its own pods have or that LeaderWorkerSet gives."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    if "deletionTimestamp" in metadata:
        return False
    for name, obj in workloads.items():
        if name.kind == kinds.LEADER_WORKER_SETS.kind:
            if labels.get(LABEL_GROUP) == name.name:
                return True
        else:
            wanted = (obj["spec"].get("selector") or {}).get("matchLabels") or {}
            if wanted and all(labels.get(key) == value for key, value in wanted.items()):
                return True
    return False


def pods_of(client: KubeClient, one: Candidate) -> frozenset[str]:
    """Give the uids of the pods that a service has now. Raises ApiError."""
    pods = client.list(kinds.PODS, one.key.namespace)["items"]
    return frozenset(str(each["metadata"]["uid"]) for each in pods if _runs_for(each, one.workloads))


def _binds(binding: Json, cr: Json) -> bool:
    """Tell whether a ClusterRoleBinding is for the accounts of a service; names of two namespaces may be one."""
    labels, metadata = binding["metadata"].get("labels") or {}, cr["metadata"]
    subjects = binding.get("subjects") or ()
    own = all(each.get("namespace") == metadata["namespace"] for each in subjects)
    return bool(labels.get("app.kubernetes.io/name") == metadata["name"] and subjects and own)


def _listed(client: KubeClient, kind: Kind, namespace: str | None, selector: str | None = None) -> list[Json]:
    try:
        return list(client.list(kind, namespace, label_selector=selector)["items"])
    except NotFound:
        return []
    except Forbidden:
        if kind.namespaced:
            raise
        return []
