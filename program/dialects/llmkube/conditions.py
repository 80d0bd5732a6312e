"""Conditions: how one is set, and the ready protocol that every object of ours follows. Pure.

`service_status` and `model_status` call this. Rules: Kubernetes' API conventions (a transition time changes with the
status only) and kstatus (Reconciling and Stalled say what Ready=False means).
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
    """The condition types of our objects: the ready protocol, then the peer's."""

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


class Reason(StrEnum):
    """The closed list of reasons of Ready, Reconciling and Stalled on an InferenceService."""

    SERVING = "Serving"
    STOPPED = "Stopped"
    """Zero replicas are wanted; nothing is wrong."""

    APPLYING = "Applying"
    MODEL_NOT_READY = "ModelNotReady"
    REPLICAS_STARTING = "ReplicasStarting"
    REPLICAS_STOPPING = "ReplicasStopping"
    WAITING_FOR_GPU = "WaitingForGPU"
    UNSCHEDULABLE = "Unschedulable"
    POD_FAILING = "PodFailing"
    WAITING_FOR_HOST = "WaitingForHost"
    HOST_LOST = "HostLost"
    HOST_PROCESS_FAILING = "HostProcessFailing"
    DEPENDENCY_MISSING = "DependencyMissing"
    """Something outside that the service needs is not there yet."""
    APPLY_FAILED = "ApplyFailed"
    """An engine run failed and is tried again."""

    MODEL_NOT_FOUND = "ModelNotFound"
    SPEC_INVALID = "SpecInvalid"
    FOREIGN_OBJECT = "ForeignObject"
    """An object of the wanted name belongs to somebody else."""


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
        "lastTransitionTime": found["lastTransitionTime"] if found is not None and unchanged else timestamp(now),
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
