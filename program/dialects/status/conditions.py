"""Sets conditions, and Ready, Reconciling and Stalled, which every object of Herdsman has. Pure.

The rules follow Kubernetes' API conventions (a transition time changes only with the status) and kstatus (Reconciling
and Stalled distinguish the causes of Ready=False).
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
    """The condition types in Herdsman's statuses: Ready, Reconciling and Stalled, then those of the upstream
    controllers, then Herdsman's own.

    A condition without a current cause is removed instead of keeping its last value.
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
    """False: the container that fetches the model fails. The reason is the class of the failure."""
    DRIVER_COMPATIBLE = "DriverCompatible"
    """False: the node's GPU driver is too old for the engine's image."""
    ROLLOUT_DEFERRED = "RolloutDeferred"
    """True: a changed pod template is held back while replicas work. False: it was held back for the longest time
    allowed.
    """
    GATEWAY_READY = "GatewayReady"
    MEMORY_FITS = "MemoryFits"
    """False: the estimated memory of a replica is larger than its request, or than the memory of any node."""
    AUTOSCALER_READY = "AutoscalerReady"
    """False: the autoscaler reports that it cannot scale."""
    OBJECTS_APPLIED = "ObjectsApplied"
    """False: the API server refuses objects that the service can serve without. The message names each with the
    cause.
    """
    ROLLED_BACK = "RolledBack"
    """True: the last pod template that served runs instead of the wanted one."""
    CHANGE_PENDING = "ChangePending"
    """True: mode Preview or Paused holds a change back. The message has its digest."""
    POLICY_COMPLIANT = "PolicyCompliant"
    """False: a policy is violated. If the policy is mandatory, the change is not made."""
    DRIFTED = "Drifted"
    """True: another client changed fields of Herdsman's objects, and the drift policy is `report`."""
    TEMPLATE_KEPT = "TemplateKept"
    """True: an adopted service runs its original pod template until the service is changed."""


