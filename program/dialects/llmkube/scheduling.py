"""Say what unscheduled pods of a service wait for, out of the scheduler's own words. Pure; `judging` asks.

A GPU is whatever extended resource the pod asks for and the scheduler misses: any vendor's, a MIG profile, a custom
name, or a claim on a device (dynamic resource allocation).
"""

from __future__ import annotations

import re

from program.desired.base import FrozenModel
from program.desired.facts import PodFacts, QueuePosition, ServiceFacts
from program.desired.service import DesiredService
from program.dialects.conditions import Reason

DEVICE_CLAIMS = "resourceclaims.resource.k8s.io"
"""What a service waits for that asks for its GPUs by resource claims."""
PREEMPTED = "Preempted"
"""Reason of an entry in `ServiceFacts.preemption` that tells to whom this service lost a place; the others tell whose
place it took."""

_INSUFFICIENT = re.compile(r"Insufficient ([A-Za-z0-9][A-Za-z0-9./_-]*[A-Za-z0-9])")
_CLAIMS = re.compile(r"cannot allocate all claims|resourceclaim", re.IGNORECASE)
_VOLUME = re.compile(
    r"volume node affinity conflict|unbound immediate PersistentVolumeClaims|persistentvolumeclaim \"[^\"]*\" "
    r"|didn't find available persistent volumes|node\(s\) unavailable due to PersistentVolume"
)


class SchedulingState(FrozenModel):
    """Why the pods of a service are not scheduled."""

    reason: Reason
    status: str
    """`status.schedulingStatus`."""
    message: str
    scheduler_said: str
    waiting_for: str = ""
    """`<resource>: <count>` for a GPU; empty where something else is missing."""


def unscheduled(facts: ServiceFacts, desired: DesiredService | None) -> SchedulingState | None:
    """Say why pods are not scheduled; None when all are, or nothing is known of them."""
    pod = min((pod for pod in facts.pods if pod.unschedulable), key=lambda pod: pod.name, default=None)
    lost = "; ".join(problem.message for problem in facts.preemption if problem.reason == PREEMPTED)
    if pod is None:
        return _between_preemption_and_return(facts, lost)
    gpu = _missing_gpu(pod, desired)
    if gpu is not None:
        told = [f"waiting for {gpu}{_in_queue(facts.queue)}"]
        if pod.nominated_node:
            told.append(f"the scheduler makes room on node {pod.nominated_node}")
        told += [problem.message for problem in facts.preemption if problem.reason != PREEMPTED]
        return SchedulingState(
            reason=Reason.PREEMPTED if lost else Reason.WAITING_FOR_GPU,
            status="InsufficientGPU",
            message="; ".join([lost, *told] if lost else told),
            scheduler_said=pod.unschedulable,
            waiting_for=gpu,
        )
    return _not_for_want_of_gpus(pod, facts)


def _between_preemption_and_return(facts: ServiceFacts, lost: str) -> SchedulingState | None:
    """A pod lost its place, and the one that is to replace it is not there yet, or was not looked at yet."""
    if any(pod.node and not pod.preempted and not pod.leaving and not pod.ready for pod in facts.pods):
        return None
    gone = min((pod.name for pod in facts.pods if pod.preempted), default="")
    if not lost and not gone:
        return None
    told = lost or f"pod {gone} gave its place to one of higher priority"
    return SchedulingState(reason=Reason.PREEMPTED, status="Preempted", message=told, scheduler_said=told)


def _in_queue(queue: QueuePosition | None) -> str:
    if queue is None:
        return ""
    behind = f", behind {queue.ahead}" if queue.ahead else ""
    return f", number {queue.position} of {queue.length} in the queue{behind}"


def _not_for_want_of_gpus(pod: PodFacts, facts: ServiceFacts) -> SchedulingState:
    said = pod.unschedulable
    reason, status, told = Reason.UNSCHEDULABLE, "Unschedulable", f"pod {pod.name} is not scheduled: {said}"
    if _VOLUME.search(said):
        reason, status = Reason.UNBINDABLE_MODEL_CACHE, "UnbindableModelCache"
        claim = facts.cache_claim
        if claim is not None:
            state = (claim.phase or "Pending") if claim.found else "missing"
            told = f"claim {claim.name} with the model is {state}, and {told}"
    elif "Insufficient " in said:
        status = "InsufficientResources"
    return SchedulingState(reason=reason, status=status, message=told, scheduler_said=said)


def _missing_gpu(pod: PodFacts, desired: DesiredService | None) -> str | None:
    """Name the GPU resource that the scheduler misses and how many of it the pod really asks for."""
    gpu = desired.gpu if desired is not None else None
    own = gpu.resource_name if gpu is not None else ""
    for resource in _INSUFFICIENT.findall(pod.unschedulable):
        # Extended resources have a domain; cpu, memory, ephemeral-storage and pods have none.
        if "/" in resource and (resource == own or resource in pod.requests):
            count = pod.requests.get(resource) or str(gpu.count if gpu is not None else 1)
            return f"{resource}: {count}"
    if gpu is not None and gpu.claims and _CLAIMS.search(pod.unschedulable):
        return f"{DEVICE_CLAIMS}: {len(gpu.claims)}"
    return None
