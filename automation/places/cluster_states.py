"""The states of services for the everyday commands, from their custom resources. Pure. Used by `cluster`."""

from __future__ import annotations

import contextlib

from automation.places.place import Download, ServiceState, State
from automation.places.running_on import runs_on
from automation.places.service_view import ServiceView, conditions_of, observed_generation, view_of
from kubeapi.json_types import Json

_WAITING = frozenset(
    {
        *("AwaitingApproval", "Paused", "QuotaExceeded", "WaitingForHost", "NoNodeFits", "MemoryInsufficient"),
        *("Unschedulable", "DependencyMissing", "NodeLost", "Preempted", "RolloutDeferred"),
    }
)
"""Reasons of Ready for which the service waits for something that it does not control."""


NO_STATUS = "it waits for the operator's first status; if none comes, `herdsman doctor` checks the operator"


def state_of(cr: Json, *, process: Json | None = None, model: Json | None = None) -> ServiceState:
    """Return the state of a service. `process` is its first HostProcess, `model` its Model; None where unknown."""
    metadata, spec, view = cr["metadata"], cr.get("spec") or {}, view_of(cr)
    state = _state(cr, view)
    context = context_of(spec, process) if not view.kind else context_of({}, process)
    return ServiceState(
        namespace=str(metadata["namespace"]),
        name=str(metadata["name"]),
        state=state,
        phase=view.phase,
        reason=view.reason,
        message=view.message or (NO_STATUS if state is State.UNKNOWN else ""),
        model=view.model,
        kind=view.kind,
        ready_replicas=view.ready_replicas,
        desired_replicas=view.desired_replicas,
        context_size=context,
        runs_on=runs_on(cr, process),
        endpoint=view.endpoint,
        is_current=observed_generation(cr) == metadata.get("generation"),
        download=download_of(model),
        document=cr,
    )


def context_of(spec: Json, process: Json | None) -> int | None:
    """Return the context in tokens that a service sets, or that its first process on a host has; None if neither."""
    if spec.get("contextSize"):
        return int(spec["contextSize"])
    plan = (process or {}).get("spec") or {}
    if plan.get("runtime") != "llamacpp":
        return None
    # Imported here: `herdsman list` needs no runtimes where no service runs on a host.
    from program.runtimes.flags import number_of

    return number_of([str(each) for each in plan.get("argv") or ()], "--ctx-size", "-c")


def _state(cr: Json, view: ServiceView) -> State:
    stalled = conditions_of(cr).get("Stalled") or {}
    match view.phase, view.reason:
        case "Ready", "Asleep":
            return State.ASLEEP
        case "Ready", "Waking":
            return State.STARTING
        case "Ready", _:
            return State.READY
        case "Failed", _:
            return State.FAILED
        case "Stopped" | "Suspended", _:
            return State.STOPPED
        case "WaitingForGPU", _:
            return State.WAITING
        case "Unknown", _:
            return State.UNKNOWN
    if view.ready_replicas:
        return State.READY
    if stalled.get("status") == "True":
        return State.FAILED
    return State.WAITING if view.reason in _WAITING else State.STARTING


def download_of(model: Json | None) -> Download | None:
    """Return the download that a Model's status reports. Numbers of another form are left out."""
    told = ((model or {}).get("status") or {}).get("download") or {}
    with contextlib.suppress(TypeError, ValueError):
        if told.get("bytes") is not None:
            return Download(int(told["bytes"]), int(told["total"]) if told.get("total") else None)
    return None