class Reason(StrEnum):
    """The closed list of reasons of Ready, Reconciling and Stalled on an InferenceService."""

    SERVING = "Serving"
    ASLEEP = "Asleep"
    """The service is idle: no replica runs, and the next request starts them."""
    WAKING = "Waking"
    """Requests wait while the replicas of a sleeping service start."""
    STOPPED = "Stopped"
    """Zero replicas are wanted; this is not an error."""
    SUSPENDED = "Suspended"
    """`spec.suspend` is set; this is not an error."""

    APPLYING = "Applying"
    MODEL_NOT_READY = "ModelNotReady"
    MODEL_DOWNLOADING = "ModelDownloading"
    """A replica fetches its model."""
    REPLICAS_STARTING = "ReplicasStarting"
    REPLICAS_STOPPING = "ReplicasStopping"
    ROLLOUT_DEFERRED = "RolloutDeferred"
    """A changed pod template waits until no replica works on a request."""
    AWAITING_APPROVAL = "AwaitingApproval"
    """Mode Preview: the pending change waits for `herdsman approve`."""
    PAUSED = "Paused"
    """Mode Paused: the pending change waits for another mode."""
    POLICY_VIOLATED = "PolicyViolated"
    """A mandatory policy forbids a part of the spec."""

    WAITING_FOR_GPU = "WaitingForGPU"
    PREEMPTED = "Preempted"
    """A service of higher priority took a replica's place."""
    NO_NODE_FITS = "NoNodeFits"
    """No node of the cluster could hold a replica, even if it were empty, so waiting does not help."""
    UNSCHEDULABLE = "Unschedulable"
    UNBINDABLE_MODEL_CACHE = "UnbindableModelCache"
    """The claim with the model is missing, or cannot be mounted on the nodes where the pod could run."""
    MEMORY_INSUFFICIENT = "MemoryInsufficient"
    """By the estimate a replica cannot fit. This is reported before anything is downloaded."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """A GPUQuota of the namespace is used up."""
    PODS_REFUSED = "PodsRefused"
    """The API server refuses the pods: a ResourceQuota, a missing PriorityClass, pod security."""

    NODE_LOST = "NodeLost"
    """The node of a replica no longer reports, or reports that it cannot run pods."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    """The kernel killed a container because memory ran out."""
    DRIVER_TOO_OLD = "DriverTooOld"
    CRASH_LOOPING = "CrashLooping"
    """A container exits repeatedly."""
    PROBES_FAILING = "ProbesFailing"
    """The kubelet restarts the engine, or sends it no requests, because its probes fail."""
    COMPLETION_FAILED = "CompletionFailed"
    """The engine's health check succeeds, but a completion fails."""
    POD_FAILING = "PodFailing"
    """A pod cannot run for another reason. The message has the kubelet's reason."""

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
    """The model cannot be fetched for another reason."""

    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    """A rollout made no progress before its Deployment's deadline."""
    ROLLED_BACK = "RolledBack"

    WAITING_FOR_HOST = "WaitingForHost"
    NO_HOST_FITS = "NoHostFits"
    """No host satisfies a replica's requirements, or has room for it. The loop retries when hosts change."""
    NOT_ALLOWED_ON_HOST = "NotAllowedOnHost"
    """The owner of a host does not allow a setting of the service. The message has the field."""
    EVICTED = "Evicted"
    """A host stopped the replica because its memory was short. It starts again when the pressure is over."""
    SWAPPED_OUT = "SwappedOut"
    """Another service of its group uses the host's memory now."""
    HOST_LOST = "HostLost"
    SECRET_UNAVAILABLE = "SecretUnavailable"  # noqa: S105 - a reason
    """A host cannot read the value of a variable that the service takes from a Secret."""
    HOST_PROCESS_FAILING = "HostProcessFailing"
    DEPENDENCY_MISSING = "DependencyMissing"
    """An external object that the service needs does not exist yet."""
    NOT_INSTALLED = "NotInstalled"
    """The cluster lacks the CustomResourceDefinition of an extension that the service needs."""
    APPLY_FAILED = "ApplyFailed"
    """An engine run failed, and the loop retries it."""
    ENGINE_OUT_OF_MEMORY = "EngineOutOfMemory"
    """The kernel killed the engine because the operator's memory was used up. The message has the limit."""
    STATE_UNREACHABLE = "StateUnreachable"
    """Pulumi's state backend does not answer. Changes wait for it; running replicas are not affected."""
    STATE_LOCKED = "StateLocked"
    """Another client holds the lock of the state. The message has its name and the time."""
    STATE_SEALED = "StateSealed"
    """The state contains secrets that the passphrase does not decrypt."""

    MODEL_NOT_FOUND = "ModelNotFound"
    SPEC_INVALID = "SpecInvalid"
    FOREIGN_OBJECT = "ForeignObject"
    """An object of the same name belongs to another owner."""
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    """The namespace is being deleted, so no object can be created in it."""


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
"""Why a model cannot be fetched: the words that `components/model_download.sh` writes before its last line."""
START_FAILURES = MODEL_TRANSFER_REASONS | {
    Reason.COMPLETION_FAILED,
    Reason.CRASH_LOOPING,
    Reason.DRIVER_TOO_OLD,
    Reason.IMAGE_PULL_FAILED,
    Reason.NO_NODE_FITS,
    Reason.OUT_OF_MEMORY,
    Reason.PODS_REFUSED,
    Reason.POD_FAILING,
    Reason.UNBINDABLE_MODEL_CACHE,
}
"""Reasons of Ready for which requests do not wait any longer for a start, because a wait does not help."""


def condition_of(cr: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of a custom resource as it was read; empty if it has none of this type."""
    status = cr.get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    found = (each for each in conditions or () if isinstance(each, Mapping) and each.get("type") == kind)
    return next(found, {})


def ready_condition(cr: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition Ready of a custom resource as it was read; empty if it has none."""
    return condition_of(cr, Type.READY)


def is_asleep(cr: Mapping[str, Any]) -> bool:
    """Return whether a service sleeps, by its status."""
    return bool(ready_condition(cr).get("reason") == Reason.ASLEEP)


def timestamp(now: datetime) -> str:
    """Format a time as the API server does: RFC 3339 in UTC, whole seconds."""
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
        # The schemas of the upstream projects do not require the time.
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
    """Return `conditions` for an object that matches its spec: Ready, neither Reconciling nor Stalled."""
    return _protocol(conditions, ("True", "False", "False"), reason, message, generation, now)


def mark_reconciling(
    conditions: Sequence[Mapping[str, Any]], *, reason: str, message: str, generation: int, now: datetime
) -> list[Condition]:
    """Return `conditions` for an object that does not match its spec yet, and that waiting helps."""
    return _protocol(conditions, ("False", "True", "False"), reason, message, generation, now)


def mark_stalled(
    conditions: Sequence[Mapping[str, Any]], *, reason: str, message: str, generation: int, now: datetime
) -> list[Condition]:
    """Return `conditions` for an object that cannot match its spec until a person changes something."""
    return _protocol(conditions, ("False", "False", "True"), reason, message, generation, now)


def mark_idle(
    conditions: Sequence[Mapping[str, Any]], *, reason: str, message: str, generation: int, now: datetime
) -> list[Condition]:
    """Return `conditions` for an object that matches its spec, which asks for no replica."""
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
