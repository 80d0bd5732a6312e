"""Repairs of one field: at once, then with growing pauses, and at once again after the other client has left the field
alone for a while.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from automation.drift.contest import BASE_S, CAP_S, FREE_REPAIRS, REST_S, Contests
from automation.drift.field_drift import FieldDrift, ObjectDrift
from components.providers.kubernetes_ownership import Writer
from program.desired.keys import ServiceKey

KEY = ServiceKey("llmkube", "prod", "chat")
T0 = datetime(2026, 11, 22, tzinfo=UTC)


def drift(path: str = "spec.type", manager: str = "rival") -> tuple[ObjectDrift, ...]:
    by = Writer(manager, "Update")
    return (ObjectDrift("Service", "chat", (FieldDrift(path, "a", "b", f"{path} a -> b", by),)),)


def test_a_rival_is_answered_ever_more_slowly() -> None:
    contests, now, pauses = Contests(), T0, []
    for _ in range(12):
        wait_s = contests.wait_s(KEY, drift(), now=now)
        pauses.append(wait_s)
        now += timedelta(seconds=wait_s)
        contests.note_repairs(KEY, drift(), now=now)
    assert pauses[:FREE_REPAIRS] == [0.0] * FREE_REPAIRS
    assert pauses[FREE_REPAIRS : FREE_REPAIRS + 3] == [BASE_S, 2 * BASE_S, 4 * BASE_S]
    assert pauses[-1] == CAP_S
    assert contests.contested_texts(KEY, now=now) == ("Service chat: spec.type a -> b by `rival`",)
    assert contests.remaining_s(KEY, now=now) == REST_S + 2 * CAP_S
    later = now + timedelta(seconds=REST_S + 2 * CAP_S)
    assert contests.wait_s(KEY, drift(), now=later) == 0.0
    assert contests.contested_texts(KEY, now=later) == ()


def test_other_fields_and_other_hands_do_not_wait() -> None:
    contests = Contests()
    for _ in range(FREE_REPAIRS):
        contests.note_repairs(KEY, drift(), now=T0)
    assert contests.wait_s(KEY, drift(), now=T0) == BASE_S
    assert contests.wait_s(KEY, drift("spec.ports"), now=T0) == 0.0
    assert contests.wait_s(KEY, drift(manager="kubectl-edit"), now=T0) == 0.0
    assert contests.wait_s(KEY._replace(name="other"), drift(), now=T0) == 0.0
    contests.drop_service(KEY)
    assert contests.wait_s(KEY, drift(), now=T0) == 0.0


def test_single_edits_are_no_contest() -> None:
    contests = Contests()
    for number in range(20):
        now = T0 + timedelta(seconds=number * (REST_S + 1))
        assert contests.wait_s(KEY, drift(), now=now) == 0.0
        contests.note_repairs(KEY, drift(), now=now)
        assert contests.contested_texts(KEY, now=now) == ()
