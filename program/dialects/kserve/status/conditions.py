"""The conditions of an LLMInferenceService: KServe's, which determine Ready, and those of every dialect. Pure.

Some of KServe's conditions have more detail here: why pods fail (image, crash, memory), and that a rollout is not over
while old pods serve. The conditions that Ready is derived from have severity Info. A condition without a cause is
dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.facts import PodFacts, Problem, ServiceFacts, WorkloadFacts
from program.desired.service import DesiredService
from program.desired.workloads import PodSet
from program.dialects.kserve import naming
from program.dialects.kserve.parse.scaling import NO_PROMETHEUS
from program.dialects.kserve.parse.subject import Subject
from program.dialects.kserve.router.groups import group_of
from program.dialects.kserve.status import router
from program.dialects.kserve.status.router import RouterProblem
from program.dialects.status.conditions import Reason, Status, Type
from program.dialects.status.phase import PhaseDecision
from program.dialects.status.pod_causes import worst_cause
from program.dialects.status.service_conditions import (
    ConditionSet,
    decide_service_phase,
    find_refused,
    refusal_text,
    set_common,
)

PRESETS, WORKLOADS, ROUTER = "PresetsCombined", "WorkloadsReady", "RouterReady"
MAIN, WORKER = "MainWorkloadReady", "WorkerWorkloadReady"
PREFILL, PREFILL_WORKER = "PrefillWorkloadReady", "PrefillWorkerWorkloadReady"
SCALING, PREFILL_SCALING = "ScalingReady", "PrefillScalingReady"
GATEWAYS, ROUTES, POOL = "GatewaysReady", "HTTPRoutesReady", "InferencePoolReady"
SCHEDULER, TOKENIZER = "SchedulerWorkloadReady", "TokenizerReady"
GROUP, DEGRADED = "GroupReady", "GroupDegraded"

_OF_PODS = (MAIN, WORKER, PREFILL, PREFILL_WORKER, SCALING, PREFILL_SCALING)
_OF_ROUTER = (GATEWAYS, ROUTES, POOL, SCHEDULER, TOKENIZER)
_STOPPED = (GATEWAYS, ROUTES, POOL, MAIN, WORKER, PREFILL, PREFILL_WORKER, SCHEDULER, TOKENIZER, WORKLOADS, ROUTER)
_PARTS = (*_OF_PODS, *_OF_ROUTER, GROUP, DEGRADED)
TYPES = ("Ready", PRESETS, WORKLOADS, ROUTER, *_PARTS)
"""KServe's types, in their order in the status."""

_PRESET_REASONS = ("ConfigNotFound", "CombineBaseError", "InvalidRenderedConfig")
_SET_REASONS = frozenset((Reason.REPLICAS_STARTING, Reason.REPLICAS_STOPPING))
_COMPONENTS = {
    naming.WORKLOAD: "main",
    f"{naming.WORKLOAD}{naming.LEADER}": "main",
    f"{naming.WORKLOAD}{naming.WORKER}": "main",
    f"{naming.WORKLOAD}{naming.PREFILL}": "prefill",
    f"{naming.WORKLOAD}{naming.LEADER}{naming.PREFILL}": "prefill",
    f"{naming.WORKLOAD}{naming.WORKER}{naming.PREFILL}": "prefill",
    naming.SCHEDULER: "scheduler",
    naming.TOKENIZER: "tokenizer",
}


def service_conditions(
    cr: Json, subject: Subject | None, desired: DesiredService | None, facts: ServiceFacts, *, now: datetime
) -> list[Json]:
    """Return all conditions. `subject` is None while the service's configuration cannot be combined."""
    conditions = _Conditions(cr, now=now)
    verdict = decide_service_phase(cr, desired, facts)
    if subject is None:
        problem = facts.problem
        reason = problem.reason if problem is not None and problem.reason in _PRESET_REASONS else "CombineBaseError"
        conditions.set(PRESETS, "False", reason, verdict.message)
        conditions.set(
            WORKLOADS, "Unknown", "PresetsNotCombined", "Herdsman creates no objects before the presets are combined"
        )
        conditions.set(
            ROUTER, "Unknown", "PresetsNotCombined", "Herdsman creates no objects before the presets are combined"
        )
    else:
        conditions.set(PRESETS, "True", "PresetsCombined", "The service was combined with its presets and configs")
        if desired is not None and desired.suspended:
            for kind in _STOPPED:
                conditions.set(kind, "False", "Stopped", "The service is stopped by its annotation")
        else:
            _workloads(conditions, subject, desired, facts, verdict)
            _router(conditions, subject, desired, facts)
            _group(conditions, subject)
    _ready(conditions, desired, facts, verdict)
    conditions.drop_unset()
    set_common(conditions, cr, verdict, desired, facts, ready=False)
    return [_as_the_peer_writes(condition) for condition in conditions.listed()]


