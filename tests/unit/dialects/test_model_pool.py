"""ModelPool: what a spec means, and the status for the turns of its members."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.pool import Pool
from program.dialects.llmkube.parse.pool import pool_of
from program.dialects.llmkube.status.pool import MemberState, PoolState, pool_status

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def cr(status: Json | None = None, **spec: Any) -> Json:
    named = [{"inferenceServiceRef": {"name": name}} for name in ("chat", "code", "chat")]
    metadata = {"name": "gpu", "namespace": "ns", "uid": "u", "generation": 3}
    made = {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": metadata,
        "spec": {"members": named, **spec},
    }
    return {**made, "status": status} if status is not None else made


def test_a_pool_has_llmkubes_defaults_and_each_member_once() -> None:
    assert pool_of(cr()) == Pool("ns", "gpu", ("chat", "code"), "", 60.0, 300.0, 1, {})


def test_all_fields_are_read() -> None:
    spec = {
        "default": "code",
        "gpu": 2,
        "minTurn": "1m30s",
        "swapBudget": "10m",
        "nodeSelector": {"gpu": "a100"},
        "swapPolicy": "sticky",
    }
    assert pool_of(cr(**spec)) == Pool("ns", "gpu", ("chat", "code"), "code", 90.0, 600.0, 2, {"gpu": "a100"})


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"members": []}, "spec.members"),
        ({"minTurn": "soon"}, "spec.minTurn"),
        ({"minTurn": "25h"}, "spec.minTurn"),
        ({"swapBudget": "25h"}, "spec.swapBudget"),
        ({"swapPolicy": "eager"}, "spec.swapPolicy"),
        ({"gpu": -1}, "spec.gpu"),
        ({"members": [{"inferenceServiceRef": {}}]}, "spec.members[0].inferenceServiceRef"),
    ],
)
def test_a_spec_that_is_not_valid_is_refused_with_its_field(spec: Json, field: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        pool_of(cr(**spec))
    assert refused.value.field.startswith(field)


SERVING = MemberState("chat", "Serving", resident=True)
ASLEEP = MemberState("code", "Asleep")


def conditions(state: PoolState) -> dict[str, tuple[str, str]]:
    status = pool_status(cr(), state, now=NOW)
    assert all(each["observedGeneration"] == 3 for each in status["conditions"])
    return {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}


@pytest.mark.parametrize(
    ("state", "phase", "expected"),
    [
        pytest.param(
            PoolState((SERVING, ASLEEP), "chat"),
            "Ready",
            {
                "Ready": ("True", "TakingTurns"),
                "SlotAllocated": ("True", "Resident"),
                "MembersValid": ("True", "AllResolved"),
                "SwapDeferred": ("False", "NotDeferred"),
                "MetalSupported": ("True", "KubernetesGPU"),
            },
            id="one member serves",
        ),
        pytest.param(
            PoolState((MemberState("chat", "Asleep"), ASLEEP)),
            "Ready",
            {"Ready": ("True", "WaitsForRequests"), "SlotAllocated": ("False", "Free")},
            id="nobody runs",
        ),
        pytest.param(
            PoolState((SERVING, MemberState("code", "Waiting")), "chat", "code", "MinimumTurn"),
            "Swapping",
            {"Ready": ("True", "TakingTurns"), "SwapDeferred": ("True", "MinimumTurn")},
            id="the next one waits for the minimum time",
        ),
        pytest.param(
            PoolState(
                (MemberState("chat", "Stopping"), MemberState("code", "Waiting")), "", "code", "PodsRemain", ("chat",)
            ),
            "Swapping",
            {"SlotAllocated": ("False", "Swapping"), "SwapDeferred": ("True", "PodsRemain")},
            id="the last one stops",
        ),
        pytest.param(
            PoolState((MemberState("chat", "Starting", resident=True), ASLEEP), "chat"),
            "Swapping",
            {"SlotAllocated": ("True", "Resident")},
            id="one starts",
        ),
        pytest.param(
            PoolState((MemberState("chat", "Failing", True, "OutOfMemory: killed"), ASLEEP), "chat"),
            "Degraded",
            {"Ready": ("False", "MemberFailing")},
            id="the resident fails",
        ),
        pytest.param(
            PoolState((SERVING, MemberState("code", "Refused", False, "there is none", "MemberNotFound")), "chat"),
            "Degraded",
            {"Ready": ("True", "TakingTurns"), "MembersValid": ("False", "MissingMembers")},
            id="a member is missing",
        ),
        pytest.param(
            PoolState((MemberState("chat", "Stopped"), MemberState("code", "Refused", False, "x", "InAnotherPool"))),
            "Degraded",
            {"Ready": ("False", "NoMembers"), "MembersValid": ("False", "InAnotherPool")},
            id="no member can take turns",
        ),
        pytest.param(
            PoolState((MemberState("chat", "Stopped"),)), "Pending", {"Ready": ("False", "NoMembers")}, id="all stopped"
        ),
        pytest.param(
            PoolState((SERVING, MemberState("code", "OnHost")), "chat", default_missing="gone"),
            "Ready",
            {"MembersValid": ("False", "DefaultNotAMember"), "MetalSupported": ("True", "ModelGroup")},
            id="the default is no member, and one runs on a host",
        ),
        pytest.param(
            PoolState(problem=("SpecInvalid", "spec.minTurn: no duration")),
            "Degraded",
            {"Ready": ("False", "SpecInvalid")},
            id="not valid",
        ),
    ],
)
def test_a_status(state: PoolState, phase: str, expected: dict[str, tuple[str, str]]) -> None:
    found = conditions(state)
    assert {kind: found[kind] for kind in expected} == expected
    assert pool_status(cr(), state, now=NOW)["phase"] == phase


def test_a_status_names_who_has_the_turn_and_who_is_next_and_why() -> None:
    state = PoolState((SERVING, MemberState("code", "Waiting", message="why")), "chat", "code", "MinimumTurn")
    status = pool_status(cr(), state, now=NOW)
    assert (status["residentMember"], status["pendingMember"]) == ("chat", "code")
    assert status["members"] == [
        {"name": "chat", "phase": "Serving", "resident": True},
        {"name": "code", "phase": "Waiting", "resident": False, "message": "why"},
    ]
    deferred = next(each for each in status["conditions"] if each["type"] == "SwapDeferred")
    assert deferred["message"] == "`code` waits until `chat` has had its minimum time"


def test_a_status_stays_equal_while_nothing_changes() -> None:
    state = PoolState((SERVING, ASLEEP), "chat")
    first = pool_status(cr(), state, now=NOW)
    assert pool_status(cr(first), state, now=datetime(2027, 1, 1, tzinfo=UTC)) == first
    freed = pool_status(cr(first), PoolState((MemberState("chat", "Asleep"), ASLEEP)), now=NOW)
    assert "residentMember" not in freed
