"""Sets conditions, and Ready, Reconciling and Stalled, which every object of Herdsman has. Pure.

The rules are those of Kubernetes' API conventions (a transition time changes only with the status) and of kstatus
(Reconciling and Stalled say what Ready=False means).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

Condition = dict[str, Any]
Status = Literal["True", "False", "Unknown"]

_LONGEST_MESSAGE = 32768


class Type(StrEnum):
    """The condition types of our objects: the ready protocol, then the peer's and, last, our own.

    A condition that has nothing to say is left out, rather than kept as it once was.
    """

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    SPEC_HONOURED = "SpecHonoured"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    GPU_AVAILABLE = "GPUAvailable"
    SUSPENDED = "Suspended"
    VLLM_SPEC_VALID = "VLLMSpecValid"
    SGLANG_SPEC_VALID = "SGLangSpecValid"
    MODEL_TRANSFER_HEALTHY = "ModelTransferHealthy"
    """False: the container that fetches the model fails, and the reason is the class of the failure."""
    DRIVER_COMPATIBLE = "DriverCompatible"
    """False: the node's GPU driver is too old for the engine's image."""
    ROLLOUT_DEFERRED = "RolloutDeferred"
    """True: a changed pod template is held back while replicas work. False: it was, for as long as allowed."""
    GATEWAY_READY = "GatewayReady"
    MEMORY_FITS = "MemoryFits"
    """False: the estimate of what a replica needs is larger than what it asks for, or than any node has."""
    AUTOSCALER_READY = "AutoscalerReady"
    """False: the autoscaler says that it cannot scale."""
    OBJECTS_APPLIED = "ObjectsApplied"
    """False: the API refuses objects that the service serves without; the message names each, and why."""
    ROLLED_BACK = "RolledBack"
    """True: the last pod template that served runs instead of the wanted one."""
    CHANGE_PENDING = "ChangePending"
    """True: mode Preview or Paused holds a change back; the message has its digest."""
    POLICY_COMPLIANT = "PolicyCompliant"
    """False: a policy is violated; the change is not made where the policy is mandatory."""
    DRIFTED = "Drifted"
    """True: somebody else changed fields of ours, and the drift policy says to report that."""
    TEMPLATE_KEPT = "TemplateKept"
    """True: an adopted service runs the pod template that it came with, until it is changed."""


class Reason(StrEnum):
    """The closed list of reasons of Ready, Reconciling and Stalled on an InferenceService."""

    SERVING = "Serving"
    ASLEEP = "Asleep"
    """Nobody uses the service: no replica runs, and the next request starts them."""
    WAKING = "Waking"
    """Requests wait while the replicas of a sleeping service start."""
    STOPPED = "Stopped"
    """Zero replicas are wanted; nothing is wrong."""
    SUSPENDED = "Suspended"
    """`spec.suspend` is set; nothing is wrong."""

    APPLYING = "Applying"
    MODEL_NOT_READY = "ModelNotReady"
    MODEL_DOWNLOADING = "ModelDownloading"
    """A replica fetches its model."""
    REPLICAS_STARTING = "ReplicasStarting"
    REPLICAS_STOPPING = "ReplicasStopping"
    ROLLOUT_DEFERRED = "RolloutDeferred"
    """A changed pod template waits until no replica works on a request."""
    AWAITING_APPROVAL = "AwaitingApproval"
    """Mode Preview: the change that is pending waits for `herdsman approve`."""
    PAUSED = "Paused"
    """Mode Paused: the change that is pending waits for another mode."""
    POLICY_VIOLATED = "PolicyViolated"
    """A mandatory policy does not allow what the spec asks for."""

    WAITING_FOR_GPU = "WaitingForGPU"
    PREEMPTED = "Preempted"
    """A service of higher priority took a replica's place."""
    NO_NODE_FITS = "NoNodeFits"
    """No node of the cluster could hold a replica, even an empty one: waiting alone does not help."""
    UNSCHEDULABLE = "Unschedulable"
    UNBINDABLE_MODEL_CACHE = "UnbindableModelCache"
    """The claim with the model cannot be mounted where the pod could run, or is not there."""
    MEMORY_INSUFFICIENT = "MemoryInsufficient"
    """The estimate says that a replica cannot fit; said before anything is downloaded."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """A GPUQuota of the namespace leaves no room."""
    PODS_REFUSED = "PodsRefused"
    """The API server refuses the pods: a ResourceQuota, a missing PriorityClass, pod security."""

    NODE_LOST = "NodeLost"
    """The node of a replica is not heard of any more, or says that it cannot run pods."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    """The kernel killed a container for want of memory."""
    DRIVER_TOO_OLD = "DriverTooOld"
    CRASH_LOOPING = "CrashLooping"
    """A container ends by itself, again and again."""
    PROBES_FAILING = "ProbesFailing"
    """The kubelet restarts the engine, or keeps requests from it, because its health does not answer."""
    COMPLETION_FAILED = "CompletionFailed"
    """A replica is healthy by its own account and does not answer a completion."""
    POD_FAILING = "PodFailing"
    """A pod cannot run for a reason that has no name of its own here; the message has the kubelet's."""

    MODEL_SOURCE_UNAUTHORIZED = "ModelSourceUnauthorized"
    MODEL_SOURCE_NOT_FOUND = "ModelSourceNotFound"
    MODEL_SOURCE_UNTRUSTED = "ModelSourceUntrusted"
    """The TLS certificate of the model's source is not trusted."""
    MODEL_SOURCE_UNREACHABLE = "ModelSourceUnreachable"
    MODEL_SOURCE_INVALID = "ModelSourceInvalid"
    MODEL_TRANSFER_OUT_OF_SPACE = "ModelTransferOutOfSpace"
    MODEL_CHECKSUM_MISMATCH = "ModelChecksumMismatch"
    MODEL_CACHE_NOT_WRITABLE = "ModelCacheNotWritable"
    MODEL_TRANSFER_FAILED = "ModelTransferFailed"
    """The model cannot be fetched for a reason that is none of the above."""

    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    """A rollout has made no progress for as long as its Deployment allows."""
    ROLLED_BACK = "RolledBack"

    WAITING_FOR_HOST = "WaitingForHost"
    NO_HOST_FITS = "NoHostFits"
    """No host has what a replica needs, or room for it; tried again when hosts change."""
    NOT_ALLOWED_ON_HOST = "NotAllowedOnHost"
    """The owner of a host does not allow what the service asks for; the message has the field."""
    EVICTED = "Evicted"
    """A host stopped the replica because its memory was short; it comes back when the pressure is over."""
    SWAPPED_OUT = "SwappedOut"
    """Another service of its group has the host's memory now."""
    HOST_LOST = "HostLost"
    SECRET_UNAVAILABLE = "SecretUnavailable"  # noqa: S105 - a reason
    """A host cannot have the value of a variable that the service takes from a Secret."""
    HOST_PROCESS_FAILING = "HostProcessFailing"
    DEPENDENCY_MISSING = "DependencyMissing"
    """Something outside that the service needs is not there yet."""
    NOT_INSTALLED = "NotInstalled"
    """An extension of Kubernetes that the service needs has no CustomResourceDefinition here."""
    APPLY_FAILED = "ApplyFailed"
    """An engine run failed and is tried again."""
    ENGINE_OUT_OF_MEMORY = "EngineOutOfMemory"
    """The kernel killed the engine because the operator's memory was used up; the message has the limit."""
    STATE_UNREACHABLE = "StateUnreachable"
    """Pulumi's state backend does not answer; changes wait for it, and nothing that runs is touched."""
    STATE_LOCKED = "StateLocked"
    """Somebody else holds the lock of the state; the message says who and since when."""
    STATE_SEALED = "StateSealed"
    """The state holds secrets that the passphrase does not open."""

    MODEL_NOT_FOUND = "ModelNotFound"
    SPEC_INVALID = "SpecInvalid"
    FOREIGN_OBJECT = "ForeignObject"
    """An object of the wanted name belongs to somebody else."""
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    """The namespace is being deleted; nothing more can be made in it."""


