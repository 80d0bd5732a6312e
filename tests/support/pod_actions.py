"""Carries out actions on pods as the loop's Actor does, for tests of one check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from automation.reconcile.act_on_pods import PodActor
from automation.reconcile.actions import PodAction, RecordEvent, RequeueAfter
from automation.status.event_recorder import EventRecorder
from program.desired.facts import Problem
from program.desired.keys import ServiceKey


def act_on_pods(
    actor: PodActor,
    recorder: EventRecorder,
    key: ServiceKey,
    cr: dict[str, Any],
    actions: Iterable[PodAction | RequeueAfter],
    *,
    requeue: Callable[[ServiceKey, float], object],
    now: datetime,
) -> Problem | None:
    """Carry out actions and their consequences; return the first problem."""
    problem = None
    for action in actions:
        failed, then = (None, (action,)) if isinstance(action, RequeueAfter) else actor.act(key, cr, action, now=now)
        problem = problem or failed
        for each in then:
            if isinstance(each, RecordEvent):
                recorder.record(cr, type=each.type, reason=each.reason, message=each.message)
            else:
                requeue(key, each.seconds)
    return problem
