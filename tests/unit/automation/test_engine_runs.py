"""How long a service needs no further run of the engine, when it may be submitted again, and the record of failures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from automation.engine.port import AccessoriesRefused, EngineFailed, StackLocked
from automation.engine.runs import (
    CACHE_LAG_S,
    QUIET_S,
    STALLED_AFTER,
    EngineRuns,
    hold_off_s,
    problem_of_run,
    refused_by,
)
from automation.engine.submissions import Asked, Removal, Submission
from components.rendered import RenderedService
from program.desired.facts import RefusedObject
from program.desired.keys import ServiceKey

KEY = ServiceKey("llmkube", "ns", "svc")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


class Requests(dict[ServiceKey, Submission]):
    """The newest submission of each service, as the Batcher keeps it."""

    def submit(self, fingerprint: str, asked: Asked, *, now: datetime) -> Submission:
        rendered = RenderedService(KEY, (), (), fingerprint)
        self[KEY] = Submission(len(self), KEY, rendered, now, asked)
        return self[KEY]


def failed(runs: EngineRuns, at: datetime, fingerprint: str = "f1") -> None:
    runs.record_outcome(Requests().submit(fingerprint, ("v1",), now=at), EngineFailed("ApplyFailed", "no"), now=at)


def test_a_service_is_quiet_while_the_engine_works_on_just_what_is_asked() -> None:
    requests = Requests()
    runs = EngineRuns(requests.get)
    assert runs.state(KEY).quiet_for_s(now=NOW) <= 0
    requests.submit("f1", ("v1",), now=NOW)
    assert runs.state(KEY).pending_fingerprint == "f1"
    assert runs.state(KEY).quiet_for_s(("v1",), now=later(1)) == QUIET_S - 1
    assert runs.state(KEY).quiet_for_s(("v2",), now=later(1)) <= 0, "edited meanwhile"
    assert runs.state(KEY).quiet_for_s(("v1",), now=later(QUIET_S + 1)) <= 0, "it takes its time, and that is news"
    runs.record_outcome(requests.pop(KEY), None, now=later(2))
    assert runs.state(KEY).quiet_for_s(now=later(2)) <= 0


def test_the_failure_of_a_run_is_over_when_its_objects_exist() -> None:
    runs = EngineRuns(Requests().get)
    failed(runs, NOW)
    runs.clear_failure(KEY, "f2")
    assert problem_of_run(runs.state(KEY).last_run, "f1") is not None, "another version exists"
    runs.clear_failure(KEY, "f1")
    last = runs.state(KEY).last_run
    assert problem_of_run(last, "f1") is None
    assert hold_off_s(last, "f1", now=later(CACHE_LAG_S)) == 0.0, "no back-off is left"
    failed(runs, later(9))
    state = runs.state(KEY).last_run
    assert state is not None and state.failures == 1, "the next failure is the first in a row"


def test_a_removal_is_no_reason_to_be_quiet() -> None:
    runs = EngineRuns({KEY: Submission(1, KEY, Removal.REMOVE, NOW)}.get)
    assert runs.state(KEY).quiet_for_s(now=NOW) <= 0 and not runs.state(KEY).pending_fingerprint


def test_what_was_just_applied_is_not_applied_again_before_the_caches_show_it() -> None:
    runs = EngineRuns(Requests().get)
    runs.record_outcome(Requests().submit("f1", ("v1",), now=NOW), None, now=NOW)
    assert hold_off_s(runs.state(KEY).last_run, "f1", now=later(0.1)) == CACHE_LAG_S
    assert hold_off_s(runs.state(KEY).last_run, "f1", now=later(CACHE_LAG_S)) == 0
    assert hold_off_s(runs.state(KEY).last_run, "f2", now=later(0.1)) == 0, "a change need not wait"


def test_failures_in_a_row_wait_longer_and_end_as_stalled() -> None:
    runs, at, waits = EngineRuns(Requests().get), NOW, []
    for _ in range(STALLED_AFTER):
        problem = problem_of_run(runs.state(KEY).last_run, "f1")
        assert problem is None or not problem.terminal
        failed(runs, at)
        waits.append(hold_off_s(runs.state(KEY).last_run, "f1", now=at))
        at += timedelta(seconds=waits[-1])
        assert hold_off_s(runs.state(KEY).last_run, "f1", now=at) == 0
    assert waits == sorted(waits) and waits[-1] > 8 * waits[0]
    problem = problem_of_run(runs.state(KEY).last_run, "f1")
    assert problem is not None and problem.terminal
    assert problem_of_run(runs.state(KEY).last_run, "f2") is None, "an edit is judged anew"
    failed(runs, at, "f2")
    problem = problem_of_run(runs.state(KEY).last_run, "f2")
    assert problem is not None and not problem.terminal


def test_an_outcome_counts_for_the_fingerprint_that_was_submitted() -> None:
    requests = Requests()
    runs = EngineRuns(requests.get)
    old = requests.submit("f1", ("v1",), now=NOW)
    requests.submit("f2", ("v2",), now=later(1))
    runs.record_outcome(old, EngineFailed("ApplyFailed", "no"), now=later(2))
    assert (
        problem_of_run(runs.state(KEY).last_run, "f1") is not None
        and problem_of_run(runs.state(KEY).last_run, "f2") is None
    )
    assert runs.state(KEY).pending_fingerprint == "f2"


def test_what_is_forgotten_is_judged_anew() -> None:
    runs = EngineRuns(Requests().get)
    failed(runs, NOW)
    runs.drop_service(KEY)
    assert runs.state(KEY).last_run is None


def test_a_removal_that_fails_is_tried_again_with_longer_and_longer_waits() -> None:
    runs = EngineRuns(Requests().get)
    locked = StackLocked("locked", by="ann", since="now")
    waits = []
    for _ in range(12):
        runs.drop_service(KEY)  # each attempt drops the record of the service, but not the count of its failed removals
        waits.append(runs.record_removal(KEY, EngineFailed("ApplyFailed", "no")))
    assert waits == sorted(waits) and 0 < waits[0] <= 1.0 and waits[-1] > 100 * waits[0]
    assert runs.record_removal(KEY, locked) <= locked.retry_cap_s, "no event reports the end of another lock"
    assert runs.record_removal(KEY, None) == 0
    assert runs.record_removal(KEY, locked) == waits[0], "the next removal of a service of this name starts anew"


def test_a_refused_accessory_is_no_problem_of_the_service_and_only_its_own_tries_wait() -> None:
    runs = EngineRuns(Requests().get)
    error = AccessoriesRefused(
        [RefusedObject(kind="HorizontalPodAutoscaler", name="svc", reason="ForeignObject", message="held by somebody")]
    )
    for at in range(STALLED_AFTER + 1):
        runs.record_outcome(Requests().submit("f1", ("v1",), now=later(at)), error, now=later(at))
    assert problem_of_run(runs.state(KEY).last_run, "f1") is None
    (refused,) = refused_by(runs.state(KEY).last_run, "f1")
    assert (refused.kind, refused.name, refused.reason) == ("HorizontalPodAutoscaler", "svc", "ForeignObject")
    assert refused_by(runs.state(KEY).last_run, "f2") == ()
    now = later(STALLED_AFTER + CACHE_LAG_S)
    assert hold_off_s(runs.state(KEY).last_run, "f1", now=now, only_accessories=True) > 10
    assert hold_off_s(runs.state(KEY).last_run, "f1", now=now) == 0, "what pods need is made at once"
    runs.record_outcome(Requests().submit("f1", ("v1",), now=now), None, now=now)
    assert refused_by(runs.state(KEY).last_run, "f1") == ()
