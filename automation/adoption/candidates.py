"""Decides which services `herdsman adopt` may take over, by the objects that exist for them.

`read_namespace` reads the objects; all else is pure. Called by `adopter`. A Deployment of LLMKube is found by its name,
the objects of KServe and llmaz by their owner. llmaz makes an object of its kind
Service between a Playground and the objects that run: the Playground owns that Service, which owns the objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from automation.adoption.kept_templates import WORKLOAD_KINDS, digests_text
from automation.adoption.owner_references import controller_uid
from automation.adoption.ownership import controller_of
from automation.adoption.upstream_controller import upstream_of
from automation.cache.owners import selector_of
from automation.reconcile.plan import ObjectName
from components import naming
from components.providers.kubernetes_ownership import managers_words
from components.providers.kubernetes_records import applied_fields
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import ANNOTATION_ADOPT, ANNOTATION_KEPT_TEMPLATE, ServiceKey
from program.dialects.llmaz.naming import ANNOTATION_WORKLOAD, LABEL_GROUP
from program.dialects.registry import LLMKUBE, is_part_of_another, key_of

LABEL_ROUTER = "inference.llmkube.dev/model-router"
"""LLMKube's label on the objects of a router's proxy."""
_RESOURCE_MARKS = {"ModelRouter": "SpecHonoured", "ModelPool": "Ready", "LoRAAdapter": "Ready"}
"""A condition that Herdsman's status of a kind has, and LLMKube's has not."""
RELEASED_NOTES = (naming.ANNOTATION_APPLIED_HASH, ANNOTATION_KEPT_TEMPLATE)
"""The annotations of objects that a release removes, as its last step."""
MANAGED_BY_AGENT = ("llmkube.ai/managed-by", "metal-agent")


class State(StrEnum):
    """Whether `adopt` may take a service over."""

    ADOPTABLE = "adoptable"
    OURS = "ours"
    """A loop of this class manages the service and has applied it."""
    ON_HOST = "on a host"
    """LLMKube's agent runs the service and continues to run it."""
    FOREIGN = "foreign"
    """Its objects, or the service itself, belong to another owner."""


@dataclass(frozen=True)
class NamespaceObjects:
    """The objects of one namespace that services of one dialect are compared with."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    """The annotations of the namespace."""
    workloads: tuple[Json, ...] = ()
    """Deployments and LeaderWorkerSets."""
    pods: tuple[Json, ...] = ()
    models: Mapping[str, Json] = field(default_factory=dict)
    """LLMKube's Models by name."""
    endpoint_slices: tuple[Json, ...] = ()
    """The EndpointSlices that LLMKube's agents publish."""
    llmaz_services: tuple[Json, ...] = ()
    services: tuple[Json, ...] = ()
    """Kubernetes Services; read only where llmaz's Services may own them."""
    bindings: tuple[Json, ...] = ()
    """KServe's ClusterRoleBindings, of all namespaces."""


@dataclass(frozen=True)
class Candidate:
    """One service, and the objects that exist for it."""

    cr: Json
    state: State
    why: str = ""
    workloads: Mapping[ObjectName, Json] = field(default_factory=dict)
    """The Deployments and LeaderWorkerSets that run its pods."""
    pods: frozenset[str] = field(default_factory=frozenset)
    """The uids of its pods."""
    llmaz_service: Json | None = None
    """llmaz's Service between a Playground and its objects."""
    dependents: tuple[Json, ...] = ()
    """The objects that `llmaz_service` owns, which `adopt` gives to the Playground."""
    bindings: tuple[str, ...] = ()
    """Its ClusterRoleBindings, which no namespaced object can own. Only `herdsman.dev/adopt` takes them over."""

    @property
    def key(self) -> ServiceKey:
        return key_of(self.cr)