class _Conditions(ConditionSet):
    def __init__(self, cr: Json, *, now: datetime) -> None:
        previous = (cr.get("status") or {}).get("conditions") or ()
        # KServe's schema requires only a type and a status.
        whole = [c for c in previous if c.get("lastTransitionTime")]
        super().__init__({**cr, "status": {"conditions": whole}}, TYPES, now=now)
        self._set_now: set[str] = set()

    def set(self, kind: str, status: Status, reason: str, message: str) -> None:
        """Set a condition, and record that this pass has set it."""
        self._set_now.add(kind)
        super().set(kind, status, reason, message)

    def drop_unset(self) -> None:
        """Drop the partial conditions that this pass has not set. The others keep their transition times."""
        self.drop(*(kind for kind in _PARTS if kind not in self._set_now))

    def find(self, kind: str, problem: RouterProblem, message: str) -> None:
        """Set a condition from a problem. `message` is used if there is no problem."""
        self.set(kind, "False" if problem.reason else "True", problem.reason or kind, problem.message or message)

    def first_false(self, kinds_: Iterable[str]) -> Json | None:
        """Return the first of these conditions that is not True."""
        found = (self.get(kind) for kind in kinds_ if kind in self._set_now)
        return next((c for c in found if c is not None and c["status"] != "True"), None)

    def gather(self, kind: str, parts: Iterable[str], message: str) -> None:
        """Set a condition from its parts: reason and message are those of the first part that is not True."""
        wrong = self.first_false(parts)
        if wrong is None:
            self.set(kind, "True", kind, message)
        else:
            self.set(kind, "False", wrong["reason"], wrong["message"])


def _as_the_peer_writes(condition: Json) -> Json:
    """Remove the generation, which KServe's CRDs would refuse, and set the severity of partial conditions."""
    written = {key: value for key, value in condition.items() if key not in ("observedGeneration", "severity")}
    return {**written, "severity": "Info"} if condition["type"] in _PARTS else written


# --- workloads --------------------------------------------------------------------------------------------------------


def _workloads(
    conditions: _Conditions,
    subject: Subject,
    desired: DesiredService | None,
    facts: ServiceFacts,
    verdict: PhaseDecision,
) -> None:
    if desired is not None and desired.host_placement is not None:
        truth: Status = "True" if verdict.outcome in ("ready", "idle") else "False"
        conditions.set(MAIN, truth, verdict.reason, verdict.message)
    elif desired is None or desired.workloads is None:
        _unmade(conditions, subject, facts, verdict)
    else:
        for part, single, grouped, scaling in (
            ("main", MAIN, WORKER, SCALING),
            ("prefill", PREFILL, PREFILL_WORKER, PREFILL_SCALING),
        ):
            pods = desired.workloads.pod_set(part)
            if pods is None:
                continue
            conditions.find(
                grouped if pods.group is not None else single, _pods_problem(pods, facts), "The pods are ready"
            )
            if pods.scaler is not None:
                conditions.find(
                    scaling, _scaler_finding(subject, pods, facts), "The autoscaler sets the number of replicas"
                )
            elif (fault := _scaler_fault(part, facts)) is not None:
                conditions.set(scaling, "False", "ReconcileScalingError", f"{fault.field}: {fault.message}")
        if (problem := facts.problem) is not None and not _is_of_router(problem.field):
            kind = WORKER if desired.workloads.main.group is not None else MAIN
            conditions.set(kind, "False", _reason_of_failure(subject, problem.field), verdict.message)
    conditions.gather(WORKLOADS, _OF_PODS, "All pods are ready")


def _unmade(conditions: _Conditions, subject: Subject, facts: ServiceFacts, verdict: PhaseDecision) -> None:
    """Set the condition of a service that could not be read. Ready's message counts the pods that still run."""
    field = facts.problem.field if facts.problem is not None else ""
    reason = _reason_of_failure(subject, field)
    if reason == "ReconcileScalingError":
        conditions.set(
            PREFILL_SCALING if field.startswith("spec.prefill") else SCALING, "False", reason, verdict.message
        )
    elif not _is_of_router(field):
        grouped = subject.at("worker") is not None
        conditions.set(WORKER if grouped else MAIN, "False", reason, verdict.message)


def _reason_of_failure(subject: Subject, field: str) -> str:
    if field.startswith(("spec.scaling", "spec.prefill.scaling")):
        return "ReconcileScalingError"
    grouped = subject.at("worker") is not None
    return "ReconcileMultiNodeWorkloadError" if grouped else "ReconcileSingleNodeWorkloadError"


def _is_of_router(field: str) -> bool:
    return field.startswith("spec.router")


