"""The conditions that services of every dialect share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from program.desired.facts import MemoryFacts, PodFacts, Problem, RolloutFacts, ServiceFacts
from program.dialects.llmaz.dialect import PLAYGROUNDS
from program.dialects.status.conditions import Type
from program.dialects.status.service_conditions import (
    COMMON,
    ConditionSet,
    decide_service_phase,
    same_status,
    set_common,
)
from tests.unit.dialects.llmaz.objects import Cluster, open_model, playground

NOW = datetime(2026, 1, 1, tzinfo=UTC)
READY = ServiceFacts(desired_replicas=1, replicas=1, ready_replicas=1, objects_exist=True)
DESIRED = PLAYGROUNDS.parse(playground(), Cluster(open_model())).desired
GIB = 1 << 30
NEED = MemoryFacts(weights_bytes=GIB, cache_bytes=0, compute_bytes=0, available_bytes=2 * GIB)
CAUSE = Problem(reason="PodsBusy", message="they work")
WAITS = PodFacts(
    name="p", unschedulable="0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", requests={"nvidia.com/gpu": "1"}
)


def said(facts: ServiceFacts, previous: list[dict[str, Any]] | None = None) -> dict[str, tuple[str, str]]:
    cr = {**playground(), "status": {"conditions": previous or []}}
    conditions = ConditionSet(cr, ("Theirs",), now=NOW)
    set_common(conditions, cr, decide_service_phase(cr, DESIRED, facts), DESIRED, facts)
    return {each["type"]: (each["status"], each["reason"]) for each in conditions.listed()}


def test_all_is_well() -> None:
    assert said(READY) == {
        "Ready": ("True", "Serving"),
        "Reconciling": ("False", "Serving"),
        "Stalled": ("False", "Serving"),
        "SpecHonoured": ("True", "AllFieldsHonoured"),
    }


@pytest.mark.parametrize(
    ("changes", "kind", "condition"),
    [
        (
            {"memory": MemoryFacts(weights_bytes=GIB, cache_bytes=0, compute_bytes=0)},
            "MemoryFits",
            ("True", "EstimateFits"),
        ),
        (
            {
                "memory": NEED.model_copy(update={"available_bytes": GIB // 2}),
                "ready_replicas": 0,
            },
            "MemoryFits",
            ("False", "EstimateExceedsNodes"),
        ),
        (
            {"problem": Problem(reason="PolicyViolated", message="no", terminal=True)},
            "PolicyCompliant",
            ("False", "PolicyViolated"),
        ),
        (
            {"rollout": RolloutFacts(deferred=Problem(reason="PodsBusy", message="x"))},
            "RolloutDeferred",
            ("True", "PodsBusy"),
        ),
        (
            {"rollout": RolloutFacts(rolled_back=Problem(reason="Crashed", message="x"))},
            "RolledBack",
            ("True", "Crashed"),
        ),
        (
            {
                "unsupported": (
                    Problem(reason="NotInstalled", message="x"),
                    Problem(reason="NotInstalled", message="y", field="spec.a"),
                )
            },
            "SpecHonoured",
            ("False", "NotInstalled"),
        ),
        (
            {"unsupported": (Problem(reason="NotInstalled", message="x"), Problem(reason="NotHonoured", message="y"))},
            "SpecHonoured",
            ("False", "FieldsNotHonoured"),
        ),
        (
            {"ready_replicas": 0, "pods": (WAITS,)},
            "GPUAvailable",
            ("False", "InsufficientGPU"),
        ),
    ],
)
def test_what_there_is_to_say_is_said_and_taken_back(
    changes: dict[str, Any], kind: str, condition: tuple[str, str]
) -> None:
    first = said(READY.model_copy(update=changes))
    assert first[kind] == condition
    left = [{"type": each, "status": "True", "reason": "Old", "lastTransitionTime": "x"} for each in first]
    assert said(READY, left).get(kind, ("True", "AllFieldsHonoured")) == ("True", "AllFieldsHonoured")


def test_a_service_that_is_stopped_is_idle_and_says_so() -> None:
    stopped = DESIRED.model_copy(update={"suspended": True})
    verdict = decide_service_phase(playground(), stopped, ServiceFacts(desired_replicas=0, objects_exist=True))
    assert (verdict.outcome, verdict.message) == ("idle", "Stopped by its annotation; no replica runs")


def test_conditions_are_listed_in_one_order_the_dialects_own_first() -> None:
    conditions = ConditionSet(playground(), ("Theirs", "Ready"), now=NOW)
    for kind in (Type.DRIFTED, Type.READY, "Theirs", Type.STALLED):
        conditions.set(kind, "True", "Because", "")
    assert [each["type"] for each in conditions.listed()] == ["Theirs", "Ready", "Stalled", "Drifted"]
    assert (conditions.get("Theirs") or {})["status"] == "True"
    assert conditions.get("Else") is None
    conditions.drop("Theirs")
    assert "Theirs" not in conditions


def test_statuses_are_the_same_whatever_others_added() -> None:
    ready: list[dict[str, Any]] = [{"type": "Ready", "status": "True"}]
    both = [{"type": "Foreign", "status": "True"}, *ready]
    ours = {"conditions": ready, "replicas": 1}
    theirs = {"conditions": both, "replicas": 1, "more": 2}
    assert same_status(ours, theirs, ("conditions", "replicas"), ("Theirs",))
    for kind in ("Theirs", str(COMMON[-1])):  # a condition of Herdsman without a cause must be removed
        stale = {**theirs, "conditions": [*both, {"type": kind, "status": "True"}]}
        assert not same_status(ours, stale, ("conditions", "replicas"), ("Theirs",))
    assert not same_status({**ours, "replicas": 2}, theirs, ("conditions", "replicas"), ())
