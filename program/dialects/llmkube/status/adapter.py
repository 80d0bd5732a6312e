"""The status of a LoRAAdapter from what its replicas said. Pure; `automation.serving.adapters.controller` writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from kubeapi.json_types import Json
from program.desired.adapter import NEEDS_A_PERSON, AdapterFacts, AdapterOutcome, AdapterReason, AdapterReplica
from program.dialects.status.conditions import (
    Condition,
    drop_conditions,
    mark_idle,
    mark_ready,
    mark_reconciling,
    mark_stalled,
    set_condition,
    timestamp,
)

LOADED = "Loaded"
_OF_LLMKUBE = ("Available", "Error")
"""Conditions of LLMKube's controller that Herdsman does not write."""
_SHOWN = 3
"""How many replicas a message names."""


def adapter_status(cr: Json, facts: AdapterFacts, *, path: str, now: datetime) -> Json:
    """Return the status of an adapter; equal to its present one when nothing has changed.

    `path` is the adapter's path in the spec that the replicas were asked to load; empty if there is no valid spec.
    """
    current: Json = cr.get("status") or {}
    generation = int(cr["metadata"].get("generation") or 0)
    loaded = [each for each in facts.replicas if _has(each)]
    phase, reason, message = _summary(facts, len(loaded))
    complete = phase == "Loaded"
    made: Json = {
        "observedGeneration": generation,
        "phase": phase,
        "replicas": len(facts.replicas),
        "loadedReplicas": len(loaded),
        "pods": [_pod(each) for each in facts.replicas],
        "conditions": _conditions(
            current, reason, message, complete=complete, idle=_is_idle(reason), generation=generation, now=now
        ),
    }
    if loaded:
        made["loadedPath"] = path
    if facts.runtime:
        made["runtime"] = facts.runtime
    if complete:
        again = (current.get("phase"), current.get("loadedPath")) != ("Loaded", path)
        made["lastLoadedAt"] = timestamp(now) if again else current.get("lastLoadedAt") or timestamp(now)
    elif current.get("lastLoadedAt"):
        made["lastLoadedAt"] = current["lastLoadedAt"]
    return made


def _conditions(
    current: Json, reason: str, message: str, *, complete: bool, idle: bool, generation: int, now: datetime
) -> list[Condition]:
    mark: Callable[..., list[Condition]] = mark_reconciling
    if complete:
        mark = mark_ready
    elif idle:
        mark = mark_idle
    elif reason in NEEDS_A_PERSON:
        mark = mark_stalled
    before: Iterable[Mapping[str, Any]] = current.get("conditions") or ()
    made = mark(
        drop_conditions(list(before), *_OF_LLMKUBE), reason=reason, message=message, generation=generation, now=now
    )
    return set_condition(
        made,
        type=LOADED,
        status="True" if complete else "False",
        reason=reason,
        message=message,
        generation=generation,
        now=now,
    )


def _is_idle(reason: str) -> bool:
    return reason == AdapterReason.NO_REPLICA


def _summary(facts: AdapterFacts, loaded: int) -> tuple[str, str, str]:
    """Return phase, reason and message."""
    total = len(facts.replicas)
    if facts.unloading:
        return "Unloading", AdapterReason.UNLOADING, f"{loaded} of {total} replicas still have the adapter"
    if facts.problem is not None:
        return "Failed" if facts.problem.terminal else "Pending", facts.problem.reason, facts.problem.message
    if total and loaded == total:
        return "Loaded", AdapterReason.LOADED, f"{_replicas(total)} loaded the adapter"
    failed = [(each, each.outcome) for each in facts.replicas if each.outcome and each.outcome.state == "failed"]
    count = f"{loaded} of {_replicas(total)} loaded the adapter"
    if not failed:
        waits = [each.outcome for each in facts.replicas if each.outcome and each.outcome.state == "waiting"]
        reason, text = next(
            ((each.reason, each.message) for each in waits if each.message), (AdapterReason.LOADING, "")
        )
        return "Loading", reason, f"{count}; {text}" if text else count
    reason = failed[0][1].reason
    texts = [f"{each.pod}: {outcome.message}" for each, outcome in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        texts.append(f"and {len(failed) - _SHOWN} more")
    phase = "Degraded" if loaded else "Failed" if len(failed) == total else "Loading"
    return phase, reason, f"{count}; {'; '.join(texts)}"


def _replicas(number: int) -> str:
    return "1 replica" if number == 1 else f"{number} replicas"


def _has(replica: AdapterReplica) -> bool:
    return replica.outcome is not None and replica.outcome.state == "loaded"


def _pod(replica: AdapterReplica) -> Json:
    outcome = replica.outcome or AdapterOutcome(state="waiting")
    made: Json = {"name": replica.pod, "loaded": outcome.state == "loaded"}
    if replica.host:
        made["host"] = replica.host
    if outcome.adapter_id is not None:
        made["adapterID"] = outcome.adapter_id
    if outcome.message and outcome.state != "loaded":
        made["message"] = outcome.message
    return made
