"""Lists what happened to a service between two statuses, as the Events that `kubectl describe` shows. Pure.

The controller calls `status_events` after it wrote a status, and passes each entry to the `EventRecorder`. A reason is
constant and names the change; the details are in the message. Changes of little interest make no Event: another place
in the queue, one more replica beside others, a counter in a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from automation.engine.outcomes import describe_changes
from automation.engine.port import ServiceOutcome
from automation.status.event_recorder import EventType
from kubeapi.json_types import Json
from program.desired.facts import ServiceFacts
from program.dialects.status.accepted_version import FIELD
from program.dialects.status.conditions import MODEL_TRANSFER_REASONS, Reason
from program.dialects.status.waiting import PREEMPTED

Status = Mapping[str, Any]


class Entry(NamedTuple):
    """One Event; unpacks as `(type, reason, message)`."""

    type: EventType
    reason: str
    message: str


_ALARMING = MODEL_TRANSFER_REASONS | {
    Reason.NO_NODE_FITS,
    Reason.UNSCHEDULABLE,
    Reason.UNBINDABLE_MODEL_CACHE,
    Reason.MEMORY_INSUFFICIENT,
    Reason.QUOTA_EXCEEDED,
    Reason.PODS_REFUSED,
    Reason.NODE_LOST,
    Reason.IMAGE_PULL_FAILED,
    Reason.OUT_OF_MEMORY,
    Reason.DRIVER_TOO_OLD,
    Reason.CRASH_LOOPING,
    Reason.PROBES_FAILING,
    Reason.COMPLETION_FAILED,
    Reason.POD_FAILING,
    Reason.PROGRESS_DEADLINE_EXCEEDED,
    Reason.ROLLED_BACK,
    Reason.NO_HOST_FITS,
    Reason.NOT_ALLOWED_ON_HOST,
    Reason.EVICTED,
    Reason.HOST_LOST,
    Reason.SECRET_UNAVAILABLE,
    Reason.HOST_PROCESS_FAILING,
    Reason.MODEL_NOT_FOUND,
    Reason.DEPENDENCY_MISSING,
    Reason.SPEC_INVALID,
    Reason.NAMESPACE_TERMINATING,
    Reason.POLICY_VIOLATED,
}
"""Reasons that need a person. The engine's own outcomes (ApplyFailed, ForeignObject) have Events already."""


def outcome_entry(outcome: ServiceOutcome, repaired: str) -> Entry | None:
    """Return the Event for an outcome of the engine; None when nothing changed. `repaired` describes repaired drift."""
    if outcome.error is not None:
        return Entry("Warning", outcome.error.reason, outcome.error.message)
    if repaired:
        return Entry("Warning", "DriftRepaired", repaired)
    message = describe_changes(outcome.changes)
    return Entry("Normal", "Applied", message) if message else None


def is_alarming(reason: str) -> bool:
    """Return whether a person should look at a service that is not ready for this reason."""
    return reason in _ALARMING


_WARNINGS_BY_CONDITION = (
    ("MemoryFits", "False", "MemoryInsufficient"),
    ("AutoscalerReady", "False", "AutoscalerNotReady"),
    ("GatewayReady", "False", "GatewayNotReady"),
    ("SpecHonoured", "False", "FieldsNotHonoured"),
    ("VLLMSpecValid", "False", ""),
    ("SGLangSpecValid", "False", ""),
    ("RolledBack", "True", "RolledBack"),
)
"""Condition, the status that causes a Warning, and the Event's reason; empty for the condition's own reason."""


class _View:
    """The fields of a status that Events are made from."""

    def __init__(self, status: Status | None) -> None:
        self.status = status or {}
        self._conditions = {c["type"]: c for c in self.status.get("conditions") or ()}

    def value(self, kind: str) -> str:
        return str(self._conditions.get(kind, {}).get("status", ""))

    def reason(self, kind: str = "Ready") -> str:
        return str(self._conditions.get(kind, {}).get("reason", ""))

    def message(self, kind: str = "Ready") -> str:
        return str(self._conditions.get(kind, {}).get("message", ""))

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", ""))

    @property
    def waiting_for(self) -> str:
        """The resource for which the service is in the queue; empty when it is in none."""
        fits = self.status.get("schedulingStatus") != "NoNodeFits"
        return str(self.status.get("waitingFor", "")) if fits else ""


def status_events(cr: Json, status: Json, facts: ServiceFacts) -> list[Entry]:
    """List the Events between the status of a service's custom resource and a new one, in their order."""
    if "phase" not in status:
        return list(condition_events(cr, status, facts))
    before = cr.get("status")
    edited = (before or {}).get("observedGeneration") != status.get("observedGeneration")
    return [*phase_events(before, status, facts), *(advice(cr) if edited else ())]


