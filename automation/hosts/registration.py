"""Writes the Service without selector and the EndpointSlices that lead clients to processes on hosts.

Called by `endpoints`; calls `kubeapi`. Names, labels and annotations are those of LLMKube's agent, so that tools for
LLMKube work with both. The field manager is that of Herdsman's agents, because agents of development versions wrote
these objects: so the loop owns all of their fields. The objects belong to the InferenceService, and the cluster deletes
them with it. Replica 0 has the Service and the slice of the same name; each further replica has a slice.

Every write contains the version on which it was decided, so that a delayed write cannot undo a later one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from agent.contract import AGENT_FIELD_MANAGER as FIELD_MANAGER
from agent.contract import LABEL_HOST, ProcessReason
from automation.hosts import handover
from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.errors import Conflict, Invalid, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import ENDPOINT_SLICES, HOST_PROCESSES, SERVICES, Kind

LABEL_MANAGED_BY = "llmkube.ai/managed-by"
MANAGED_BY = "metal-agent"
LABEL_INFERENCE_SERVICE = "llmkube.ai/inference-service"
LABEL_SERVICE_NAME = "kubernetes.io/service-name"
LABEL_SLICE_MANAGER = "endpointslice.kubernetes.io/managed-by"
ANNOTATION_HEARTBEAT = "llmkube.ai/agent-heartbeat"
ANNOTATION_VERSION = "llmkube.ai/agent-version"
SELECTOR = f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_HOST}"
"""Selects the Services and EndpointSlices of Herdsman's hosts."""

HOST_PATH = f"/metadata/labels/{LABEL_HOST.replace('/', '~1')}"
"""JSON pointer to the host's label."""
PEER_STALE_S = 90.0
"""LLMKube's agent renews its heartbeat every 30 s. After three missed heartbeats its Service may be taken over."""


class Moved(Exception):
    """The process now belongs to another host, which the cache does not show yet."""