def _pods_problem(pods: PodSet, facts: ServiceFacts) -> RouterProblem:
    found = next((w for w in facts.workloads if w.part == pods.part), None)
    if found is None or not found.found:
        return RouterProblem("Progressing", f"{'The pods do' if found is None else found.name + ' does'} not exist yet")
    problem = _unready(found, [p for p in facts.pods if _part(p) == pods.part], facts, scaled=pods.scaler is not None)
    return problem or RouterProblem()


def _part(pod: PodFacts) -> str:
    return _COMPONENTS.get(pod.component, "main")


def _unready(found: WorkloadFacts, pods: list[PodFacts], facts: ServiceFacts, *, scaled: bool) -> RouterProblem | None:
    """Return why a set of pods is not in its wanted state; None if it is."""
    # With an autoscaler, a change of only the number does not change the pods; fewer pods than wanted exist.
    changed = found.behind and found.replicas == found.wanted_replicas
    if changed or (not found.seen and not scaled):
        return RouterProblem(
            "Progressing",
            f"{found.kind} {found.name} is new or changed, and its controller has not observed the change yet",
        )
    available = found.available is not None and found.available.status == "True"
    surplus = found.replicas - found.updated_replicas
    # An autoscaler regularly asks for more pods; the existing ones serve.
    unproved = found.unproved_replicas
    enough = (
        available and (found.ready_replicas > 0 or not unproved)
        if scaled
        else found.ready_replicas >= found.wanted_replicas and (available or found.available is None)
    )
    if enough and surplus <= 0 and (scaled or found.replicas <= found.wanted_replicas):
        return None
    counted = f"{found.ready_replicas} of {found.wanted_replicas} replicas of {found.name} ready"
    if unproved:
        counted += f"; {unproved} healthy, but not yet checked by a completion"
    if found.replica_failure:
        return RouterProblem(
            Reason.PODS_REFUSED, f"{counted}; the API server refuses the pods: {found.replica_failure}"
        )
    cause = worst_cause(pods, facts.memory)
    if cause is not None:
        return RouterProblem(cause.reason, f"{counted}; {cause.text}")
    progressing = found.progressing
    if progressing is not None and progressing.status == "False" and progressing.reason:
        return RouterProblem(
            progressing.reason, f"{counted}; {progressing.message}" if progressing.message else counted
        )
    if found.available is not None and not available and found.available.reason:
        return RouterProblem(found.available.reason, counted)
    unscheduled = next((p.unschedulable for p in pods if p.unschedulable), "")
    if unscheduled:
        return RouterProblem("Progressing", f"{counted}; not scheduled: {unscheduled}")
    return RouterProblem("Progressing", f"{counted}; a rollout is in progress" if surplus > 0 else counted)


def _scaler_finding(subject: Subject, pods: PodSet, facts: ServiceFacts) -> RouterProblem:
    assert pods.scaler is not None
    scaler = pods.scaler
    if (refused := find_refused(facts, scaler.kind, name=scaler.name)) is not None:
        return RouterProblem("ReconcileScalingError", refusal_text(refused))
    keda = scaler.kind == "ScaledObject"
    live = subject.look(kinds.SCALED_OBJECTS if keda else kinds.AUTOSCALERS, subject.namespace, scaler.name)
    waiting = "ScaledObjectProgressing" if keda else "HPAProgressing"
    missing = next(
        (p for p in facts.unsupported if p.reason == Reason.NOT_INSTALLED and scaler.kind in p.message), None
    )
    if live is None:
        if missing is not None:
            return RouterProblem("ScalingCRDNotFound", missing.message)
        return RouterProblem(waiting, f"{scaler.kind} {scaler.name} does not exist yet")
    problem, told = _scaler_says(live)
    if problem:
        return RouterProblem(waiting, f"{scaler.kind} {scaler.name}: {problem}")
    return RouterProblem() if told else RouterProblem(waiting, f"{scaler.kind} {scaler.name} has no conditions yet")


def _scaler_fault(part: str, facts: ServiceFacts) -> Problem | None:
    """Return why the autoscaler of a set of pods cannot be created; None if it can."""
    found = (each for each in facts.unsupported if each.reason == NO_PROMETHEUS)
    return next((each for each in found if each.field.startswith("spec.prefill") is (part == "prefill")), None)


def _scaler_says(live: Json) -> tuple[str, bool]:
    """Return the autoscaler's problem, and whether it has written any condition."""
    by_type: dict[str, Any] = {c.get("type", ""): c for c in (live.get("status") or {}).get("conditions") or ()}
    for kind in ("AbleToScale", "ScalingActive", "Ready"):
        found = by_type.get(kind) or {}
        if found.get("status") == "False" and found.get("reason") != "ScalingDisabled":
            return ": ".join(str(found[key]) for key in ("reason", "message") if found.get(key)), True
    return "", bool(by_type)


# --- routing ----------------------------------------------------------------------------------------------------------