def read_namespace(client: KubeClient, dialect: str, namespace: str) -> NamespaceObjects:
    """Read the objects that services of a dialect in a namespace may have. Raises ApiError."""
    selector = _pod_selector(dialect)
    read = NamespaceObjects(
        annotations=client.get(kinds.NAMESPACES, None, namespace)["metadata"].get("annotations") or {},
        workloads=tuple(
            obj
            for kind in WORKLOAD_KINDS.values()
            if dialect != LLMKUBE or kind is kinds.DEPLOYMENTS
            for obj in _list(client, kind, namespace, selector)
        ),
        pods=_list(client, kinds.PODS, namespace, selector),
        models={m["metadata"]["name"]: m for m in _list(client, kinds.MODELS, namespace)} if dialect == LLMKUBE else {},
        endpoint_slices=_list(client, kinds.ENDPOINT_SLICES, namespace, "=".join(MANAGED_BY_AGENT))
        if dialect == LLMKUBE
        else (),
        llmaz_services=_list(client, kinds.LLMAZ_SERVICES, namespace) if dialect == "llmaz" else (),
        bindings=_list(client, kinds.CLUSTER_ROLE_BINDINGS, None, selector_of(dialect)) if dialect == "kserve" else (),
    )
    if not read.llmaz_services:
        return read
    return replace(read, services=_list(client, kinds.SERVICES, namespace))


def find_resource_candidate(cr: Json, namespace_annotations: Mapping[str, str], controller_class: str) -> Candidate:
    """Decide whether a loop of a class may take over a ModelRouter, ModelPool or LoRAAdapter. It has no pods."""
    if controller_of(cr, namespace_annotations) == controller_class and has_mark(cr):
        return Candidate(cr, State.OURS, f"a loop of class `{controller_class}` manages it")
    return Candidate(cr, State.ADOPTABLE)


def has_mark(cr: Json) -> bool:
    """Return whether the status of a ModelRouter, ModelPool or LoRAAdapter is Herdsman's."""
    conditions = (cr.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == _RESOURCE_MARKS[cr["kind"]] for each in conditions)


def proxy_of_llmkube(client: KubeClient, cr: Json) -> str:
    """Return the objects of LLMKube's proxy for a ModelRouter; empty if there are none. Raises ApiError.

    They are left: clients may use the proxy's Service until they use the gateway.
    """
    if cr["kind"] != kinds.MODEL_ROUTERS.kind:
        return ""
    metadata = cr["metadata"]
    selector = f"{LABEL_ROUTER}={metadata['name']}"
    found = [
        f"{kind.kind} {each['metadata']['name']}"
        for kind in (kinds.DEPLOYMENTS, kinds.SERVICES)
        for each in _list(client, kind, metadata["namespace"], selector)
    ]
    return ", ".join(found)


def find_candidate(cr: Json, objects: NamespaceObjects, controller_class: str) -> Candidate:
    """Decide whether a loop of a class may take a service over."""
    key, uid = key_of(cr), cr["metadata"]["uid"]
    llmaz_service = next((each for each in objects.llmaz_services if controller_uid(each) == uid), None)
    owners = {uid} | ({llmaz_service["metadata"]["uid"]} if llmaz_service is not None else set())
    workloads = {
        ObjectName(obj["kind"], obj["metadata"]["name"]): obj
        for obj in objects.workloads
        if (
            obj["metadata"]["name"] == naming.deployment_name(key.name)
            if key.dialect == LLMKUBE
            else controller_uid(obj) in owners
        )
    }
    dependents = tuple(
        obj
        for obj in (*objects.workloads, *objects.services)
        if llmaz_service is not None and controller_uid(obj) == llmaz_service["metadata"]["uid"]
    )
    bindings = tuple(
        str(each["metadata"]["name"])
        for each in objects.bindings
        if _binds(each, cr) and applied_fields(each, naming.FIELD_MANAGER) is None
    )
    pods = frozenset(str(each["metadata"]["uid"]) for each in objects.pods if _runs_for(each, workloads))

    def found(state: State, why: str = "") -> Candidate:
        return Candidate(cr, state, why, workloads, pods, llmaz_service, dependents, bindings)

    if is_part_of_another(cr):
        owner = next(each for each in cr["metadata"]["ownerReferences"] if each.get("controller"))
        return found(State.FOREIGN, f"{owner['kind']} `{owner['name']}` owns it: adopt the owner instead")
    is_marked = controller_of(cr, objects.annotations) == controller_class
    if is_marked and (not workloads or any(map(is_applied, workloads.values()))):
        return found(State.OURS, f"a loop of class `{controller_class}` manages it")
    if _is_on_host(cr, objects):
        return found(State.ON_HOST, "LLMKube's agent runs it on a host and manages it until that agent is stopped")
    for name, obj in workloads.items():
        if controller_uid(obj) not in owners:
            return found(State.FOREIGN, f"{name.kind} {name.name} is managed by {managers_words(obj)}")
    return found(State.ADOPTABLE)


