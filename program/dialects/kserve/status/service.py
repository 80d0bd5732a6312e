"""The status of an LLMInferenceService, computed from facts on every pass. Pure.

It has KServe's fields only, because KServe's CRDs refuse others.
"""

from __future__ import annotations

from datetime import datetime

from kubeapi.json_types import Json
from program.desired.errors import DesiredError
from program.desired.facts import ServiceFacts, WorkloadFacts
from program.desired.service import DesiredService
from program.dialects.dialect import Lookup
from program.dialects.kserve import naming
from program.dialects.kserve.configuration.combine import combined
from program.dialects.kserve.conversion import to_hub
from program.dialects.kserve.parse.accounts import BINDING, bound_apart
from program.dialects.kserve.parse.subject import Subject
from program.dialects.kserve.presets.selection import kept_pins
from program.dialects.kserve.router.addresses import Served, addresses, external_url, service_address
from program.dialects.kserve.router.groups import PORT
from program.dialects.kserve.status.conditions import TYPES, service_conditions
from program.dialects.kserve.status.router import router_status, routes_of
from program.dialects.status.service_conditions import same_status

FIELDS = (
    "addresses",
    "annotations",
    "appliedConfigs",
    "conditions",
    "observedGeneration",
    "router",
    "url",
    "workloads",
)
"""The fields that Herdsman writes; another client owns the rest of the status."""

_GROUPS = {"Deployment": "apps", "LeaderWorkerSet": "leaderworkerset.x-k8s.io"}
_LISTED_PARTS = {"main": "primary", "prefill": "prefill", "scheduler": "scheduler"}


def service_status(
    cr: Json, desired: DesiredService | None, facts: ServiceFacts, look: Lookup, *, now: datetime
) -> Json:
    """Return the complete status of `cr`, or the dict `cr["status"]` itself if nothing has changed.

    `desired` is None while the service cannot be read; `facts.problem` then contains the cause.
    """
    previous: Json = cr.get("status") or {}
    hub = to_hub(cr)
    subject = _subject(hub, look)
    status: Json = {
        "observedGeneration": int(cr["metadata"].get("generation") or 0),
        "conditions": service_conditions(hub, subject, desired, facts, now=now),
    }
    # If the configuration cannot be combined, the presets of the previous status are kept.
    kept = subject.combined.pins if subject is not None else kept_pins(previous)
    if noted := {**kept, **_binding(hub, desired)}:
        status["annotations"] = noted
    if subject is not None:
        status["appliedConfigs"] = [
            {"name": config.name, "namespace": config.namespace, "source": config.source}
            for config in subject.combined.applied
        ]
        if desired is not None and not desired.suspended:
            status.update(_ways(subject, desired, facts))
    return previous if same_status(status, previous, FIELDS, TYPES) else status


def _subject(hub: Json, look: Lookup) -> Subject | None:
    try:
        return Subject(cr=hub, combined=combined(hub, look), look=look)
    except DesiredError:
        return None


def _binding(cr: Json, desired: DesiredService | None) -> dict[str, str]:
    """Return the annotation for a ClusterRoleBinding with an unusual name, which the service then keeps."""
    apart = naming.scheduler_cluster_binding_apart(cr["metadata"]["namespace"], cr["metadata"]["name"])
    workloads = desired.workloads if desired is not None else None
    made = workloads is not None and any(access.cluster_binding == apart for access in workloads.access)
    return {BINDING: apart} if made or bound_apart(cr) else {}


def _ways(subject: Subject, desired: DesiredService, facts: ServiceFacts) -> Json:
    """Return the fields about workloads, addresses and router, without the empty ones."""
    told: Json = {}
    if workloads := _workloads(subject, desired, facts):
        told["workloads"] = workloads
    service = naming.workload_service(subject.name)
    if desired.host_placement is not None:
        told["addresses"] = [service_address(service, subject.namespace, port=PORT, tls=False)]
        return told
    if subject.at("router", "route") is None:
        # KServe's address has no port here, and nothing listens on the default port of its scheme.
        told["addresses"] = [service_address(service, subject.namespace, port=PORT, tls=subject.settings.tls)]
    routes = routes_of(subject)
    if found := addresses(routes, _served(subject), subject.look, wildcard=subject.settings.wildcard_label):
        told["addresses"] = found
        if url := external_url(found):
            told["url"] = url
    if router := router_status(subject, routes):
        told["router"] = router
    return told


def _served(subject: Subject) -> Served:
    adapters = subject.at("model", "lora", "adapters") or ()
    plain = (subject.model_name, *(str(adapter.get("name") or "") for adapter in adapters))
    return Served(published=tuple(naming.published_model(subject.namespace, name) for name in plain), plain=plain)


def _workloads(subject: Subject, desired: DesiredService, facts: ServiceFacts) -> Json:
    service = {"kind": "Service", "name": naming.workload_service(subject.name)}
    if desired.host_placement is not None:
        primary = {"apiGroup": "herdsman.dev", "kind": "HostProcess", "name": subject.name}
        return {"primary": {**primary, "readyReplicas": facts.ready_replicas}, "service": service}
    told = {_LISTED_PARTS[each.part]: _reference(each) for each in facts.workloads if _is_listed(each)}
    return {**told, "service": service} if told else {}


def _is_listed(workload: WorkloadFacts) -> bool:
    return workload.found and workload.part in _LISTED_PARTS


def _reference(workload: WorkloadFacts) -> Json:
    return {
        "apiGroup": _GROUPS[workload.kind],
        "kind": workload.kind,
        "name": workload.name,
        "readyReplicas": workload.ready_replicas,
    }
