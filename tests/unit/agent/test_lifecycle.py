"""The status of one process, computed from values and a test clock: no thread, no process, no waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import FilePlan, ProcessPhase, ProcessPlan, ProcessReason
from agent.processes import lifecycle
from agent.processes.command_line import launch_hash
from agent.processes.decision import Action, Desired, backoff_s
from agent.processes.lifecycle import Policy, ProcessStatus, Running, Step

POLICY = Policy()
FILE = FilePlan(source="https://example.org/a.gguf", cache_key="k", file_name="a.gguf")


def plan(**changes: Any) -> ProcessPlan:
    values: dict[str, Any] = {
        "host": "h",
        "service": "s",
        "argv": ("llama-server", "--port", "{port}"),
        "completion_path": "/v1/chat/completions",
        "service_name": "s",
        "startup_timeout_s": 60.0,
    }
    return ProcessPlan(**{**values, **changes})


def desired(**changes: Any) -> Desired:
    planned = plan(**changes)
    return Desired(planned, launch_hash(planned, "10.0.0.1"))


def running(wanted: Desired, *, since: float = 0.0, proved: bool = False) -> Running:
    return Running(
        pid=7, mark="m", port=18000, launch_hash=wanted.launch_hash, since=since, started_at="", proved=proved
    )


def next_step(status: ProcessStatus, wanted: Desired | None, *, alive: bool = True, now: float = 0.0) -> Step:
    observed = lifecycle.observe(status, wanted.plan if wanted else None, is_alive=alive, now=now)
    return lifecycle.next_step(status, wanted, observed, now=now, policy=POLICY)


def started(wanted: Desired) -> ProcessStatus:
    return lifecycle.process_started(lifecycle.plan_changed(ProcessStatus(), wanted), running(wanted))


def ready(wanted: Desired, *, now: float = 0.0) -> ProcessStatus:
    status = lifecycle.health_checked(started(wanted), wanted.plan, failure=None, now=now, policy=POLICY)
    return lifecycle.completion_checked(status, failure=None, now=now, policy=POLICY)


def test_a_new_process_fetches_its_file_then_starts() -> None:
    wanted = desired(file=FILE)
    status = lifecycle.plan_changed(ProcessStatus(), wanted)
    assert next_step(status, wanted).action is Action.FETCH
    status = lifecycle.files_fetched(lifecycle.fetch_started(status), "/store/k/a.gguf", {})
    assert next_step(status, wanted).action is Action.START


def test_a_process_is_ready_after_health_and_one_completion() -> None:
    wanted = desired()
    status = started(wanted)
    assert status.phase is ProcessPhase.STARTING
    assert next_step(status, wanted).action is Action.CHECK_HEALTH
    status = lifecycle.health_checked(status, wanted.plan, failure="503", now=0.0, policy=POLICY)
    assert next_step(status, wanted, now=0.0) == Step(Action.WATCH, POLICY.first_check_interval_s)
    status = lifecycle.health_checked(status, wanted.plan, failure="503", now=60.0, policy=POLICY)
    assert next_step(status, wanted, now=60.0) == Step(Action.WATCH, 60.0 + POLICY.starting_check_interval_s)
    status = lifecycle.health_checked(status, wanted.plan, failure=None, now=1.0, policy=POLICY)
    assert status.phase is ProcessPhase.STARTING, "health alone is not service"
    assert next_step(status, wanted, now=1.0).action is Action.CHECK_COMPLETION
    status = lifecycle.completion_checked(status, failure=None, now=2.0, policy=POLICY)
    assert status.phase is ProcessPhase.READY
    assert next_step(status, wanted, now=2.0) == Step(Action.WATCH, 2.0 + POLICY.check_interval_s)
    assert next_step(status, wanted, now=7.0).action is Action.CHECK_HEALTH


def test_a_completion_is_asked_for_once_per_start() -> None:
    wanted = desired()
    status = ready(wanted)
    for second in (5, 10, *range(20, 100, 10)):
        assert next_step(status, wanted, now=float(second)).action is Action.CHECK_HEALTH
        status = lifecycle.health_checked(status, wanted.plan, failure=None, now=float(second), policy=POLICY)


def test_a_steady_process_is_asked_less_often() -> None:
    wanted = desired()
    status = lifecycle.health_checked(ready(wanted), wanted.plan, failure=None, now=59.0, policy=POLICY)
    assert next_step(status, wanted, now=59.0) == Step(Action.WATCH, 59.0 + POLICY.check_interval_s)
    status = lifecycle.health_checked(status, wanted.plan, failure=None, now=64.0, policy=POLICY)
    assert next_step(status, wanted, now=64.0) == Step(Action.WATCH, 64.0 + POLICY.stable_check_interval_s)
    status = lifecycle.health_checked(status, wanted.plan, failure="no answer", now=74.0, policy=POLICY)
    assert next_step(status, wanted, now=74.0) == Step(Action.WATCH, 74.0 + POLICY.failing_check_interval_s)


def test_a_failed_completion_is_tried_again_until_the_start_takes_too_long() -> None:
    wanted = desired()
    status = lifecycle.health_checked(started(wanted), wanted.plan, failure=None, now=1.0, policy=POLICY)
    status = lifecycle.completion_checked(status, failure="500", now=1.0, policy=POLICY)
    assert (status.phase, status.reason) == (ProcessPhase.STARTING, ProcessReason.COMPLETION_FAILED)
    assert next_step(status, wanted, now=3.0).action is Action.CHECK_HEALTH
    assert next_step(status, wanted, now=61.0).action is Action.RESTART
    assert lifecycle.stop_cause(status, wanted)[0] is ProcessReason.STARTUP_TIMEOUT


def test_some_failed_health_checks_take_readiness_away_and_one_good_one_returns_it() -> None:
    wanted = desired()
    status = ready(wanted)
    for number in range(POLICY.unhealthy_after):
        assert status.phase is ProcessPhase.READY, number
        status = lifecycle.health_checked(status, wanted.plan, failure="timeout", now=10.0 + number, policy=POLICY)
    assert (status.phase, status.reason) == (ProcessPhase.UNHEALTHY, ProcessReason.NOT_RESPONDING)
    status = lifecycle.health_checked(status, wanted.plan, failure=None, now=20.0, policy=POLICY)
    assert (status.phase, status.reason, status.restarts) == (ProcessPhase.READY, "", 0)


def test_many_failed_health_checks_stop_the_process_before_another_starts() -> None:
    wanted = desired()
    status = ready(wanted)
    for number in range(POLICY.restart_after):
        status = lifecycle.health_checked(status, wanted.plan, failure="timeout", now=10.0 + number, policy=POLICY)
    assert next_step(status, wanted, now=20.0).action is Action.RESTART
    status = lifecycle.stop_started(status)
    assert next_step(status, wanted, now=20.0).action is not Action.START, "the old one still runs"
    status = lifecycle.process_crashed(status, reason="NotResponding", message="", now=30.0, policy=POLICY)
    assert next_step(status, wanted, now=30.0).action is Action.WAIT
    assert next_step(status, wanted, now=31.0).action is Action.START


def test_an_exit_is_noticed_whatever_else_is_due() -> None:
    wanted = desired()
    assert next_step(ready(wanted), wanted, alive=False, now=0.0).action is Action.REAP


def test_crashes_in_a_row_wait_longer_each_time_and_end_as_failed() -> None:
    wanted = desired()
    status, now, waits = started(wanted), 0.0, []
    while status.phase is not ProcessPhase.FAILED:
        status = lifecycle.process_crashed(status, reason="ProcessExited", message="boom", now=now, policy=POLICY)
        if status.phase is ProcessPhase.BACKING_OFF:
            waits.append(status.retry_at - now)
            now = status.retry_at
            status = lifecycle.process_started(status, running(wanted, since=now))
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert status.reason == ProcessReason.CRASH_LOOP
    assert "boom" in status.message
    assert next_step(status, wanted, now=now + 1e6) == Step(Action.WAIT), "only an edit helps"


def test_a_failed_process_starts_again_when_its_plan_changes() -> None:
    wanted, other = desired(), desired(argv=("llama-server", "--port", "{port}", "--fixed"))
    failed = replace(lifecycle.plan_changed(ProcessStatus(), wanted), phase=ProcessPhase.FAILED, crashes=6)
    assert lifecycle.plan_changed(failed, wanted) is failed
    fresh = lifecycle.plan_changed(failed, other)
    assert next_step(fresh, other).action is Action.START
    assert fresh.crashes == 0


def test_a_crash_after_a_stable_time_forgives_the_earlier_ones() -> None:
    wanted = desired()
    status = replace(ready(wanted, now=100.0), crashes=4)
    soon = lifecycle.process_crashed(status, reason="r", message="", now=110.0, policy=POLICY)
    late = lifecycle.process_crashed(status, reason="r", message="", now=100.0 + POLICY.stable_s, policy=POLICY)
    assert (soon.crashes, late.crashes) == (5, 1)
    assert (soon.restarts, late.restarts) == (1, 1)


def test_a_changed_plan_stops_the_old_process_first_and_counts_no_crash() -> None:
    wanted, other = desired(), desired(env={"A": "1"})
    status = lifecycle.plan_changed(ready(wanted), other)
    assert (status.phase, status.reason) == (ProcessPhase.STOPPING, ProcessReason.REPLACING)
    assert next_step(status, other).action is Action.STOP
    assert lifecycle.stop_cause(status, other) == (None, "")
    status = lifecycle.process_stopped(status)
    assert next_step(status, other).action is Action.START
    assert (status.crashes, status.restarts) == (0, 0)


def test_a_process_is_kept_until_the_files_of_its_successor_are_there() -> None:
    wanted, other = desired(), desired(file=FILE)
    status = lifecycle.plan_changed(ready(wanted), other, needs_other_files=True)
    assert (status.phase, next_step(status, other).action) == (ProcessPhase.READY, Action.FETCH)
    assert status.replacement is not None
    first = status.replacement
    status = replace(status, check_at=99.0)
    fetching = replace(status, replacement=first.started())
    assert next_step(fetching, other).action is Action.WATCH
    failed = first.failed("NotFound", "gone", now=1.0, base_s=4.0, cap_s=60.0)
    status = replace(status, replacement=failed)
    assert next_step(status, other, now=2.0) == Step(Action.WATCH, 5.0), "the next fetch comes before the next check"
    assert next_step(status, other, now=5.0).action is Action.FETCH
    status = lifecycle.health_checked(status, wanted.plan, failure=None, now=6.0, policy=POLICY)
    assert (status.phase, status.replacement) == (ProcessPhase.READY, failed)

    back = lifecycle.plan_changed(status, wanted)
    assert (back.phase, back.replacement) == (ProcessPhase.READY, None), "its own plan came back"
    ended = lifecycle.process_stopped(status)
    assert (ended.phase, ended.reason, ended.retry_at) == (ProcessPhase.BACKING_OFF, "NotFound", 5.0)
    due = lifecycle.replacement_due(status)
    assert (due.phase, next_step(due, other).action) == (ProcessPhase.STOPPING, Action.STOP)


@pytest.mark.parametrize(
    "changes",
    [
        {"priority": 3},
        {"service_port": 9000},
        {"service_name": "other"},
        {"stop_grace_s": 5.0},
        {"memory_bytes": 1},
        {"eviction_protection": True},
        {"health_path": "/"},
    ],
)
def test_what_the_process_does_not_see_leaves_it_alone(changes: dict[str, Any]) -> None:
    assert desired(**changes).launch_hash == desired().launch_hash


@pytest.mark.parametrize("changes", [{"argv": ("x",)}, {"env": {"A": "b"}}, {"file": FILE}, {"runtime": "generic"}])
def test_what_the_process_sees_replaces_it(changes: dict[str, Any]) -> None:
    assert desired(**changes).launch_hash != desired().launch_hash


def test_a_size_that_is_learnt_later_replaces_nothing() -> None:
    sized = FILE.model_copy(update={"size_bytes": 12})
    assert desired(file=FILE).launch_hash == desired(file=sized).launch_hash


def test_another_address_replaces_only_a_process_that_was_told_its_address() -> None:
    told = plan(argv=("llama-server", "--host", "{host}"))
    assert launch_hash(told, "10.0.0.1") != launch_hash(told, "10.0.0.2")
    assert launch_hash(plan(), "10.0.0.1") == launch_hash(plan(), "10.0.0.2")


def test_an_unwanted_process_is_stopped_then_forgotten() -> None:
    status = ready(desired())
    assert next_step(status, None).action is Action.STOP
    assert next_step(status, None, alive=False).action is Action.REAP
    assert next_step(lifecycle.process_stopped(status), None).action is Action.REMOVE


def test_a_failed_process_that_is_no_longer_wanted_is_forgotten() -> None:
    assert next_step(ProcessStatus(phase=ProcessPhase.FAILED), None).action is Action.REMOVE


def test_an_adopted_process_that_had_served_counts_as_ready_and_is_probed_at_once() -> None:
    wanted = desired()
    status = lifecycle.process_adopted(ProcessStatus(), running(wanted, proved=True), now=50.0)
    assert status.phase is ProcessPhase.READY
    assert next_step(lifecycle.plan_changed(status, wanted), wanted, now=50.0).action is Action.CHECK_HEALTH
    unproved = lifecycle.process_adopted(ProcessStatus(), running(wanted), now=50.0)
    assert unproved.phase is ProcessPhase.STARTING
    assert next_step(unproved, wanted, now=100.0).action is Action.CHECK_HEALTH, "its start counts from the adoption"


def test_a_failed_fetch_is_tried_again_without_end_and_forgotten_when_it_succeeds() -> None:
    wanted = desired(file=FILE)
    status, now = lifecycle.plan_changed(ProcessStatus(), wanted), 0.0
    for _ in range(20):
        status = lifecycle.attempt_failed(status, reason="SourceUnreachable", message="", now=now, policy=POLICY)
        assert status.phase is ProcessPhase.BACKING_OFF
        assert status.retry_at - now <= POLICY.retry_cap_s
        now = status.retry_at
        assert next_step(status, wanted, now=now).action is Action.FETCH
    status = lifecycle.files_fetched(status, "/a", {})
    assert (status.attempts, status.reason) == (0, "")


def test_a_launch_fetches_again_because_the_file_may_have_gone_since() -> None:
    wanted = desired(file=FILE)
    status = lifecycle.process_started(
        lifecycle.files_fetched(lifecycle.plan_changed(ProcessStatus(), wanted), "/a", {}), running(wanted)
    )
    status = lifecycle.process_crashed(status, reason="r", message="", now=0.0, policy=POLICY)
    assert next_step(status, wanted, now=status.retry_at).action is Action.FETCH


@given(failures=st.integers(min_value=1, max_value=10_000))
def test_backoff_grows_and_is_capped(failures: int) -> None:
    wait = backoff_s(failures, base_s=1.0, cap_s=60.0)
    assert 1.0 <= wait <= 60.0
    assert wait <= backoff_s(failures + 1, base_s=1.0, cap_s=60.0)


OUTCOMES = st.lists(
    st.sampled_from(["good", "bad", "exit", "stop", "replan", "unplan", "time"]), min_size=1, max_size=60
)


@given(outcomes=OUTCOMES)
def test_whatever_happens_never_two_processes_run_and_none_is_lost(outcomes: list[str]) -> None:
    """Run the state machine with any outcomes: a process starts only after its predecessor has ended."""
    plans = [desired(), desired(env={"A": "1"})]
    wanted: Desired | None = plans[0]
    status, alive, now = ProcessStatus(), False, 0.0
    for outcome in outcomes:
        if outcome == "replan":
            wanted = plans[1] if wanted is plans[0] else plans[0]
        elif outcome == "unplan":
            wanted = None
        elif outcome == "exit":
            alive = False
        elif outcome == "time":
            now += 40.0
        status = lifecycle.plan_changed(status, wanted)
        step = next_step(status, wanted, alive=alive, now=now)
        failure = None if outcome == "good" else "bad"
        if step.action is Action.START:
            assert not alive
            assert wanted is not None
            alive = True
            status = lifecycle.process_started(status, running(wanted, since=now))
        elif step.action is Action.CHECK_HEALTH and wanted is not None:
            status = lifecycle.health_checked(status, wanted.plan, failure=failure, now=now, policy=POLICY)
        elif step.action is Action.CHECK_COMPLETION:
            status = lifecycle.completion_checked(status, failure=failure, now=now, policy=POLICY)
        elif step.action is Action.REAP:
            assert not alive
            status = lifecycle.process_crashed(status, reason="r", message="", now=now, policy=POLICY)
        elif step.action in (Action.STOP, Action.RESTART):
            assert alive
            alive = False
            status = lifecycle.process_stopped(status)
        elif step.action is Action.REMOVE:
            assert not alive
        else:
            now = max(now, step.until or now)
        assert alive <= (status.running is not None), "a running process is always known"
        assert (status.phase is ProcessPhase.READY) <= (status.running is not None)
