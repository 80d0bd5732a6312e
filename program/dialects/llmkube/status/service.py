"""The status of an InferenceService, computed from facts on every pass. Pure.

Fields and phases are LLMKube's. Herdsman adds the estimated memory of a replica, the length of the queue, and the last
pod template that served.
"""

from __future__ import annotations

from datetime import datetime
from math import ceil
from typing import Any

from kubeapi.json_types import Json
from program.desired.facts import MemoryFacts, ServiceFacts
from program.desired.keys import service_dns_name
from program.desired.priorities import PRIORITIES as PRIORITIES
from program.desired.service import DesiredService
from program.dialects.llmkube.status.conditions import OURS, service_conditions
from program.dialects.status.conditions import Condition, timestamp
from program.dialects.status.phase import PhaseDecision, decide_phase

DEFAULT_PORT = 8080

_FIELDS = (
    "acceleration",
    "conditions",
    "desiredReplicas",
    "effectivePriority",
    "endpoint",
    "gateway",
    "memory",
    "mode",
    "modelReady",
    "observedGeneration",
    "pendingChange",
    "phase",
    "queueLength",
    "queuePosition",
    "readyReplicas",
    "replicas",
    "schedulingMessage",
    "schedulingStatus",
    "selector",
    "servedTemplateHash",
    "unprovedReplicas",
    "waitingFor",
)


def service_status(cr: Json, desired: DesiredService | None, facts: ServiceFacts, *, now: datetime) -> dict[str, Any]:
    """Return the complete status of `cr`, or the dict `cr["status"]` itself if nothing has changed.

    `desired` is None while the service cannot be parsed, or its Model is missing or not Ready.
    """
    previous: dict[str, Any] = cr.get("status") or {}
    verdict = decide_phase(cr, desired, facts)
    # Before any object exists, replicas are not counted. Existing replicas are reported in every phase.
    counted = verdict.phase not in ("Pending", "Failed") or facts.ready_replicas > 0 or bool(facts.pods)
    status: dict[str, Any] = {
        "phase": verdict.phase,
        "mode": desired.mode if desired is not None else (cr.get("spec") or {}).get("mode", "chat"),
        "modelReady": facts.model_ready,
        "desiredReplicas": facts.desired_replicas if counted else 0,
        "replicas": facts.replicas if counted else 0,
        "readyReplicas": facts.ready_replicas,
        "effectivePriority": _priority(cr, facts),
        "observedGeneration": _generation(cr),
        "conditions": service_conditions(cr, previous, verdict, desired, facts, now=now),
        **_of_pods(cr, previous, verdict, facts),
    }
    endpoint = endpoint_url(desired) if desired is not None else previous.get("endpoint")
    if counted and endpoint:
        status["endpoint"] = endpoint
    gateway = _gateway(desired, facts)
    if gateway:
        status["gateway"] = gateway
    if facts.pending is not None:
        pending = facts.pending
        status["pendingChange"] = {"digest": pending.digest, "summary": pending.summary, "changes": [*pending.changes]}
    if verdict.scheduling_status:
        status["schedulingStatus"] = verdict.scheduling_status
        status["schedulingMessage"] = verdict.scheduling_message
    if verdict.waiting_for:
        status["waitingFor"] = verdict.waiting_for
        if facts.queue is not None:
            status["queuePosition"] = facts.queue.position
            status["queueLength"] = facts.queue.length
    if _same(status, previous):
        return previous
    return {**status, "lastUpdated": timestamp(now)}


def endpoint_url(desired: DesiredService) -> str:
    """Return the URL that clients in the cluster use."""
    key, endpoint = desired.key, desired.endpoint
    host = f"{service_dns_name(key.name)}.{key.namespace}.svc.cluster.local"
    return f"http://{host}:{endpoint.port or DEFAULT_PORT}{endpoint.path}"


def _same(status: dict[str, Any], previous: dict[str, Any]) -> bool:
    """Compare all fields that Herdsman writes. The order of conditions and additions by other clients do not count."""
    return "lastUpdated" in previous and all(
        _by_type(status.get(field), ours_only=False) == _by_type(previous.get(field), ours_only=True)
        if field == "conditions"
        else status.get(field) == previous.get(field)
        for field in _FIELDS
    )


def _by_type(conditions: list[Condition] | None, *, ours_only: bool) -> dict[str, Condition]:
    return {c["type"]: c for c in conditions or () if not ours_only or c["type"] in OURS}


def _generation(cr: Json) -> int:
    return int(cr["metadata"].get("generation") or 0)


def _priority(cr: Json, facts: ServiceFacts) -> int:
    if facts.priority_value is not None:
        return facts.priority_value
    return PRIORITIES.get(str((cr.get("spec") or {}).get("priority", "normal")), PRIORITIES["normal"])


def _of_pods(cr: Json, previous: Json, verdict: PhaseDecision, facts: ServiceFacts) -> dict[str, Any]:
    """Return the fields about replicas other than their number, without the empty ones."""
    told: dict[str, Any] = {}
    if facts.hosted is None:
        # The scale subresource needs it: without a selector neither a HorizontalPodAutoscaler nor KEDA can count pods.
        name = cr["metadata"]["name"]
        told["selector"] = f"app={name},inference.llmkube.dev/service={name}"
    if facts.unproved_replicas:
        told["unprovedReplicas"] = facts.unproved_replicas
    if facts.acceleration is not None:
        told["acceleration"] = {
            "device": facts.acceleration.device,
            "layersOffloaded": facts.acceleration.layers_offloaded,
            "layersTotal": facts.acceleration.layers_total,
        }
    if facts.memory is not None:
        told["memory"] = _memory(facts.memory)
    served = facts.template_hash if verdict.outcome == "ready" else ""
    served = served or previous.get("servedTemplateHash", "")
    if served:
        told["servedTemplateHash"] = served
    return told


def _memory(memory: MemoryFacts) -> dict[str, str]:
    sizes = {
        "weights": memory.weights_bytes,
        "kvCache": memory.cache_bytes,
        "compute": memory.compute_bytes,
        "total": memory.total_bytes,
        "asked": memory.asked_bytes,
        "available": memory.available_bytes,
    }
    return {name: _quantity(size) for name, size in sizes.items() if size is not None}


def _quantity(size_bytes: int) -> str:
    """Format an amount of memory as Kubernetes does, rounded up."""
    if size_bytes < 10 << 20:
        return f"{ceil(size_bytes / (1 << 10))}Ki"
    return f"{ceil(size_bytes / (1 << 20))}Mi"


def _gateway(desired: DesiredService | None, facts: ServiceFacts) -> dict[str, Any]:
    if desired is None or desired.expose is None or facts.gateway is None:
        return {}
    return {
        "routeReady": facts.gateway.accepted,
        "authEnabled": desired.api_key is not None,
        **({"endpoint": facts.gateway.endpoint} if facts.gateway.endpoint else {}),
        **({"modelName": desired.expose.model_name} if desired.expose.model_name else {}),
    }