class Refused(Exception):
    """The endpoint cannot be published. `reason` is for the process's status."""

    def __init__(self, reason: ProcessReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Registration:
    """The desired endpoint of one process."""

    namespace: str
    service_name: str
    service_port: int
    inference_service: str
    host: str
    address: str
    port: int | None
    """None: there has been no process yet, so there is no endpoint."""
    ready: bool
    owner: Json | None
    """The ownerReference of both objects."""
    version: str
    endpoint_slice: str | None = None
    """Name of the slice of a replica above 0, whose Service belongs to replica 0. None: the Service's name."""

    process: str = ""
    """Name of the HostProcess."""

    @property
    def slice_name(self) -> str:
        return self.endpoint_slice or self.service_name


def owner_reference(process: Json) -> Json:
    """Return the owner of the objects: the service that owns the HostProcess, else the HostProcess."""
    metadata = process["metadata"]
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("kind") == "InferenceService" or owner.get("controller"):
            return {part: owner[part] for part in ("apiVersion", "kind", "name", "uid")}
    return {
        "apiVersion": process["apiVersion"],
        "kind": process["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def service_object(wanted: Registration) -> Json:
    """Return the Service."""
    return {
        "apiVersion": SERVICES.api_version,
        "kind": SERVICES.kind,
        "metadata": _metadata(wanted, wanted.service_name),
        "spec": {
            "type": "ClusterIP",
            "ports": [
                {
                    "name": "http",
                    "protocol": "TCP",
                    "port": wanted.service_port,
                    "targetPort": wanted.port or wanted.service_port,
                }
            ],
        },
    }


def slice_object(wanted: Registration, *, now: datetime) -> Json:
    """Return the EndpointSlice. Requires `wanted.port`."""
    metadata = _metadata(wanted, wanted.slice_name)
    metadata["labels"] = {
        **metadata["labels"],
        LABEL_SERVICE_NAME: wanted.service_name,
        LABEL_SLICE_MANAGER: FIELD_MANAGER,
    }
    metadata["annotations"] = {
        ANNOTATION_HEARTBEAT: now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        ANNOTATION_VERSION: wanted.version,
    }
    return {
        "apiVersion": ENDPOINT_SLICES.api_version,
        "kind": ENDPOINT_SLICES.kind,
        "metadata": metadata,
        "addressType": "IPv6" if ipaddress.ip_address(wanted.address).version == 6 else "IPv4",
        "endpoints": [
            {
                "addresses": [wanted.address],
                "conditions": {"ready": wanted.ready, "serving": wanted.ready, "terminating": False},
            }
        ],
        "ports": [{"name": "http", "protocol": "TCP", "port": wanted.port}],
    }


def _metadata(wanted: Registration, name: str) -> Json:
    metadata: Json = {
        "name": name,
        "namespace": wanted.namespace,
        "labels": {
            "app": wanted.service_name,
            LABEL_MANAGED_BY: MANAGED_BY,
            LABEL_INFERENCE_SERVICE: wanted.inference_service,
            LABEL_HOST: wanted.host,
        },
    }
    if wanted.owner is not None:
        metadata["ownerReferences"] = [wanted.owner]
    return metadata


def refusal(existing: Json, wanted: Registration, *, now: datetime) -> str | None:
    """Return why an existing Service or EndpointSlice may not be taken over, or None.

    Objects that a host's agent made for the same InferenceService may be taken over. An object of LLMKube's agent may
    not while its heartbeat is fresh.
    """
    metadata = existing["metadata"]
    labels = metadata.get("labels") or {}
    name = f"{existing['kind']} {metadata['name']}"
    if labels.get(LABEL_MANAGED_BY) != MANAGED_BY:
        managers = ", ".join(sorted({f["manager"] for f in metadata.get("managedFields") or () if f.get("manager")}))
        return (
            f"{name} exists and does not belong to a host; remove it or rename the service (managed by "
            f"{managers or 'no manager'})"
        )
    if labels.get(LABEL_INFERENCE_SERVICE, wanted.inference_service) != wanted.inference_service:
        return f"{name} belongs to InferenceService {labels[LABEL_INFERENCE_SERVICE]}"
    beat = (metadata.get("annotations") or {}).get(ANNOTATION_HEARTBEAT)
    if LABEL_HOST not in labels and beat and _is_fresh(beat, now=now):
        return f"{name} belongs to a running LLMKube agent; stop that agent, or leave the service to it"
    return None


def _is_fresh(heartbeat: str, *, now: datetime) -> bool:
    try:
        return now - datetime.fromisoformat(heartbeat) < timedelta(seconds=PEER_STALE_S)
    except (ValueError, TypeError):
        return False


def register(
    client: KubeClient, wanted: Registration, *, now: datetime, before: Callable[[], None] = lambda: None
) -> str | None:
    """Create or update Service and EndpointSlice. Returns the version of the slice, or None without a slice.

    `before` is called after all checks, before the first write. Raises Refused for foreign objects of the same name,
    Moved if another host now has the process, Conflict if an object was changed at the same time, ApiError.
    """
    service = client.find(SERVICES, wanted.namespace, wanted.service_name)
    endpoints = client.find(ENDPOINT_SLICES, wanted.namespace, wanted.slice_name)
    of_pods = service is not None and _is_of_own_pods(service, wanted)
    for existing in (None if of_pods else service, endpoints):
        why = refusal(existing, wanted, now=now) if existing is not None else None
        if why:
            raise Refused(ProcessReason.FOREIGN_SERVICE, why)
    taken = {host_of(each) for each in (service, endpoints) if each is not None} - {"", wanted.host}
    if taken and wanted.process:
        # The two hosts disagree about the process. Read its HostProcess before taking the endpoint.
        planned = client.find(HOST_PROCESSES, wanted.namespace, wanted.process)
        if planned is None or host_of(planned) != wanted.host:
            raise Moved(f"HostProcess {wanted.process} has moved from host `{wanted.host}`")
    before()
    if service is not None and of_pods and wanted.endpoint_slice is None:
        process = client.find(HOST_PROCESSES, wanted.namespace, wanted.process)
        if process is None or _is_going(process):
            raise Moved(f"HostProcess {wanted.process} was deleted")
        service = handover.to_host(client, service, service_object(wanted), field_manager=FIELD_MANAGER)
    if endpoints is not None and host_of(endpoints) not in ("", wanted.host):
        # The process moved away from the host of this slice, where it is being stopped.
        _delete(client, ENDPOINT_SLICES, endpoints)
        endpoints = None
    if wanted.port is None and endpoints is not None and host_of(endpoints) == wanted.host:
        # No process runs now. The last port stays, so that a ready slice can be made not ready.
        wanted = replace(wanted, port=_port_of(endpoints))
    # Forced: the checks above showed that the objects belong to a host, and fields of an earlier agent must not remain.
    if wanted.endpoint_slice is None and not (service is not None and handover.leads_to_pods(service)):
        built = service_object(wanted)
        if service is None or not _matches(service, built):
            built = _at_version(built, service)
            client.apply(SERVICES, wanted.namespace, built, field_manager=FIELD_MANAGER, force=True)
    if wanted.port is None:
        return None
    built = slice_object(wanted, now=now)
    if endpoints is not None and endpoints.get("addressType") != built["addressType"]:
        # The address family is immutable, and that of the host has changed.
        _delete(client, ENDPOINT_SLICES, endpoints)
        endpoints = None
    return _apply_slice(client, wanted, _at_version(built, endpoints))


def beat(client: KubeClient, wanted: Registration, *, version: str, now: datetime) -> str | None:
    """Renew the heartbeat of an unchanged slice with one request. Returns its new version.

    Returns None if the slice was changed or deleted. Raises ApiError.
    """
    built = slice_object(wanted, now=now)
    built["metadata"]["resourceVersion"] = version
    try:
        return _apply_slice(client, wanted, built)
    except (Conflict, NotFound):
        return None


def _apply_slice(client: KubeClient, wanted: Registration, built: Json) -> str:
    applied = client.apply(ENDPOINT_SLICES, wanted.namespace, built, field_manager=FIELD_MANAGER, force=True)
    return str(applied["metadata"]["resourceVersion"])


def _at_version(built: Json, existing: Json | None) -> Json:
    """Add the version, so that the server refuses the write if the object was changed since it was read."""
    if existing is not None:
        built["metadata"]["resourceVersion"] = existing["metadata"]["resourceVersion"]
    return built


def _port_of(endpoints: Json) -> int | None:
    ports = endpoints.get("ports") or ()
    return ports[0].get("port") if ports else None


def _matches(existing: Json, built: Json) -> bool:
    """Return whether a Service already has the desired fields."""
    metadata, wanted = existing["metadata"], built["metadata"]
    labels, spec = metadata.get("labels") or {}, existing.get("spec") or {}
    ports = [{part: port.get(part) for part in ("name", "protocol", "port", "targetPort")} for port in spec["ports"]]
    return (
        wanted["labels"].items() <= labels.items()
        and (metadata.get("ownerReferences") or []) == (wanted.get("ownerReferences") or [])
        and ports == built["spec"]["ports"]
    )


def _delete(client: KubeClient, kind: Kind, seen: Json) -> None:
    """Delete exactly this version of an object. Raises Conflict if it was changed or replaced."""
    metadata = seen["metadata"]
    client.delete(
        kind, metadata["namespace"], metadata["name"], uid=metadata["uid"], resource_version=metadata["resourceVersion"]
    )


def unregister(
    client: KubeClient, *, namespace: str, service_name: str, host: str, endpoint_slice: str | None = None
) -> None:
    """Remove EndpointSlice and Service if they still belong to this host. Raises ApiError.

    The Service stays if its process has only moved: the other host takes it over, and its address must neither change
    nor disappear for clients. It also stays if the service now runs in pods.
    """
    endpoints = client.find(ENDPOINT_SLICES, namespace, endpoint_slice or service_name)
    if endpoints is not None and host_of(endpoints) == host:
        _delete_unless_taken(client, ENDPOINT_SLICES, endpoints)
    if endpoint_slice is not None:
        return
    service = client.find(SERVICES, namespace, service_name)
    if service is None or host_of(service) != host:
        return
    process = (service["metadata"].get("labels") or {}).get(LABEL_INFERENCE_SERVICE) or service_name
    planned = client.find(HOST_PROCESSES, namespace, process)
    if planned is not None and not _is_going(planned):
        return
    if handover.leads_to_pods(service):
        handover.to_pods(client, service, field_manager=FIELD_MANAGER)
    else:
        _delete_unless_taken(client, SERVICES, service)


def _delete_unless_taken(client: KubeClient, kind: Kind, seen: Json) -> None:
    # NotFound: it is already deleted. Conflict: another host has it now, or this is tried again.
    try:
        _delete(client, kind, seen)
    except NotFound:
        return
    except Conflict:
        now = client.find(kind, seen["metadata"]["namespace"], seen["metadata"]["name"])
        if now is not None and host_of(now) == host_of(seen) and now["metadata"]["uid"] == seen["metadata"]["uid"]:
            raise


def host_of(obj: Json) -> str:
    """Return the host in the label of a Service, EndpointSlice or HostProcess, or an empty string."""
    return str((obj["metadata"].get("labels") or {}).get(LABEL_HOST, ""))


def _is_of_own_pods(service: Json, wanted: Registration) -> bool:
    """Return whether a Service selects the pods that the same custom resource had before it moved to a host."""
    return handover.is_of_owner(service, wanted.owner) and handover.leads_to_pods(service) and not host_of(service)


def _is_going(obj: Json) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def remove_endpoint(
    client: KubeClient, *, namespace: str, name: str, host: str, field_manager: str = FIELD_MANAGER
) -> bool:
    """Make the endpoint of a slice not ready, if the slice belongs to this host.

    Returns False if there is no such slice. Raises ApiError.
    """
    # A host's slice has one endpoint.
    body = [
        {"op": "test", "path": HOST_PATH, "value": host},
        {"op": "add", "path": "/endpoints/0/conditions/ready", "value": False},
        {"op": "add", "path": "/endpoints/0/conditions/serving", "value": False},
    ]
    try:
        client.patch(ENDPOINT_SLICES, namespace, name, body, content_type=JSON_PATCH, field_manager=field_manager)
    except (NotFound, Invalid):
        return False
    return True


@dataclass(frozen=True)
class Registered:
    """An EndpointSlice or Service of a host."""

    namespace: str
    service_name: str
    endpoint_slice: str | None
    """None: the slice, if there is one, has the Service's name."""
    host: str


def registered(client: KubeClient, *, namespaces: tuple[str, ...]) -> set[Registered]:
    """List all Services and EndpointSlices of Herdsman's hosts. Raises ApiError."""
    found: set[Registered] = set()
    for namespace in namespaces or (None,):
        for item in client.list(SERVICES, namespace, label_selector=SELECTOR)["items"]:
            found.add(Registered(item["metadata"]["namespace"], item["metadata"]["name"], None, host_of(item)))
        for item in client.list(ENDPOINT_SLICES, namespace, label_selector=SELECTOR)["items"]:
            metadata = item["metadata"]
            service = (metadata.get("labels") or {}).get(LABEL_SERVICE_NAME) or metadata["name"]
            own = metadata["name"] if metadata["name"] != service else None
            found.add(Registered(metadata["namespace"], service, own, host_of(item)))
    return found