def is_applied(obj: Json) -> bool:
    """Return whether a loop has applied a live object, and with it all objects before it."""
    annotations = obj["metadata"].get("annotations") or {}
    return naming.ANNOTATION_APPLIED_HASH in annotations and applied_fields(obj, naming.FIELD_MANAGER) is not None


def is_half_released(one: Candidate) -> bool:
    """Return whether a service names the controller that it was given back to, and its objects are still annotated."""
    if one.state is State.FOREIGN or controller_of(one.cr, {}) != upstream_of(one.key.dialect).released_to:
        return False
    notes = {note for obj in one.workloads.values() for note in obj["metadata"].get("annotations") or {}}
    return not notes.isdisjoint(RELEASED_NOTES)


def adoption_annotations(one: Candidate) -> dict[str, str]:
    """Return the annotations that `adopt` writes beside the controller's, so that the pods stay as they are."""
    annotations = one.cr["metadata"].get("annotations") or {}
    marks = {}
    if kept := digests_text(one.key.dialect, one.workloads):
        marks[ANNOTATION_KEPT_TEMPLATE] = kept
    in_groups = any(name.kind == kinds.LEADER_WORKER_SETS.kind for name in one.workloads)
    if one.key.dialect != "kserve" and in_groups and ANNOTATION_WORKLOAD not in annotations:
        marks[ANNOTATION_WORKLOAD] = kinds.LEADER_WORKER_SETS.kind
    if one.bindings:
        marks[ANNOTATION_ADOPT] = "true"
    return marks


def preview_notes(one: Candidate) -> tuple[str, ...]:
    """Describe for a preview which owners of objects an adoption changes."""
    if one.llmaz_service is None:
        return ()
    name = one.llmaz_service["metadata"]["name"]
    passed = " and ".join(f"{obj['kind']} {obj['metadata']['name']}" for obj in one.dependents) or "nothing"
    verb = "passes" if len(one.dependents) == 1 else "pass"
    return (
        f"{passed} {verb} from llmaz's Service `{name}` to the Playground; that Service stays without an owner, so "
        f"that llmaz finds it if you give the Playground back",
    )


def pods_of(client: KubeClient, one: Candidate) -> frozenset[str]:
    """Return the uids of the pods that a service has now. Raises ApiError."""
    pods = client.list(kinds.PODS, one.key.namespace, label_selector=_pod_selector(one.key.dialect))["items"]
    return frozenset(str(each["metadata"]["uid"]) for each in pods if _runs_for(each, one.workloads))


def _pod_selector(dialect: str) -> str | None:
    """Return the label of all pods of a dialect; None if not all of them have one."""
    return naming.LABEL_SERVICE if dialect == LLMKUBE else None


def _runs_for(pod: Json, workloads: Mapping[ObjectName, Json]) -> bool:
    """Return whether a pod belongs to one of these workloads, by their selectors or the label of LeaderWorkerSet."""
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


def _is_on_host(cr: Json, objects: NamespaceObjects) -> bool:
    service_name = naming.service_name(str(cr["metadata"]["name"]))
    if any(_service_name(each) == service_name for each in objects.endpoint_slices):
        return True
    model = objects.models.get((cr.get("spec") or {}).get("modelRef", "")) or {}
    return bool(((model.get("spec") or {}).get("hardware") or {}).get("accelerator") == "metal")


def _service_name(endpoint_slice: Json) -> str:
    return str((endpoint_slice["metadata"].get("labels") or {}).get("kubernetes.io/service-name", ""))


def _binds(binding: Json, cr: Json) -> bool:
    """Return whether a ClusterRoleBinding is for the accounts of a service; two namespaces may have the same name."""
    labels, metadata = binding["metadata"].get("labels") or {}, cr["metadata"]
    subjects = binding.get("subjects") or ()
    own = all(each.get("namespace") == metadata["namespace"] for each in subjects)
    return bool(labels.get("app.kubernetes.io/name") == metadata["name"] and subjects and own)


def _list(client: KubeClient, kind: Kind, namespace: str | None, selector: str | None = None) -> tuple[Json, ...]:
    try:
        return tuple(client.list(kind, namespace, label_selector=selector)["items"])
    except NotFound:
        return ()
    except Forbidden:
        if kind.namespaced:
            raise
        return ()
