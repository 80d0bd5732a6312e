"""How conditions are set, as apimachinery sets them, and how Ready, Reconciling and Stalled depend on each other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

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

THEN = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC)
NOW = THEN + timedelta(minutes=5)


def set_ready(conditions: list[Condition], status: str, *, now: datetime, message: str = "m") -> list[Condition]:
    return set_condition(
        conditions,
        type="Ready",
        status="True" if status == "True" else "False",
        reason="R",
        message=message,
        generation=3,
        now=now,
    )


def test_a_new_condition_carries_the_time_and_the_generation() -> None:
    assert set_ready([], "True", now=THEN) == [
        {
            "type": "Ready",
            "status": "True",
            "reason": "R",
            "message": "m",
            "observedGeneration": 3,
            "lastTransitionTime": "2026-11-21T10:00:00Z",
        }
    ]


def test_the_same_status_keeps_its_time_though_the_message_changes() -> None:
    [condition] = set_ready(set_ready([], "True", now=THEN), "True", now=NOW, message="other")
    assert (condition["message"], condition["lastTransitionTime"]) == ("other", "2026-11-21T10:00:00Z")


def test_another_status_takes_the_time_of_now() -> None:
    [condition] = set_ready(set_ready([], "True", now=THEN), "False", now=NOW)
    assert condition["lastTransitionTime"] == "2026-11-21T10:05:00Z"


def test_other_conditions_stay_and_nothing_is_changed_in_place() -> None:
    before = [{"type": "MemoryPressure", "status": "True"}, *set_ready([], "True", now=THEN)]
    copies = [dict(c) for c in before]
    after = set_ready(before, "False", now=NOW)
    assert before == copies
    assert after[0] == before[0]
    assert [c["type"] for c in drop_conditions(after, "Ready")] == ["MemoryPressure"]


def test_a_message_is_cut_where_the_api_would_refuse_it() -> None:
    [condition] = set_ready([], "True", now=THEN, message="x" * 40_000)
    assert len(condition["message"]) == 32_768


def test_times_are_written_in_utc() -> None:
    assert timestamp(datetime(2026, 11, 21, 12, 0, tzinfo=timezone(timedelta(hours=2)))) == "2026-11-21T10:00:00Z"


def test_the_ready_protocol_says_one_thing_at_a_time() -> None:
    expected = {
        mark_ready: ("True", "False", "False"),
        mark_reconciling: ("False", "True", "False"),
        mark_stalled: ("False", "False", "True"),
        mark_idle: ("False", "False", "False"),
    }
    conditions: list[Condition] = []
    for mark, statuses in expected.items():
        conditions = mark(conditions, reason="R", message="m", generation=1, now=NOW)
        by_type = {c["type"]: c["status"] for c in conditions}
        assert (by_type["Ready"], by_type["Reconciling"], by_type["Stalled"]) == statuses
