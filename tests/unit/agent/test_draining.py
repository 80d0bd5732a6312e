"""When a drained process may be stopped, as a table of responses: the same rule for agents and for hosts over SSH."""

from __future__ import annotations

import pytest

from agent.processes.draining import IDLE_ANSWERS, UNKNOWN_S, Drain, Drained

Answers = tuple[tuple[float, bool | None], ...]
"""The times at which the engine was queried, and whether it has a running request; None: unknown."""


@pytest.mark.parametrize(
    ("answers", "settle_s", "expected"),
    [
        ((), 0.0, None),
        (((0.0, True),), 0.0, None),
        (((0.0, False),), 0.0, None),
        (((0.0, False), (0.2, False)), 0.0, Drained.IDLE),
        (((0.0, False), (0.2, False)), 1.0, None),
        (((0.0, False), (1.0, False)), 1.0, Drained.IDLE),
        (((0.0, False), (0.2, True), (0.4, False)), 0.0, None),
        (((0.0, False), (0.2, None), (0.4, False)), 0.0, None),
        (((0.0, True), (29.9, True)), 0.0, None),
        (((0.0, True), (30.0, True)), 0.0, Drained.TIMED_OUT),
        (((0.0, None),), 0.0, None),
        (((0.0, None), (UNKNOWN_S, None)), 0.0, Drained.TIMED_OUT),
    ],
)
def test_the_end_of_a_drain_follows_from_the_answers(
    answers: Answers, settle_s: float, expected: Drained | None
) -> None:
    drain, now = Drain(since=0.0, known_at=0.0), 0.0
    for now, busy in answers:
        drain = drain.answered(busy, now=now)
    assert drain.outcome(timeout_s=30.0, settle_s=settle_s, now=now) is expected


def test_an_engine_that_stops_answering_has_its_time_from_its_last_answer_on() -> None:
    drain = Drain(since=0.0, known_at=0.0).answered(True, now=20.0).answered(None, now=20.5)
    assert drain.outcome(timeout_s=60.0, now=20.5) is None, "its request may still be under way"
    assert drain.outcome(timeout_s=60.0, now=20.0 + UNKNOWN_S) is Drained.TIMED_OUT


def test_a_drain_without_time_is_over_at_once() -> None:
    drain = Drain(since=0.0, known_at=0.0)
    assert drain.outcome(timeout_s=0.0, settle_s=1.0, now=0.0) is Drained.TIMED_OUT
    for _ in range(IDLE_ANSWERS):
        drain = drain.answered(False, now=0.0)
    assert drain.outcome(timeout_s=0.0, settle_s=1.0, now=0.0) is Drained.IDLE
