"""The next action for a process, as a table: the same decision for agents and for hosts over SSH."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.contract import ProcessPlan
from agent.processes.decision import RESTART_AFTER, Action, Desired, Observed, backoff_s, decide

PLAN = ProcessPlan(host="h", service="s", argv=("x",), service_name="s", startup_timeout_s=60.0)
WANTED = Desired(PLAN, "new")
HELD = Desired(PLAN, "new", generation=1)
STOPPED = Observed()
STARTING = Observed(running="new", running_s=10.0)
READY = Observed(running="new", running_s=3600.0, is_ready=True)
FAILING = Observed(running="new", running_s=3600.0, is_ready=True, failed_checks=RESTART_AFTER)
OLD = Observed(running="old", running_s=3600.0, is_ready=True)
KEPT = replace(OLD, has_files=False)
UNKNOWN = Observed(running="", running_s=3600.0)
ENDED = Observed(running="new", has_ended=True)
GAVE_UP = Observed(has_given_up=True)


@pytest.mark.parametrize(
    ("desired", "observed", "expected", "backing_off"),
    [
        # The last column is the action before `retry_at`.
        (WANTED, STOPPED, Action.START, Action.WAIT),
        (WANTED, Observed(has_files=False), Action.FETCH, Action.WAIT),
        (WANTED, replace(STARTING, is_healthy=True), Action.CHECK_COMPLETION, Action.CHECK_COMPLETION),
        (WANTED, replace(READY, check_at=100.1), Action.WATCH, Action.WATCH),
        (WANTED, STARTING, Action.CHECK_HEALTH, Action.CHECK_HEALTH),
        (WANTED, READY, Action.CHECK_HEALTH, Action.CHECK_HEALTH),
        (WANTED, Observed(running="new", running_s=60.1), Action.RESTART, Action.RESTART),
        (
            WANTED,
            Observed(running="new", running_s=10.0, failed_checks=RESTART_AFTER),
            Action.CHECK_HEALTH,
            Action.CHECK_HEALTH,
        ),
        (WANTED, FAILING, Action.RESTART, Action.RESTART),
        (WANTED, OLD, Action.STOP, Action.WAIT),
        (WANTED, KEPT, Action.FETCH, Action.FETCH),
        (WANTED, replace(KEPT, fetch_at=100.1), Action.CHECK_HEALTH, Action.CHECK_HEALTH),
        (WANTED, replace(KEPT, fetch_at=100.1, check_at=100.1), Action.WATCH, Action.WATCH),
        (WANTED, replace(KEPT, is_ready=False), Action.STOP, Action.WAIT),
        (WANTED, replace(KEPT, failed_checks=RESTART_AFTER), Action.STOP, Action.WAIT),
        (HELD, KEPT, Action.STOP, Action.WAIT),
        (None, KEPT, Action.STOP, Action.WAIT),
        (WANTED, UNKNOWN, Action.STOP, Action.WAIT),
        (WANTED, ENDED, Action.REAP, Action.REAP),
        (WANTED, GAVE_UP, Action.WAIT, Action.WAIT),
        (HELD, STOPPED, Action.WAIT, Action.WAIT),
        (HELD, READY, Action.STOP, Action.WAIT),
        (HELD, FAILING, Action.STOP, Action.WAIT),
        (HELD, ENDED, Action.REAP, Action.REAP),
        (None, STOPPED, Action.REMOVE, Action.WAIT),
        (None, READY, Action.STOP, Action.WAIT),
        (None, STARTING, Action.STOP, Action.WAIT),
        (None, ENDED, Action.REAP, Action.REAP),
        (None, GAVE_UP, Action.REMOVE, Action.WAIT),
    ],
)
def test_the_action_follows_from_plan_and_process(
    desired: Desired | None, observed: Observed, expected: Action, backing_off: Action
) -> None:
    is_held = desired is HELD
    assert decide(desired, observed, now=100.0, is_held=is_held) is expected
    assert decide(desired, observed, now=100.0, retry_at=100.0, is_held=is_held) is expected
    assert decide(desired, observed, now=100.0, retry_at=100.1, is_held=is_held) is backing_off


def test_failures_wait_twice_as_long_each_time_up_to_a_bound() -> None:
    waits = [backoff_s(failures, base_s=2.0, cap_s=300.0) for failures in range(12)]
    assert waits[:4] == [2.0, 2.0, 4.0, 8.0]
    assert waits[-1] == 300.0
    assert backoff_s(10**6, base_s=2.0, cap_s=300.0) == 300.0
