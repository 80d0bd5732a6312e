"""Finds what a service waits for: its pods for the scheduler, its processes for their host. Pure.

A GPU is any extended resource that the pod requests and the scheduler lacks: of any vendor, a MIG profile, a custom
name, or a device claim (dynamic resource allocation).
"""

from __future__ import annotations

import re

from program.desired.base import FrozenModel
from program.desired.facts import HostedFacts, PodFacts, QueuePosition, ServiceFacts
from program.desired.service import DesiredService
from program.dialects.llmkube.schema.status import Phase
from program.dialects.status.conditions import Reason

DEVICE_CLAIMS = "resourceclaims.resource.k8s.io"
"""The resource that a service waits for if it requests its GPUs by resource claims."""
PREEMPTED = "Preempted"
"""Reason of an entry in `ServiceFacts.preemption` about a service that took a place of this one. The other entries are
about services that lost a place to this one.
"""

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
    """`<resource>: <count>` for a GPU; empty if another resource is missing."""


def unscheduled(facts: ServiceFacts, desired: DesiredService | None) -> SchedulingState | None:
    """Return why pods are not scheduled; None if all are, or if nothing is known about them."""
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
    """Return the state after a preemption, until the replacement pod exists and the scheduler has seen it."""
    if any(pod.node and not pod.preempted and not pod.leaving and not pod.ready for pod in facts.pods):
        return None
    gone = min((pod.name for pod in facts.pods if pod.preempted), default="")
    if not lost and not gone:
        return None
    told = lost or f"pod {gone} was preempted by a pod of higher priority"
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
    """Return the GPU resource that the scheduler lacks, with the amount that the pod requests."""
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


STALE_HEARTBEAT_S = 180.0
"""A host without a Lease that sent nothing for this many seconds no longer counts as alive."""

_FAILED = frozenset({"Failed", "BackingOff", "Unhealthy"})
# LLMKube's status, which its users' tooling looks for. It means any host that is to run the process.
_WAITING = "WaitingForMetalAgent"
_STALE = "AgentHeartbeatStale"
_TOLD = {
    # A host's report about its memory is kept and not replaced by a wait for that host. Reason of the report: reason
    # and scheduling status of the service, and its phase.
    "InsufficientMemory": (Reason.MEMORY_INSUFFICIENT, "InsufficientMemory", "Creating"),
    "MemoryUnknown": (Reason.MEMORY_INSUFFICIENT, "MemoryCheckFailed", "Creating"),
    "Evicted": (Reason.EVICTED, "Evicted", "Creating"),
    "NotAllowed": (Reason.NOT_ALLOWED_ON_HOST, "NotAllowedOnHost", "Creating"),
    "SecretUnavailable": (Reason.SECRET_UNAVAILABLE, "SecretUnavailable", "Creating"),
    "SwappedOut": (Reason.SWAPPED_OUT, "SwappedOut", "Pending"),
}


class Wait(FrozenModel):
    """The cause for which a replica on a host waits."""

    reason: Reason
    status: str
    """`status.schedulingStatus`."""
    message: str
    phase: Phase = "Creating"


def wait_for_host(hosted: HostedFacts, desired: DesiredService | None) -> Wait:
    """Return the wait of the first replica that does not serve."""
    if hosted.host is None and hosted.refusal:
        return Wait(reason=Reason.NO_HOST_FITS, status="NoHostFits", message=hosted.refusal)
    if hosted.host is None:
        wish = "metal" if desired is not None and desired.model.accelerator == "metal" else "this service"
        message = f"No live host for {wish}; start `herdsman agent run` on a host"
        return Wait(reason=Reason.WAITING_FOR_HOST, status=_WAITING, message=message)
    host = f"Host `{hosted.host}`"
    if hosted.lost:
        stuck = f"; {hosted.stuck}" if hosted.stuck else ""
        message = f"{host} is lost: it does not renew its Lease{stuck}"
        return Wait(reason=Reason.HOST_LOST, status=_STALE, message=message)
    if hosted.heartbeat_age_s is not None and hosted.heartbeat_age_s > STALE_HEARTBEAT_S:
        message = f"{host} sent its last heartbeat more than {STALE_HEARTBEAT_S / 60:.0f} minutes ago"
        return Wait(reason=Reason.HOST_LOST, status=_STALE, message=message)
    if hosted.reason in _TOLD:
        reason, status, phase = _TOLD[hosted.reason]
        message = f"{host}: {hosted.message or hosted.reason}"
        return Wait.model_validate({"reason": reason, "status": status, "message": message, "phase": phase})
    if hosted.phase in _FAILED:
        message = f"{host}: {hosted.reason or hosted.phase}: {hosted.message}"
        return Wait(reason=Reason.HOST_PROCESS_FAILING, status=_WAITING, message=message)
    if hosted.phase == "Ready":
        message = f"{host}: the process runs, but its EndpointSlice is not ready, so it gets no requests"
        return Wait(reason=Reason.WAITING_FOR_HOST, status=_WAITING, message=message)
    if hosted.phase:
        detail = f": {hosted.message}" if hosted.message else ""
        return Wait(reason=Reason.WAITING_FOR_HOST, status=_WAITING, message=f"{host}: {hosted.phase}{detail}")
    message = f"Waiting for the agent on host `{hosted.host}` to fetch the model and start the process"
    return Wait(reason=Reason.WAITING_FOR_HOST, status=_WAITING, message=message)