MODEL_TRANSFER_REASONS = frozenset(
    {
        Reason.MODEL_SOURCE_UNAUTHORIZED,
        Reason.MODEL_SOURCE_NOT_FOUND,
        Reason.MODEL_SOURCE_UNTRUSTED,
        Reason.MODEL_SOURCE_UNREACHABLE,
        Reason.MODEL_SOURCE_INVALID,
        Reason.MODEL_TRANSFER_OUT_OF_SPACE,
        Reason.MODEL_CHECKSUM_MISMATCH,
        Reason.MODEL_CACHE_NOT_WRITABLE,
        Reason.MODEL_TRANSFER_FAILED,
    }
)
"""Why a model cannot be fetched: the words that `components/model_download.sh` puts before its last line."""


def timestamp(now: datetime) -> str:
    """Write a time as the API server does: RFC 3339 in UTC, whole seconds."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def set_condition(
    conditions: Sequence[Mapping[str, Any]],
    *,
    type: str,  # noqa: A002 - the API's own name for it
    status: Status,
    reason: str,
    message: str,
    generation: int,
    now: datetime,
) -> list[Condition]:
    """Return `conditions` with one set. Its lastTransitionTime is `now` only if it is new or its status changes."""
    found = next((c for c in conditions if c["type"] == type), None)
    unchanged = found is not None and found["status"] == status
    updated: Condition = {
        "type": type,
        "status": status,
        "reason": reason,
        "message": message[:_LONGEST_MESSAGE],
        "observedGeneration": generation,
        # The peers' schemas do not require the time.
        "lastTransitionTime": (found.get("lastTransitionTime") if found and unchanged else None) or timestamp(now),
    }
    if found is None:
        return [*map(dict, conditions), updated]
    return [updated if c["type"] == type else dict(c) for c in conditions]


def drop_conditions(conditions: Sequence[Mapping[str, Any]], *types: str) -> list[Condition]:
    """Return `conditions` without those of the given types."""
    return [dict(c) for c in conditions if c["type"] not in types]


def mark_ready(
    conditions: Sequence[Mapping[str, Any]], *, reason: str, message: str, generation: int, now: datetime
) -> list[Condition]:
    """The object is as its spec asks: Ready, neither Reconciling nor Stalled."""
    return _protocol(conditions, ("True", "False", "False"), reason, message, generation, now)


def mark_reconciling(
    conditions: Sequence[Mapping[str, Any]], *, reason: str, message: str, generation: int, now: datetime
) -> list[Condition]:
    """The object is not there yet, and waiting helps."""
    return _protocol(conditions, ("False", "True", "False"), reason, message, generation, now)


def mark_stalled(
    conditions: Sequence[Mapping[str, Any]], *, reason: str, message: str, generation: int, now: datetime
) -> list[Condition]:
    """The object will not get there until somebody changes something."""
    return _protocol(conditions, ("False", "False", "True"), reason, message, generation, now)


def mark_idle(
    conditions: Sequence[Mapping[str, Any]], *, reason: str, message: str, generation: int, now: datetime
) -> list[Condition]:
    """The object is as its spec asks, and that is not to serve."""
    return _protocol(conditions, ("False", "False", "False"), reason, message, generation, now)


def _protocol(
    conditions: Sequence[Mapping[str, Any]],
    statuses: tuple[Status, Status, Status],
    reason: str,
    message: str,
    generation: int,
    now: datetime,
) -> list[Condition]:
    marked: Sequence[Mapping[str, Any]] = conditions
    for kind, status in zip((Type.READY, Type.RECONCILING, Type.STALLED), statuses, strict=True):
        marked = set_condition(
            marked, type=kind, status=status, reason=reason, message=message, generation=generation, now=now
        )
    return [dict(condition) for condition in marked]