def phase_events(before: Status | None, after: Status, facts: ServiceFacts) -> list[Entry]:
    """List the Events of a status of an InferenceService; `before` is None for the first."""
    was, now = _View(before), _View(after)
    told = [
        *_approval(was, now),
        *_suspension(was, now),
        *_sleep(was, now),
        *_queue(was, now, facts),
        *_rollout(was, now),
        *_serving(was, now),
        *_drift(was, now),
    ]
    if now.reason() != was.reason() and not any(entry.reason == now.reason() for entry in told):
        if now.reason() in _ALARMING:
            told.append(Entry("Warning", now.reason(), now.message()))
        elif now.reason() == Reason.MODEL_DOWNLOADING:
            told.append(Entry("Normal", now.reason(), "Started the download of the model: " + now.message()))
    for kind, status, reason in _WARNINGS_BY_CONDITION:
        reason = reason or now.reason(kind)
        if now.value(kind) == status != was.value(kind) and not any(entry.reason == reason for entry in told):
            told.append(Entry("Warning", reason, now.message(kind)))
    return told


def _approval(was: _View, now: _View) -> list[Entry]:
    """List Events for a new pending change, by its digest, and for a new result of the policies."""
    told = _deferral(was, now)
    said = now.reason("PolicyCompliant")
    if said and said != was.reason("PolicyCompliant"):
        told.append(Entry("Warning", said, now.message("PolicyCompliant")))
    return told


def _deferral(was: _View, now: _View) -> list[Entry]:
    before, after = (view.status.get("pendingChange") or {} for view in (was, now))
    if not after or after.get("digest") == before.get("digest"):
        return []
    return [Entry("Normal", "ChangePending", f"Deferred a change: {now.message('ChangePending')}")]


def version_events(before: Status | None, after: Status) -> list[Entry]:
    """List the Events between two statuses of a ModelRouter, ModelPool or LoRAAdapter.

    They are about its versions: a change that a mode holds back, the use of one that was held back, and a policy that
    forbids or advises against a version. `before` is None for the first status.
    """
    was, now = _View(before), _View(after)
    told = _deferral(was, now)
    held, holds = (view.status.get("pendingChange") or {} for view in (was, now))
    used, uses = ((view.status.get(FIELD) or {}).get("spec") for view in (was, now))
    if held and not holds and used != uses:
        told.append(Entry("Normal", "Applied", f"Put change {held['digest']} into use: {held.get('summary', '')}"))
    said = now.reason("PolicyCompliant")
    if now.value("PolicyCompliant") == "False" and said != was.reason("PolicyCompliant"):
        told.append(Entry("Warning", said, now.message("PolicyCompliant")))
    return told


def _suspension(was: _View, now: _View) -> list[Entry]:
    if was.phase != now.phase == "Suspended":
        return [Entry("Normal", "Suspended", "Stopped all replicas, because spec.suspend is set")]
    if was.phase == "Suspended" and now.value("Suspended") == "False":
        return [Entry("Normal", "Resumed", "Started the replicas again, because spec.suspend was removed")]
    if was.phase and was.phase != now.phase == "Stopped":
        return [Entry("Normal", "Stopped", f"Stopped all replicas: {now.message()}")]
    return []


def _sleep(was: _View, now: _View) -> list[Entry]:
    if was.reason() != now.reason() == Reason.ASLEEP:
        return [Entry("Normal", "Asleep", now.message())]
    if was.reason() == Reason.ASLEEP != now.reason() and now.phase not in ("Stopped", "Suspended"):
        return [Entry("Normal", "Woken", f"The spec has replicas again: {now.message()}")]
    return []


def _queue(was: _View, now: _View, facts: ServiceFacts) -> list[Entry]:
    told = []
    for problem in facts.preemption:
        # The status may contain the message for a short time only. A service that took a place may be ready before its
        # status shows how.
        served = problem.reason != PREEMPTED and now.value("Ready") == "True" != was.value("Ready")
        if (served or problem.message in now.message()) and problem.message not in was.message():
            kind: EventType = "Warning" if problem.reason == PREEMPTED else "Normal"
            told.append(Entry(kind, problem.reason, problem.message[:1].upper() + problem.message[1:]))
    if now.waiting_for and now.waiting_for != was.waiting_for:
        place = facts.queue
        where = f" as number {place.position} of {place.length}" if place is not None else ""
        behind = f", behind {place.ahead}" if place is not None and place.ahead else ""
        told.append(Entry("Normal", "Queued", f"Joined the queue for {now.waiting_for}{where}{behind}"))
    elif was.waiting_for and not now.waiting_for:
        if now.phase in ("Creating", "Progressing", "Ready") and now.reason() not in _ALARMING:
            message = f"Got {was.waiting_for} and left the queue"
        else:
            message = f"Left the queue for {was.waiting_for}: {now.message()}"
        told.append(Entry("Normal", "Dequeued", message))
    return told


