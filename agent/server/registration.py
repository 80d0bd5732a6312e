"""Leads a cluster's clients to processes on this host: a Service without selector and its EndpointSlice.

Called by `agent.server.publisher`; calls `kubeapi`. Names, labels and annotations are those of LLMKube's agent, so that
its users' tools and Herdsman's loop read both alike. The objects belong to the InferenceService, and the cluster
removes them with it.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from agent.contract import ProcessReason
from kubeapi.client import KubeClient
from kubeapi.errors import Invalid, NotFound
from kubeapi.kinds import ENDPOINT_SLICES, SERVICES, Kind

Json = dict[str, Any]

FIELD_MANAGER = "herdsman-agent"
LABEL_MANAGED_BY = "llmkube.ai/managed-by"
MANAGED_BY = "metal-agent"
LABEL_INFERENCE_SERVICE = "llmkube.ai/inference-service"
LABEL_HOST = "herdsman.dev/host"
LABEL_SERVICE_NAME = "kubernetes.io/service-name"
LABEL_SLICE_MANAGER = "endpointslice.kubernetes.io/managed-by"
ANNOTATION_HEARTBEAT = "llmkube.ai/agent-heartbeat"
ANNOTATION_VERSION = "llmkube.ai/agent-version"

PEER_STALE_S = 90.0
"""LLMKube's agent renews its heartbeat every 30 s; after three missed ones we may take its Service over."""


class Refused(Exception):
    """The Service cannot be ours; `reason` is for the report."""

    def __init__(self, reason: ProcessReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Registration:
    """What clients of one process should find."""

    namespace: str
    service_name: str
    service_port: int
    inference_service: str
    host: str
    address: str
    port: int | None
    """None: there was no process yet, so there is nothing to lead to."""
    ready: bool
    owner: Json | None
    """The ownerReference that both objects carry."""
    version: str


def owner_reference(process: Json) -> Json:
    """Choose who owns the objects: whoever owns the HostProcess, else the HostProcess itself."""
    metadata = process["metadata"]
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("kind") == "InferenceService":
            return {part: owner[part] for part in ("apiVersion", "kind", "name", "uid")}
    return {
        "apiVersion": process["apiVersion"],
        "kind": process["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def service_object(wanted: Registration) -> Json:
    """Build the Service."""
    return {
        "apiVersion": SERVICES.api_version,
        "kind": SERVICES.kind,
        "metadata": _metadata(wanted),
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
    """Build the EndpointSlice; `wanted.port` is known."""
    metadata = _metadata(wanted)
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


def _metadata(wanted: Registration) -> Json:
    metadata: Json = {
        "name": wanted.service_name,
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
    """Say why an existing Service or EndpointSlice may not be taken over; None when it may.

    Ours are those that a host's agent made for the same InferenceService. One of LLMKube's agent is left to it while
    its heartbeat is fresh.
    """
    metadata = existing["metadata"]
    labels = metadata.get("labels") or {}
    name = f"{existing['kind']} {metadata['name']}"
    if labels.get(LABEL_MANAGED_BY) != MANAGED_BY:
        managers = ", ".join(sorted({f["manager"] for f in metadata.get("managedFields") or () if f.get("manager")}))
        return f"{name} exists and is not a host's; remove it or rename the service (managed by {managers or 'nobody'})"
    if labels.get(LABEL_INFERENCE_SERVICE, wanted.inference_service) != wanted.inference_service:
        return f"{name} leads to InferenceService {labels[LABEL_INFERENCE_SERVICE]}"
    beat = (metadata.get("annotations") or {}).get(ANNOTATION_HEARTBEAT)
    if LABEL_HOST not in labels and beat and _is_fresh(beat, now=now):
        return f"{name} is kept by an LLMKube agent that lives; stop that agent or let it have the service"
    return None


def _is_fresh(heartbeat: str, *, now: datetime) -> bool:
    try:
        return now - datetime.fromisoformat(heartbeat) < timedelta(seconds=PEER_STALE_S)
    except (ValueError, TypeError):
        return False


def register(client: KubeClient, wanted: Registration, *, now: datetime) -> None:
    """Make Service and EndpointSlice as wanted. Raises Refused for foreign objects in the way, ApiError."""
    service = _existing(client, SERVICES, wanted)
    endpoints = _existing(client, ENDPOINT_SLICES, wanted)
    for existing in (service, endpoints):
        why = refusal(existing, wanted, now=now) if existing is not None else None
        if why:
            raise Refused(ProcessReason.FOREIGN_SERVICE, why)
    # Forced: that the objects are a host's was just seen, and fields of an earlier agent must not stay behind.
    client.apply(SERVICES, wanted.namespace, service_object(wanted), field_manager=FIELD_MANAGER, force=True)
    if wanted.port is None:
        return
    built = slice_object(wanted, now=now)
    try:
        client.apply(ENDPOINT_SLICES, wanted.namespace, built, field_manager=FIELD_MANAGER, force=True)
    except Invalid:
        if endpoints is None or endpoints.get("addressType") == built["addressType"]:
            raise
        # The address family is immutable, and the host has another one now.
        client.delete(ENDPOINT_SLICES, wanted.namespace, wanted.service_name, uid=endpoints["metadata"]["uid"])
        client.apply(ENDPOINT_SLICES, wanted.namespace, built, field_manager=FIELD_MANAGER, force=True)


def _existing(client: KubeClient, kind: Kind, wanted: Registration) -> Json | None:
    try:
        return client.get(kind, wanted.namespace, wanted.service_name)
    except NotFound:
        return None


def unregister(client: KubeClient, *, namespace: str, service_name: str, host: str) -> None:
    """Remove Service and EndpointSlice if they still are this host's. Raises ApiError."""
    for kind in (ENDPOINT_SLICES, SERVICES):
        try:
            existing = client.get(kind, namespace, service_name)
            if ((existing["metadata"].get("labels") or {}).get(LABEL_HOST)) == host:
                client.delete(kind, namespace, service_name, uid=existing["metadata"]["uid"])
        except NotFound:
            continue


def registered_names(client: KubeClient, *, host: str, namespaces: tuple[str, ...]) -> set[tuple[str, str]]:
    """List (namespace, name) of every Service and EndpointSlice that leads to this host. Raises ApiError."""
    selector = f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_HOST}={host}"
    found: set[tuple[str, str]] = set()
    for kind in (SERVICES, ENDPOINT_SLICES):
        for namespace in namespaces or (None,):
            for item in client.list(kind, namespace, label_selector=selector)["items"]:
                found.add((item["metadata"]["namespace"], item["metadata"]["name"]))
    return found
