"""Converts the observed objects of a service into the facts for its status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, cast

from automation.cache.trim import LABEL_COMPONENT
from automation.hosts.hosted import hosted_facts
from automation.hosts.registry import HostRegistry
from automation.reconcile.desire import Desired
from automation.reconcile.observe import Observed
from automation.reconcile.plan import ObjectName
from automation.serving.scaling import scaled_elsewhere
from components import naming
from components.engine_workloads import is_stopped
from kubeapi.json_types import Json
from program import sizing
from program.desired.facts import (
    AutoscalerFacts,
    ConditionFact,
    GatewayFacts,
    MemoryFacts,
    PodFacts,
    Problem,
    ServiceFacts,
    WorkloadFacts,
)
from program.desired.service import DesiredService
from program.desired.workloads import PodSet


def service_facts(
    observed: Observed,
    desired: Desired,
    cr: Json,
    *,
    registry: HostRegistry,
    applying: bool,
    objects_exist: bool,
    problem: Problem | None,
    quota: Problem | None = None,
    now: datetime,
) -> ServiceFacts:
    """Return the facts. They include the existing objects of a service that cannot be parsed.

    Every ready pod counts. `automation.serving.readiness` subtracts the pods without a successful completion check.
    """
    service = desired.service
    common: dict[str, Any] = {
        "objects_exist": objects_exist,
        "applying": applying,
        "problem": problem,
        "unsupported": desired.unsupported,
        "quota": quota,
        "priority_value": observed.priority_value,
    }
    if service is not None and service.host_placement is not None:
        target = 0 if is_stopped(service) else service.replicas
        decision = desired.hosts.decision if desired.hosts is not None else None
        placed = service.host_placement.hosts[: max(1, target)]
        hosted, ready = hosted_facts(
            registry, placed, observed.host_processes, observed.endpoint_slices, decision, now=now
        )
        return ServiceFacts(desired_replicas=target, replicas=target, ready_replicas=ready, hosted=hosted, **common)
    counts = (
        _count_deployment(service, observed, (cr.get("spec") or {}).get("replicas", 1))
        if observed.sets is None
        else _count_sets(service, observed.sets)
    )
    pods = [p for p in observed.pods if p["preempted"] or p.get("lost") or not p["metadata"]["deleting"]]
    return ServiceFacts(
        pods=tuple(_pod_facts(pod) for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))),
        queue=observed.queue,
        never_fits=observed.never_fits,
        preemption=observed.preemption,
        cache_claim=observed.cache_claim,
        autoscaler=_autoscaler_facts(observed.autoscaler),
        gateway=_gateway_facts(observed.route, service),
        **counts,
        **common,
    )


def _count_deployment(service: DesiredService | None, observed: Observed, spec_replicas: int) -> dict[str, Any]:
    """Count the replicas of an InferenceService in pods."""
    deployment = observed.deployment or {}
    status = deployment.get("status") or {}
    target = (deployment.get("spec") or {}).get("replicas", spec_replicas)
    if service is not None and is_stopped(service):
        target = 0
    elif service is not None and service.autoscaling is None and not scaled_elsewhere(service, observed.deployment):
        # The spec counts at once; the Deployment is scaled a moment later.
        target = service.replicas
    return {
        "desired_replicas": target,
        # Before the Deployment controller has observed the generation, the number of replicas is unknown; the target is
        # the best estimate.
        "replicas": status.get("replicas", 0) if status.get("observedGeneration") else target,
        "ready_replicas": status.get("readyReplicas", 0),
        "replica_failure": deployment.get("replica_failure", ""),
        "template_hash": _template_hash(deployment),
        "behind": f"Deployment {deployment['metadata']['name']}" if deployment and _is_behind(deployment) else "",
    }


def _count_sets(service: DesiredService | None, live: Mapping[ObjectName, Json]) -> dict[str, Any]:
    """Count the replicas of each set of a KServe or llmaz service.

    The replicas of the service are those of its first set.
    """
    sets = service.workloads.pods if service is not None and service.workloads is not None else ()
    workloads = tuple(_of_set(each, live) for each in sets)
    named = {(each.kind, each.name) for each in workloads}
    left = (_of_live("", name, obj) for name, obj in sorted(live.items()) if name not in named)
    every = (*workloads, *left)
    main = every[0] if every else None
    return {
        "desired_replicas": main.wanted_replicas if main else 0,
        "replicas": main.replicas if main else 0,
        "ready_replicas": main.ready_replicas if main else 0,
        "replica_failure": next((each.replica_failure for each in every if each.replica_failure), ""),
        "workloads": every,
        "behind": next((f"{each.kind} {each.name}" for each in workloads if each.behind), ""),
    }


def memory_facts(desired: DesiredService, observed: Observed) -> MemoryFacts | None:
    """Estimate a replica's memory. The memory of nodes counts only when the weights are in it."""
    found = sizing.estimate(desired)
    if found is None or desired.gpu is not None or desired.host_placement is not None:
        return found
    return found.model_copy(update={"available_bytes": observed.available_memory_bytes})