def _rollout(was: _View, now: _View) -> list[Entry]:
    deferred, before = now.value("RolloutDeferred"), was.value("RolloutDeferred")
    if deferred == "True" and before != "True":
        return [Entry("Normal", "RolloutDeferred", f"Deferred a change: {now.message('RolloutDeferred')}")]
    if deferred == "False" and before != "False":
        return [Entry("Warning", "RolloutForced", now.message("RolloutDeferred"))]
    if before == "True":
        return [Entry("Normal", "RolloutReleased", "Resumed the deferred change")]
    return []


def _serving(was: _View, now: _View) -> list[Entry]:
    if now.value("Ready") == "True" != was.value("Ready"):
        served = was.status.get("servedTemplateHash")
        if was.value("Available") == "True" and served and served != now.status.get("servedTemplateHash"):
            return [Entry("Normal", "RolledOut", f"Replaced all replicas with the new pod template: {now.message()}")]
        # While other replicas serve, one more or less makes no Event, unless the service had a problem.
        if was.value("Available") != "True" or was.reason() in _ALARMING or was.reason() == Reason.PREEMPTED:
            return [Entry("Normal", "Ready", f"Became ready: {now.message()}")]
    if was.value("Available") == "True" != now.value("Available") and now.phase not in ("Stopped", "Suspended"):
        return [Entry("Warning", "Unavailable", f"Stopped serving: {now.message()}")]
    return []


def _drift(was: _View, now: _View) -> list[Entry]:
    """List an Event for drift that is not repaired at once; again when the list of drift changes."""
    if now.value("Drifted") != "True" or now.message("Drifted") == was.message("Drifted"):
        return []
    return [Entry("Warning", now.reason("Drifted"), now.message("Drifted"))]


def advice(cr: Mapping[str, Any]) -> list[Entry]:
    """Recommend fields that a spec should set. The caller reports them once for each generation."""
    spec = cr.get("spec") or {}
    resources = spec.get("resources") or {}
    in_ram = [name for name in ("moeCPUOffload", "moeCPULayers", "noKvOffload") if spec.get(name)]
    if in_ram and not (resources.get("memory") or resources.get("hostMemory")):
        message = (
            f"spec.{in_ram[0]} keeps part of the model in RAM, but neither spec.resources.memory nor "
            "spec.resources.hostMemory requests any: the scheduler may choose a node with too little memory"
        )
        return [Entry("Warning", "MissingMemoryRequest", message)]
    return []


_HELD = ("ChangePending", "Drifted", "PolicyCompliant", "SpecHonoured")
_WARNED = {"Drifted": "True", "PolicyCompliant": "False", "SpecHonoured": "False", "ChangePending": "True"}


def condition_events(cr: Json, status: Json, facts: ServiceFacts) -> Iterator[Entry]:
    """List the Events of a status of KServe or llmaz, which has conditions and no phase.

    Ready causes an Event when its status or, while it is False, its reason changes. The Events have KServe's reasons:
    the kind with the suffix Ready or NotReady. Each change that is held back and each field without effect causes one
    as well.
    """
    before, after = _conditions(cr.get("status") or {}), _conditions(status)
    kind = str(cr["kind"])
    was, now = before.get("Ready", {}), after.get("Ready", {})
    if now.get("status") == "True" and was.get("status") != "True":
        yield Entry("Normal", f"{kind}Ready", "Serves")
    elif now.get("status") == "False" and (was.get("status"), was.get("reason")) != ("False", now.get("reason")):
        alarming = is_alarming(str(now.get("reason", ""))) or facts.problem is not None
        if alarming or was.get("status") == "True":
            yield Entry("Warning", f"{kind}NotReady", f"{now.get('reason')}: {now.get('message', '')}")
    for name in _HELD:
        old, new = before.get(name, {}), after.get(name, {})
        if new.get("status") == _WARNED[name] and new.get("message") != old.get("message"):
            if name == "ChangePending":
                yield Entry("Normal", name, f"Deferred a change: {new.get('message', '')}")
            else:
                yield Entry("Warning", str(new.get("reason") or name), str(new.get("message", "")))


def _conditions(status: Json) -> dict[str, Json]:
    return {each["type"]: each for each in status.get("conditions") or ()}
