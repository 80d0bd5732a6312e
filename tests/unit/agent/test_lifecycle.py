"""The life of one process, told in values and a clock of its own: no thread, no process, no waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import FilePlan, ProcessPhase, ProcessPlan, ProcessReason
from agent.server.processes import lifecycle
from agent.server.processes.lifecycle import Do, Goal, Life, Policy, Running, Step

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


def goal(**changes: Any) -> Goal:
    planned = plan(**changes)
    return Goal(planned, lifecycle.launch_hash(planned, "10.0.0.1"))


def running(wanted: Goal, *, since: float = 0.0, proved: bool = False) -> Running:
    return Running(
        pid=7, mark="m", port=18000, launch_hash=wanted.launch_hash, since=since, started_at="", proved=proved
    )


def next_step(life: Life, wanted: Goal | None, *, alive: bool = True, now: float = 0.0) -> Step:
    return lifecycle.next_step(life, wanted, alive=alive, now=now, policy=POLICY)


def started(wanted: Goal) -> Life:
    return lifecycle.launched(lifecycle.adjusted(Life(), wanted), running(wanted))


def ready(wanted: Goal, *, now: float = 0.0) -> Life:
    life = lifecycle.probed(started(wanted), wanted.plan, failure=None, now=now, policy=POLICY)
    return lifecycle.proved(life, failure=None, now=now, policy=POLICY)


def test_a_new_process_fetches_its_file_then_starts() -> None:
    wanted = goal(file=FILE)
    life = lifecycle.adjusted(Life(), wanted)
    assert next_step(life, wanted).do is Do.FETCH
    life = lifecycle.fetched(lifecycle.fetching(life), "/store/k/a.gguf", {})
    assert next_step(life, wanted).do is Do.LAUNCH


def test_a_process_is_ready_after_health_and_one_completion() -> None:
    wanted = goal()
    life = started(wanted)
    assert life.phase is ProcessPhase.STARTING
    assert next_step(life, wanted).do is Do.PROBE
    life = lifecycle.probed(life, wanted.plan, failure="503", now=0.0, policy=POLICY)
    assert next_step(life, wanted, now=0.0) == Step(Do.WAIT, POLICY.first_probe_interval_s)
    life = lifecycle.probed(life, wanted.plan, failure="503", now=60.0, policy=POLICY)
    assert next_step(life, wanted, now=60.0) == Step(Do.WAIT, 60.0 + POLICY.starting_probe_interval_s)
    life = lifecycle.probed(life, wanted.plan, failure=None, now=1.0, policy=POLICY)
    assert life.phase is ProcessPhase.STARTING, "health alone is not service"
    assert next_step(life, wanted, now=1.0).do is Do.PROVE
    life = lifecycle.proved(life, failure=None, now=2.0, policy=POLICY)
    assert life.phase is ProcessPhase.READY
    assert next_step(life, wanted, now=2.0) == Step(Do.WAIT, 2.0 + POLICY.probe_interval_s)
    assert next_step(life, wanted, now=7.0).do is Do.PROBE


def test_a_completion_is_asked_for_once_per_start() -> None:
    wanted = goal()
    life = ready(wanted)
    for second in (5, 10, *range(20, 100, 10)):
        assert next_step(life, wanted, now=float(second)).do is Do.PROBE
        life = lifecycle.probed(life, wanted.plan, failure=None, now=float(second), policy=POLICY)


def test_a_steady_process_is_asked_less_often() -> None:
    wanted = goal()
    life = lifecycle.probed(ready(wanted), wanted.plan, failure=None, now=59.0, policy=POLICY)
    assert next_step(life, wanted, now=59.0) == Step(Do.WAIT, 59.0 + POLICY.probe_interval_s)
    life = lifecycle.probed(life, wanted.plan, failure=None, now=64.0, policy=POLICY)
    assert next_step(life, wanted, now=64.0) == Step(Do.WAIT, 64.0 + POLICY.stable_probe_interval_s)
    life = lifecycle.probed(life, wanted.plan, failure="no answer", now=74.0, policy=POLICY)
    assert next_step(life, wanted, now=74.0) == Step(Do.WAIT, 74.0 + POLICY.failing_probe_interval_s)


def test_a_failed_completion_is_tried_again_until_the_start_takes_too_long() -> None:
    wanted = goal()
    life = lifecycle.probed(started(wanted), wanted.plan, failure=None, now=1.0, policy=POLICY)
    life = lifecycle.proved(life, failure="500", now=1.0, policy=POLICY)
    assert (life.phase, life.reason) == (ProcessPhase.STARTING, ProcessReason.COMPLETION_FAILED)
    assert next_step(life, wanted, now=3.0).do is Do.PROBE
    assert next_step(life, wanted, now=61.0).do is Do.TERMINATE
    assert lifecycle.stop_cause(life, wanted)[0] is ProcessReason.STARTUP_TIMEOUT


def test_some_failed_health_checks_take_readiness_away_and_one_good_one_returns_it() -> None:
    wanted = goal()
    life = ready(wanted)
    for number in range(POLICY.unhealthy_after):
        assert life.phase is ProcessPhase.READY, number
        life = lifecycle.probed(life, wanted.plan, failure="timeout", now=10.0 + number, policy=POLICY)
    assert (life.phase, life.reason) == (ProcessPhase.UNHEALTHY, ProcessReason.NOT_RESPONDING)
    life = lifecycle.probed(life, wanted.plan, failure=None, now=20.0, policy=POLICY)
    assert (life.phase, life.reason, life.restarts) == (ProcessPhase.READY, "", 0)


def test_many_failed_health_checks_stop_the_process_before_another_starts() -> None:
    wanted = goal()
    life = ready(wanted)
    for number in range(POLICY.restart_after):
        life = lifecycle.probed(life, wanted.plan, failure="timeout", now=10.0 + number, policy=POLICY)
    assert next_step(life, wanted, now=20.0).do is Do.TERMINATE
    life = lifecycle.stopping(life)
    assert next_step(life, wanted, now=20.0).do is not Do.LAUNCH, "the old one still runs"
    life = lifecycle.crashed(life, reason="NotResponding", message="", now=30.0, policy=POLICY)
    assert next_step(life, wanted, now=30.0).do is Do.WAIT
    assert next_step(life, wanted, now=31.0).do is Do.LAUNCH


def test_an_exit_is_noticed_whatever_else_is_due() -> None:
    wanted = goal()
    assert next_step(ready(wanted), wanted, alive=False, now=0.0).do is Do.BURY


def test_crashes_in_a_row_wait_longer_each_time_and_end_as_failed() -> None:
    wanted = goal()
    life, now, waits = started(wanted), 0.0, []
    while life.phase is not ProcessPhase.FAILED:
        life = lifecycle.crashed(life, reason="ProcessExited", message="boom", now=now, policy=POLICY)
        if life.phase is ProcessPhase.BACKING_OFF:
            waits.append(life.wait_until - now)
            now = life.wait_until
            life = lifecycle.launched(life, running(wanted, since=now))
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert life.reason == ProcessReason.CRASH_LOOP
    assert "boom" in life.message
    assert next_step(life, wanted, now=now + 1e6) == Step(Do.WAIT), "only an edit helps"


def test_a_failed_process_starts_again_when_its_plan_changes() -> None:
    wanted, other = goal(), goal(argv=("llama-server", "--port", "{port}", "--fixed"))
    failed = replace(lifecycle.adjusted(Life(), wanted), phase=ProcessPhase.FAILED, crashes=6)
    assert lifecycle.adjusted(failed, wanted) is failed
    fresh = lifecycle.adjusted(failed, other)
    assert next_step(fresh, other).do is Do.LAUNCH
    assert fresh.crashes == 0


def test_a_crash_after_a_stable_time_forgives_the_earlier_ones() -> None:
    wanted = goal()
    life = replace(ready(wanted, now=100.0), crashes=4)
    soon = lifecycle.crashed(life, reason="r", message="", now=110.0, policy=POLICY)
    late = lifecycle.crashed(life, reason="r", message="", now=100.0 + POLICY.stable_s, policy=POLICY)
    assert (soon.crashes, late.crashes) == (5, 1)
    assert (soon.restarts, late.restarts) == (1, 1)


def test_a_changed_plan_stops_the_old_process_first_and_counts_no_crash() -> None:
    wanted, other = goal(), goal(env={"A": "1"})
    life = lifecycle.adjusted(ready(wanted), other)
    assert (life.phase, life.reason) == (ProcessPhase.STOPPING, ProcessReason.REPLACING)
    assert next_step(life, other).do is Do.TERMINATE
    assert lifecycle.stop_cause(life, other) == (None, "")
    life = lifecycle.stopped(life)
    assert next_step(life, other).do is Do.LAUNCH
    assert (life.crashes, life.restarts) == (0, 0)


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
    assert goal(**changes).launch_hash == goal().launch_hash


@pytest.mark.parametrize("changes", [{"argv": ("x",)}, {"env": {"A": "b"}}, {"file": FILE}, {"runtime": "generic"}])
def test_what_the_process_sees_replaces_it(changes: dict[str, Any]) -> None:
    assert goal(**changes).launch_hash != goal().launch_hash


def test_a_size_that_is_learnt_later_replaces_nothing() -> None:
    sized = FILE.model_copy(update={"size_bytes": 12})
    assert goal(file=FILE).launch_hash == goal(file=sized).launch_hash


def test_another_address_replaces_only_a_process_that_was_told_its_address() -> None:
    told = plan(argv=("llama-server", "--host", "{host}"))
    assert lifecycle.launch_hash(told, "10.0.0.1") != lifecycle.launch_hash(told, "10.0.0.2")
    assert lifecycle.launch_hash(plan(), "10.0.0.1") == lifecycle.launch_hash(plan(), "10.0.0.2")


def test_an_unwanted_process_is_stopped_then_forgotten() -> None:
    life = ready(goal())
    assert next_step(life, None).do is Do.TERMINATE
    assert next_step(life, None, alive=False).do is Do.BURY
    assert next_step(lifecycle.stopped(life), None).do is Do.FORGET


def test_a_failed_process_that_is_no_longer_wanted_is_forgotten() -> None:
    assert next_step(Life(phase=ProcessPhase.FAILED), None).do is Do.FORGET


def test_an_adopted_process_that_had_served_counts_as_ready_and_is_probed_at_once() -> None:
    wanted = goal()
    life = lifecycle.adopted(Life(), running(wanted, proved=True), now=50.0)
    assert life.phase is ProcessPhase.READY
    assert next_step(lifecycle.adjusted(life, wanted), wanted, now=50.0).do is Do.PROBE
    unproved = lifecycle.adopted(Life(), running(wanted), now=50.0)
    assert unproved.phase is ProcessPhase.STARTING
    assert next_step(unproved, wanted, now=100.0).do is Do.PROBE, "its start counts from the adoption"


def test_a_failed_fetch_is_tried_again_without_end_and_forgotten_when_it_succeeds() -> None:
    wanted = goal(file=FILE)
    life, now = lifecycle.adjusted(Life(), wanted), 0.0
    for _ in range(20):
        life = lifecycle.put_off(life, reason="SourceUnreachable", message="", now=now, policy=POLICY)
        assert life.phase is ProcessPhase.BACKING_OFF
        assert life.wait_until - now <= POLICY.retry_cap_s
        now = life.wait_until
        assert next_step(life, wanted, now=now).do is Do.FETCH
    life = lifecycle.fetched(life, "/a", {})
    assert (life.attempts, life.reason) == (0, "")


def test_a_launch_fetches_again_because_the_file_may_have_gone_since() -> None:
    wanted = goal(file=FILE)
    life = lifecycle.launched(lifecycle.fetched(lifecycle.adjusted(Life(), wanted), "/a", {}), running(wanted))
    life = lifecycle.crashed(life, reason="r", message="", now=0.0, policy=POLICY)
    assert next_step(life, wanted, now=life.wait_until).do is Do.FETCH


@given(failures=st.integers(min_value=1, max_value=10_000))
def test_backoff_grows_and_is_capped(failures: int) -> None:
    wait = lifecycle.backoff_s(failures, base_s=1.0, cap_s=60.0)
    assert 1.0 <= wait <= 60.0
    assert wait <= lifecycle.backoff_s(failures + 1, base_s=1.0, cap_s=60.0)


OUTCOMES = st.lists(
    st.sampled_from(["good", "bad", "exit", "stop", "replan", "unplan", "time"]), min_size=1, max_size=60
)


@given(outcomes=OUTCOMES)
def test_whatever_happens_never_two_processes_run_and_none_is_lost(outcomes: list[str]) -> None:
    """Drive the machine with any outcomes: a launch only ever follows the end of the process before it."""
    goals = [goal(), goal(env={"A": "1"})]
    wanted: Goal | None = goals[0]
    life, alive, now = Life(), False, 0.0
    for outcome in outcomes:
        if outcome == "replan":
            wanted = goals[1] if wanted is goals[0] else goals[0]
        elif outcome == "unplan":
            wanted = None
        elif outcome == "exit":
            alive = False
        elif outcome == "time":
            now += 40.0
        life = lifecycle.adjusted(life, wanted)
        step = lifecycle.next_step(life, wanted, alive=alive, now=now, policy=POLICY)
        failure = None if outcome == "good" else "bad"
        if step.do is Do.LAUNCH:
            assert not alive
            assert wanted is not None
            alive = True
            life = lifecycle.launched(life, running(wanted, since=now))
        elif step.do is Do.PROBE and wanted is not None:
            life = lifecycle.probed(life, wanted.plan, failure=failure, now=now, policy=POLICY)
        elif step.do is Do.PROVE:
            life = lifecycle.proved(life, failure=failure, now=now, policy=POLICY)
        elif step.do is Do.BURY:
            assert not alive
            life = lifecycle.crashed(life, reason="r", message="", now=now, policy=POLICY)
        elif step.do is Do.TERMINATE:
            assert alive
            alive = False
            life = lifecycle.stopped(life)
        elif step.do is Do.FORGET:
            assert not alive
        else:
            now = max(now, step.until or now)
        assert alive <= (life.running is not None), "a running process is always known"
        assert (life.phase is ProcessPhase.READY) <= (life.running is not None)