def _router(conditions: _Conditions, subject: Subject, desired: DesiredService | None, facts: ServiceFacts) -> None:
    hosted = desired is not None and desired.host_placement is not None
    if hosted or subject.at("router") is None:
        conditions.set(ROUTER, "True", "NoRouter", "The service configures no router")
        return
    problem = facts.problem
    if desired is None and problem is not None and _is_of_router(problem.field):
        kind = SCHEDULER if problem.field.startswith("spec.router.scheduler") else ROUTES
        reason = "SchedulerReconcileError" if kind == SCHEDULER else "HTTPRouteReconcileError"
        conditions.set(kind, "False", reason, f"{problem.field}: {problem.message}")
    else:
        _way_in(conditions, subject, desired, facts)
    conditions.gather(ROUTER, _OF_ROUTER, "Requests reach the service")


def _way_in(conditions: _Conditions, subject: Subject, desired: DesiredService | None, facts: ServiceFacts) -> None:
    found = (
        (GATEWAYS, router.gateways_of(subject), "All gateways are programmed"),
        (ROUTES, _refused_route(facts) or router.route_finding(subject), "All routes are accepted"),
        (POOL, _refused_pool(facts) or router.pool_finding(subject), "The pool is accepted"),
    )
    for kind, problem, message in found:
        if problem is not None and problem.reason in router.MISSING:
            # Other problems do not count while a named object is missing.
            conditions.find(kind, problem, message)
            return
    for kind, problem, message in found:
        if problem is not None:
            conditions.find(kind, problem, message)
    workloads = desired.workloads if desired is not None else None
    for part, kind in (("scheduler", SCHEDULER), ("tokenizer", TOKENIZER)):
        pods = workloads.pod_set(part) if workloads is not None else None
        if pods is not None:
            refused = find_refused(facts, kinds.DEPLOYMENTS.kind, name=pods.name)
            problem = RouterProblem(refused.reason, refusal_text(refused)) if refused else _pods_problem(pods, facts)
            conditions.find(kind, problem, "The pods are ready")


def _refused_route(facts: ServiceFacts) -> RouterProblem | None:
    refused = find_refused(facts, kinds.HTTP_ROUTES.kind)
    return RouterProblem("HTTPRouteReconcileError", refusal_text(refused)) if refused is not None else None


def _refused_pool(facts: ServiceFacts) -> RouterProblem | None:
    refused = find_refused(facts, kinds.INFERENCE_POOLS.kind)
    return RouterProblem(refused.reason, refusal_text(refused)) if refused is not None else None


def _group(conditions: _Conditions, subject: Subject) -> None:
    if not group_of(subject):
        return
    conditions.set(GROUP, "True", GROUP, "The route distributes requests over the members of the group")
    if others := router.diverging(subject):
        conditions.set(
            DEGRADED,
            "True",
            "MemberDivergence",
            f"Requests for `{subject.model_name}` are not distributed to {', '.join(others)}, which serve another "
            f"model",
        )


# --- ready ------------------------------------------------------------------------------------------------------------


def _ready(
    conditions: _Conditions, desired: DesiredService | None, facts: ServiceFacts, verdict: PhaseDecision
) -> None:
    """Set Ready from KServe's conditions; Reconciling and Stalled from what an unready service waits for."""
    # KServe reports the router's condition before that of the workloads. After a refused spec or object it comes last
    # here.
    refused = facts.problem is not None and not _is_of_router(facts.problem.field)
    wrong = conditions.first_false((PRESETS, WORKLOADS, ROUTER) if refused else (PRESETS, ROUTER, WORKLOADS))
    if facts.sleep and verdict.outcome == "ready":
        # The gateway holds requests until an engine runs.
        wrong = conditions.first_false((PRESETS, ROUTER))
    scaled = desired is not None and desired.workloads is not None and desired.workloads.main.scaler is not None
    settled = verdict.outcome in ("ready", "idle") or (scaled and verdict.reason in _SET_REASONS)
    stopped = desired is not None and desired.suspended
    if wrong is None and settled:
        conditions.set(Type.READY, "True", verdict.reason, verdict.message)
        conditions.set(Type.RECONCILING, "False", verdict.reason, verdict.message)
        conditions.set(Type.STALLED, "False", verdict.reason, verdict.message)
        return
    reason, message = (wrong["reason"], wrong["message"]) if wrong is not None else (verdict.reason, verdict.message)
    conditions.set(Type.READY, "False", reason, message)
    stalled = verdict.outcome == "stalled"
    waits = not stalled and not (stopped and verdict.outcome == "idle")
    # A decision of success covers only the pods, so the service may still wait for its routing.
    told = (reason, message) if settled and not stopped else (verdict.reason, verdict.message)
    conditions.set(Type.RECONCILING, "True" if waits else "False", *told)
    conditions.set(Type.STALLED, "True" if stalled else "False", *told)
