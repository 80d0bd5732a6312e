"""Turns what was observed of a service that describes its pods itself into the facts of its status. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, cast

from automation.hosts.hosted import hosted_facts
from automation.hosts.registry import HostRegistry
from automation.reconcile.desire import Desired
from automation.reconcile.observe import Observed, autoscaler_facts, is_behind, pod_facts
from automation.reconcile.plan import ObjectName
from components.deployment import is_stopped
from kubeapi.json_types import Json
from program.desired.facts import ConditionFact, Problem, ServiceFacts, WorkloadFacts
from program.desired.workloads import PodSet


def described_facts(
    observed: Observed,
    desired: Desired,
    *,
    registry: HostRegistry,
    applying: bool,
    objects_exist: bool,
    problem: Problem | None,
    quota: Problem | None,
    now: datetime,
) -> ServiceFacts:
    """Return the facts. They include the existing objects of a service that cannot be parsed."""
    service = desired.service
    common: dict[str, Any] = {
        "objects_exist": objects_exist,
        "applying": applying,
        "problem": problem,
        "unsupported": desired.unsupported,
        "quota": quota,
    }
    if service is not None and service.host_placement is not None:
        target = 0 if is_stopped(service) else service.replicas
        placed = service.host_placement.hosts[: max(1, target)]
        hosted, ready = hosted_facts(
            registry, placed, observed.host_processes, observed.endpoint_slices, desired.hosts, now=now
        )
        return ServiceFacts(desired_replicas=target, replicas=target, ready_replicas=ready, hosted=hosted, **common)
    sets = service.workloads.pods if service is not None and service.workloads is not None else ()
    workloads = tuple(_of_set(each, observed) for each in sets)
    named = {(each.kind, each.name) for each in workloads}
    left = (_of_live("", name, live) for name, live in sorted(observed.sets.items()) if name not in named)
    every = (*workloads, *left)
    main = every[0] if every else None
    pods = [p for p in observed.pods if p["preempted"] or p.get("lost") or not p["metadata"]["deleting"]]
    return ServiceFacts(
        desired_replicas=main.wanted_replicas if main else 0,
        replicas=main.replicas if main else 0,
        ready_replicas=main.ready_replicas if main else 0,
        pods=tuple(pod_facts(pod, None) for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))),
        autoscaler=autoscaler_facts(observed.autoscaler),
        replica_failure=next((each.replica_failure for each in every if each.replica_failure), ""),
        workloads=every,
        behind=next((f"{each.kind} {each.name}" for each in workloads if each.behind), ""),
        **common,
    )


def _of_set(pods: PodSet, observed: Observed) -> WorkloadFacts:
    kind: Literal["Deployment", "LeaderWorkerSet"] = "LeaderWorkerSet" if pods.group is not None else "Deployment"
    live = observed.sets.get(ObjectName(kind, pods.name))
    if live is None:
        target = 1 if pods.replicas is None else pods.replicas
        return WorkloadFacts(part=pods.part, kind=kind, name=pods.name, wanted_replicas=target)
    found = _of_live(pods.part, ObjectName(kind, pods.name), live)
    if pods.replicas is not None and pods.scaler is None:
        # The spec is the truth at once; the object follows in a moment.
        return found.model_copy(update={"wanted_replicas": pods.replicas})
    return found


def _of_live(part: str, name: ObjectName, live: Json) -> WorkloadFacts:
    status = live["status"]
    conditions = {kind: ConditionFact(**each) for kind, each in live["conditions"].items()}
    # A LeaderWorkerSet's controller does not say which generation it has seen.
    observed = status.get("observedGeneration")
    seen = observed == live["metadata"]["generation"] if observed is not None else bool(conditions)
    return WorkloadFacts(
        part=part,
        kind=cast(Literal["Deployment", "LeaderWorkerSet"], name.kind),
        name=name.name,
        found=True,
        seen=seen,
        behind=is_behind(live),
        wanted_replicas=live["spec"]["replicas"],
        replicas=status.get("replicas", 0),
        ready_replicas=status.get("readyReplicas", 0),
        updated_replicas=status.get("updatedReplicas", 0),
        available=conditions.get("Available"),
        progressing=conditions.get("Progressing"),
        replica_failure=live["replica_failure"],
        selector=live["selector"],
    )