def _autoscaler_facts(autoscaler: Json | None) -> AutoscalerFacts | None:
    """Return why an autoscaler cannot scale."""
    if autoscaler is None:
        return None
    return AutoscalerFacts(kind=autoscaler["kind"], problem=autoscaler["problem"])


def _gateway_facts(route: Json | None, desired: DesiredService | None) -> GatewayFacts | None:
    if route is None or route["accepted"] is None:
        return None
    endpoint = ""
    host = next((host for host in route["hosts"] if host and not host.startswith("*")), "")
    if host and route["accepted"] and desired is not None:
        endpoint = f"{'https' if route['tls'] else 'http'}://{host}{desired.endpoint.path}"
    return GatewayFacts(accepted=route["accepted"], message=route["message"], endpoint=endpoint)


def _is_behind(workload: Json) -> bool:
    """Return whether a controller has observed an earlier spec of its object and not yet the current one.

    Always False for a LeaderWorkerSet whose controller reports no generation.
    """
    observed = workload["status"].get("observedGeneration")
    return observed is not None and observed < workload["metadata"]["generation"]


def _template_hash(deployment: Json) -> str:
    """Return the hash of the template that all replicas run; empty while a rollout is under way."""
    status, metadata = deployment.get("status") or {}, deployment.get("metadata") or {}
    if not status.get("replicas") or status.get("observedGeneration") != metadata["generation"]:
        return ""
    if status.get("updatedReplicas") != status["replicas"]:
        return ""
    return str(metadata["annotations"].get(naming.ANNOTATION_TEMPLATE_HASH, ""))


def _pod_facts(pod: Json) -> PodFacts:
    problem = next((p for p in pod["problems"] if p["reason"]), pod["problems"][0] if pod["problems"] else {})
    return PodFacts(
        name=pod["metadata"]["name"],
        uid=pod["metadata"]["uid"],
        component=pod["metadata"]["labels"].get(LABEL_COMPONENT, ""),
        node=pod["node"],
        node_lost=pod.get("lost", ""),
        leaving=pod["metadata"]["deleting"],
        phase=pod["phase"],
        ready=pod["ready"],
        unschedulable=pod["unschedulable"],
        waiting_reason=problem.get("reason", ""),
        waiting_message=problem.get("message", ""),
        container=problem.get("container", pod["init_running"]),
        init=problem.get("init", bool(pod["init_running"])),
        oom_killed=problem.get("oom_killed", False),
        exit_code=problem.get("exit_code"),
        restarts=problem.get("restarts", pod["engine"].get("restarts", 0)),
        image=problem.get("image", ""),
        preempted=pod["preempted"],
        nominated_node=pod["nominated_node"],
        requests={name: str(amount) for name, amount in pod["requests"].items()},
    )


def _of_set(pods: PodSet, every: Mapping[ObjectName, Json]) -> WorkloadFacts:
    kind: Literal["Deployment", "LeaderWorkerSet"] = "LeaderWorkerSet" if pods.group is not None else "Deployment"
    live = every.get(ObjectName(kind, pods.name))
    if live is None:
        target = 1 if pods.replicas is None else pods.replicas
        return WorkloadFacts(part=pods.part, kind=kind, name=pods.name, wanted_replicas=target)
    found = _of_live(pods.part, ObjectName(kind, pods.name), live)
    if pods.replicas is not None and pods.scaler is None:
        # The spec counts at once; the object is scaled a moment later.
        return found.model_copy(update={"wanted_replicas": pods.replicas})
    return found


def _of_live(part: str, name: ObjectName, live: Json) -> WorkloadFacts:
    status = live["status"]
    conditions = {kind: ConditionFact(**each) for kind, each in live["conditions"].items()}
    # The controller of LeaderWorkerSets does not report which generation it has observed.
    observed = status.get("observedGeneration")
    seen = observed == live["metadata"]["generation"] if observed is not None else bool(conditions)
    return WorkloadFacts(
        part=part,
        kind=cast(Literal["Deployment", "LeaderWorkerSet"], name.kind),
        name=name.name,
        found=True,
        seen=seen,
        behind=_is_behind(live),
        wanted_replicas=live["spec"]["replicas"],
        replicas=status.get("replicas", 0),
        ready_replicas=status.get("readyReplicas", 0),
        updated_replicas=status.get("updatedReplicas", 0),
        available=conditions.get("Available"),
        progressing=conditions.get("Progressing"),
        replica_failure=live["replica_failure"],
        selector=live["selector"],
    )
