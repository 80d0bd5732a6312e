"""Decides whether a changed pod template may be applied now, or waits until no replica works on a request. Pure.

The controller calls `gate` before it submits a change to the engine. The rules and the reasons are LLMKube's: replicas
that are busy or cannot be checked hold the change back, and crash-looping pods do not. `force` and the timeout end the
wait. A change of replicas alone never waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from automation.serving.engine_start import is_healthy
from automation.serving.idleness import Idleness
from components import naming
from components.rendered import RenderedService
from kubeapi.json_types import Json
from program.desired.facts import Problem, RolloutFacts
from program.desired.service import RolloutPolicy
from program.dialects.status.conditions import Type

RECHECK_S = 5.0
CRASH_RESTARTS = 3
"""A container with this many restarts that is not ready counts as one that serves no client."""


@dataclass(frozen=True)
class Gate:
    """Whether a change may be applied, and the condition for the status."""

    open: bool
    facts: RolloutFacts


OPEN = Gate(True, RolloutFacts())


def rendered_template_hash(rendered: RenderedService) -> str:
    """Return the hash of the serving pods' template, which is the last one; empty when there are no pods."""
    for obj in reversed(rendered.objects):
        if obj.kind in ("Deployment", "LeaderWorkerSet"):
            return str(obj.manifest["metadata"]["annotations"].get(naming.ANNOTATION_TEMPLATE_HASH, ""))
    return ""


def live_template_hash(deployment: Json | None) -> str:
    """Return the hash of the live Deployment's pod template; empty when it has none."""
    if deployment is None:
        return ""
    return str(deployment["metadata"]["annotations"].get(naming.ANNOTATION_TEMPLATE_HASH, ""))


def replaces_pods(rendered: RenderedService, deployment: Json | None) -> bool:
    """Return whether an apply of the rendered service would replace existing pods."""
    wanted, live = rendered_template_hash(rendered), live_template_hash(deployment)
    return bool(wanted and live) and wanted != live


def crash_loops(pod: Json) -> bool:
    """Return whether a remembered pod's engine crashes in a loop, and so has no request that could be lost."""
    if is_healthy(pod):
        return False
    reasons = {problem.get("reason") for problem in pod["problems"]}
    return "CrashLoopBackOff" in reasons or (pod.get("engine") or {}).get("restarts", 0) >= CRASH_RESTARTS


def may_serve(pod: Json) -> bool:
    """Return whether a remembered pod may work on a request: it is healthy, or has answered one since its start."""
    engine = pod.get("engine") or {}
    completed = engine.get("completed")
    answered = completed is not None and completed[0] and completed[2] == engine.get("run")
    return is_healthy(pod) or (answered and not pod["metadata"]["deleting"] and not crash_loops(pod))


def deferred(cr: Json) -> tuple[datetime, Problem] | None:
    """Return since when and why the change is held back, by the status, so that a restarted loop continues the wait."""
    condition = _condition(cr)
    if condition.get("status") != "True":
        return None
    try:
        since = datetime.fromisoformat(str(condition.get("lastTransitionTime")))
    except ValueError:
        return None
    return since, Problem(reason=str(condition.get("reason")), message=str(condition.get("message")))


def has_timed_out(cr: Json) -> bool:
    """Return whether the wait for this generation of the spec has ended by the timeout."""
    condition = _condition(cr)
    generation = int(cr["metadata"].get("generation") or 0)
    return condition.get("status") == "False" and condition.get("observedGeneration") == generation


def gate(
    policy: RolloutPolicy,
    pods: tuple[Json, ...],
    idleness: Mapping[str, Idleness | None] | None,
    *,
    before: tuple[datetime, Problem] | None,
    now: datetime,
) -> Gate:
    """Decide for a change that would replace pods.

    `idleness` has the state of each serving pod, None until its first answer. It is None when the engine cannot be
    checked. `before` is the result of `deferred`.
    """
    if not policy.wait_for_idle or policy.force:
        return OPEN
    serving = sorted(pod["metadata"]["name"] for pod in pods if may_serve(pod))
    if not serving:
        return OPEN
    said = {name: idleness.get(name) for name in serving} if idleness is not None else {}
    if idleness is not None and all(word is not None and word.state == "idle" for word in said.values()):
        return OPEN
    if before is not None and (now - before[0]).total_seconds() >= policy.idle_timeout_s:
        return Gate(True, RolloutFacts(timed_out=True))
    if any(word is None for word in said.values()):
        # While a new answer is awaited, the status keeps the last one. Before the first answer there is none.
        return Gate(False, RolloutFacts(deferred=before[1] if before is not None else None))
    return Gate(False, RolloutFacts(deferred=_problem(said)))


def _problem(said: Mapping[str, Idleness | None]) -> Problem:
    if not said:
        message = "this engine does not report whether it is busy; the change waits for the timeout"
        return Problem(reason="IdleCheckUnsupported", message=message)
    # Names only, and no numbers of requests: a message that changes every five seconds causes a write every five
    # seconds.
    busy = [name for name, word in said.items() if word is not None and word.state == "busy"]
    if busy:
        return Problem(reason="PodsBusy", message=f"replicas are busy with requests: {', '.join(busy)}")
    unknown = [f"{name}: {word.message}" for name, word in said.items() if word is not None and word.state == "unknown"]
    return Problem(
        reason="IdleCheckFailed", message=f"replicas do not report whether they are idle: {'; '.join(unknown)}"
    )


def _condition(cr: Json) -> Json:
    conditions = (cr.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == Type.ROLLOUT_DEFERRED), {})
