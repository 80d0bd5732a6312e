"""Read what exists for one service out of the informers' caches: live objects for the plan, facts for the status.

Called by the controller once per pass. Reads caches only; never asks the API server.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from automation.placement import LiveHost
from automation.plan import LiveObject, ObjectName
from automation.watch import World
from components import naming
from program.desired.facts import HostedFacts, PodFacts, Problem, ServiceFacts
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService

Object = dict[str, Any]

# An agent renews its EndpointSlice's heartbeat every 30 s; LLMKube calls a host stale after three minutes.
STALE_HEARTBEAT_S = 180.0


@dataclass(frozen=True)
class Observed:
    """What exists for a service at one moment."""

    live: tuple[LiveObject, ...]
    claim_exists: bool
    """The namespace's cache claim is there, whoever made it."""
    deployment: Object | None
    host_process: Object | None
    endpoint_slice: Object | None
    pods: tuple[Object, ...]


def observe(world: World, key: ServiceKey, *, owner: str | None) -> Observed:
    """Collect all that the caches know of the service `key`.

    An object counts as live for it when the custom resource with the uid `owner` controls it (None: one that is gone).
    What merely carries the service's label is somebody else's.
    """
    objects = world.index.objects(key.namespace, key.name)
    live = tuple(
        LiveObject(
            name=ObjectName(kind, name),
            uid=obj["metadata"]["uid"],
            applied_hash=obj["metadata"]["annotations"].get(naming.ANNOTATION_APPLIED_HASH, ""),
            generation=obj["metadata"]["generation"],
        )
        for (kind, name), obj in sorted(objects.items())
        if not obj["metadata"]["deleting"]
        and (obj["metadata"]["owner"] == owner or (owner is None and obj["metadata"]["owner"]))
    )
    claim = world.claims.get(key.namespace, naming.CACHE_CLAIM)
    return Observed(
        live=live,
        claim_exists=claim is not None and not claim["metadata"]["deleting"],
        deployment=objects.get(("Deployment", naming.deployment_name(key.name))),
        host_process=objects.get(("HostProcess", naming.host_process_name(key.name))),
        endpoint_slice=world.endpoint_slices.get(key.namespace, naming.service_name(key.name)),
        pods=tuple(world.index.pods(key.namespace, key.name)),
    )


def live_hosts(world: World, *, now: datetime) -> tuple[LiveHost, ...]:
    """List the hosts whose Lease is fresh, with the number of processes placed on each."""
    placed: dict[str, int] = {}
    for process in world.host_processes.list():
        placed[process["spec"]["host"]] = placed.get(process["spec"]["host"], 0) + 1
    alive = {
        lease["host"]
        for lease in world.hosts.list()
        if lease["host"] and lease["holder"] and age_s(lease["renewed"], now=now) <= lease["duration_s"]
    }
    return tuple(LiveHost(name, placed.get(name, 0)) for name in sorted(alive))


def age_s(timestamp: str, *, now: datetime) -> float:
    """Seconds since an RFC 3339 time; infinite where there is none."""
    if not timestamp:
        return float("inf")
    return (now - datetime.fromisoformat(timestamp)).total_seconds()


def service_facts(
    observed: Observed,
    *,
    desired: DesiredService | None,
    cr: Object,
    model: Object | None,
    applying: bool,
    objects_exist: bool,
    problem: Problem | None,
    unhonoured: tuple[Problem, ...],
    now: datetime,
) -> ServiceFacts:
    """Turn what was observed into the facts that a status is made of."""
    spec_replicas = (cr.get("spec") or {}).get("replicas", 1)
    model_status = (model or {}).get("status") or {}
    common: dict[str, Any] = {
        "model_found": model is not None,
        "model_ready": model_status.get("phase") == "Ready",
        "objects_exist": objects_exist,
        "applying": applying,
        "problem": problem,
        "unhonoured": unhonoured,
    }
    if desired is not None and desired.host_placement is not None:
        return ServiceFacts(
            desired_replicas=desired.replicas,
            replicas=desired.replicas,
            ready_replicas=_ready_on_host(observed, now=now),
            hosted=_hosted_facts(observed, host=desired.host_placement.host, now=now),
            **common,
        )
    deployment = observed.deployment or {}
    status = deployment.get("status") or {}
    target = (deployment.get("spec") or {}).get("replicas", spec_replicas)
    if desired is not None and desired.autoscaling is None:
        # The spec is the truth at once; the Deployment follows in a moment.
        target = desired.replicas
    return ServiceFacts(
        desired_replicas=target,
        # Until the Deployment controller has looked, nobody knows how many exist; the target is the best guess.
        replicas=status.get("replicas", 0) if status.get("observedGeneration") else target,
        ready_replicas=status.get("readyReplicas", 0),
        pods=tuple(_pod_facts(pod) for pod in observed.pods if not pod["ready"]),
        **common,
    )


def _pod_facts(pod: Object) -> PodFacts:
    problem = pod["problems"][0] if pod["problems"] else {}
    return PodFacts(
        name=pod["metadata"]["name"],
        phase=pod["phase"],
        unschedulable=pod["unschedulable"],
        waiting_reason=problem.get("reason", ""),
        waiting_message=problem.get("message", ""),
        container=problem.get("container", ""),
        requests={name: str(amount) for name, amount in pod["requests"].items()},
    )


def _ready_on_host(observed: Observed, *, now: datetime) -> int:
    found = observed.endpoint_slice
    if found is None or age_s(found["heartbeat"], now=now) > STALE_HEARTBEAT_S:
        return 0
    return int(found["ready"])


def _hosted_facts(observed: Observed, *, host: str | None, now: datetime) -> HostedFacts:
    report = (observed.host_process or {}).get("status") or {}
    beat = observed.endpoint_slice["heartbeat"] if observed.endpoint_slice else ""
    return HostedFacts(
        host=host,
        phase=report.get("phase", ""),
        reason=report.get("reason", ""),
        message=report.get("message", ""),
        heartbeat_age_s=age_s(beat, now=now) if beat else None,
    )
