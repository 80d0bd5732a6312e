"""The status of a Playground or a Service of llmaz, computed from facts on every pass. Pure.

It has llmaz's fields only, because llmaz's CRDs drop others; Herdsman adds conditions. Progressing is False once all
replicas are ready, and while an error prevents rendering.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from kubeapi.json_types import Json
from program.desired.facts import ServiceFacts
from program.desired.service import DesiredService
from program.dialects.llmaz.parse.models import WAITING
from program.dialects.status.conditions import Reason, Type
from program.dialects.status.phase import PhaseDecision
from program.dialects.status.service_conditions import ConditionSet, decide_service_phase, same_status, set_common

ABORTED = "AbortProcessing"
PEERS = (str(Type.AVAILABLE), str(Type.PROGRESSING))
_FIELDS = ("conditions", "replicas", "selector")


@dataclass(frozen=True)
class Words:
    """The reasons and messages of one kind."""

    ready: tuple[str, str]
    """Reason and message of Available=True."""
    not_ready: tuple[str, str]
    """Reason and message of Available=False."""
    starting: tuple[str, str]
    """Reason and message of Progressing=True before the first replica served."""
    again: tuple[str, str]
    """Reason and message of Progressing=True afterwards."""
    stopped: str
    """Reason of both while no replica is wanted."""
    taken: str = ""
    """Message while another object has the name."""


PLAYGROUND_WORDS = Words(
    ready=("PlaygroundReady", "Playground is ready"),
    not_ready=("PlaygroundNotReady", "Waiting for inference Service ready"),
    starting=("Pending", "Waiting for inference Service ready"),
    again=("PlaygroundInProgress", "Waiting for inference Service progressing"),
    stopped="PlaygroundStopped",
    taken="Playground owns the same name with an existing Service",
)
SERVICE_WORDS = Words(
    ready=("ServiceReady", "Inference Service is ready"),
    not_ready=("ServiceNotReady", "Waiting for leaderWorkerSet ready"),
    starting=("ServiceInProgress", "Inference Service is progressing"),
    again=("ServiceInProgress", "Inference Service is progressing"),
    stopped="ServiceStopped",
)


def service_status(
    cr: Json, desired: DesiredService | None, facts: ServiceFacts, words: Words, *, now: datetime
) -> Json:
    """Return the complete status, or the dict `cr["status"]` itself if nothing has changed."""
    previous: Json = cr.get("status") or {}
    verdict = decide_service_phase(cr, desired, facts)
    conditions = ConditionSet(cr, PEERS, now=now)
    _of_peer(conditions, desired, facts, verdict, words)
    set_common(conditions, cr, verdict, desired, facts)
    status: Json = {"conditions": conditions.listed(), "replicas": facts.replicas}
    selector = _selector(desired, facts) or previous.get("selector")
    if selector:
        status["selector"] = selector
    return previous if previous and same_status(status, previous, _FIELDS, PEERS) else status


def _of_peer(
    conditions: ConditionSet,
    desired: DesiredService | None,
    facts: ServiceFacts,
    verdict: PhaseDecision,
    words: Words,
) -> None:
    wanted, ready = facts.desired_replicas, facts.ready_replicas
    served_before = Type.AVAILABLE in conditions
    available = ready >= wanted > 0 and (desired is not None or facts.objects_exist or ready > 0)
    # A service that sleeps or wakes accepts requests at the gateway.
    available = available or (verdict.outcome == "ready" and bool(facts.sleep))
    if available:
        conditions.set(Type.AVAILABLE, "True", *words.ready)
    elif verdict.outcome == "idle":
        conditions.set(Type.AVAILABLE, "False", words.stopped, verdict.message)
    elif served_before:
        conditions.set(Type.AVAILABLE, "False", *words.not_ready)
    problem = facts.problem
    if problem is not None and (desired is None or problem.terminal):
        conditions.set(Type.PROGRESSING, "False", ABORTED, _aborted(facts, words))
    elif verdict.outcome == "ready":
        conditions.set(Type.PROGRESSING, "False", *words.ready)
    elif verdict.outcome == "idle":
        conditions.set(Type.PROGRESSING, "False", words.stopped, verdict.message)
    elif served_before:
        conditions.set(Type.PROGRESSING, "True", *words.again)
    else:
        conditions.set(Type.PROGRESSING, "True", *words.starting)


def _aborted(facts: ServiceFacts, words: Words) -> str:
    """Return why nothing is rendered, in llmaz's own message if it has one."""
    assert facts.problem is not None
    problem = facts.problem
    told = f"{problem.field}: {problem.message}" if problem.field else problem.message
    if problem.reason == Reason.MODEL_NOT_FOUND:
        return f"{WAITING}: {told}"
    if problem.reason == Reason.FOREIGN_OBJECT and words.taken and problem.field == "metadata.name":
        return words.taken
    return told


def _selector(desired: DesiredService | None, facts: ServiceFacts) -> str:
    """Return the label selector of the pods that an autoscaler counts; empty on hosts, which have no autoscaler."""
    if desired is None or desired.workloads is None:
        return ""
    found = next((each.selector for each in facts.workloads if each.part and each.selector), "")
    return found or ",".join(f"{key}={value}" for key, value in sorted(desired.workloads.main.selector.items()))
