"""Batches: which changes are combined, which runs are parallel, and which results are reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from automation.engine.batches import Batcher, BatchReport
from automation.engine.port import Batch, EngineCancelled, EngineFailed, ServiceOutcome, Stack, StateUnreachable
from automation.engine.submissions import Submission
from program.desired.keys import ServiceKey
from tests.fakes.engine import FakeEngine
from tests.fakes.rendered import BAD_PORT, key, service

TIMEOUT_S = 10.0


class Gate:
    """Blocks runs until it is opened, and counts the runs inside."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = False
        self.inside = 0
        self.most = 0

    def __call__(self, _: Batch) -> None:
        with self._changed:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open, TIMEOUT_S)
            self.inside -= 1

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def wait_inside(self, runs: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.inside >= runs, TIMEOUT_S)


class Outcomes:
    """Collects the outcomes that the batcher reports."""

    def __init__(self) -> None:
        self.told: list[tuple[ServiceKey, ServiceOutcome]] = []

    def __call__(self, of: Submission, outcome: ServiceOutcome) -> None:
        self.told.append((of.key, outcome))

    @property
    def keys(self) -> list[str]:
        return [at.name for at, _ in self.told]


class Unread(FakeEngine):
    """Its state is read once `read` is set; all requests until then go to their stacks together."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.read = threading.Event()

    def stacks(self) -> set[Stack]:
        assert self.read.wait(TIMEOUT_S)
        return super().stacks()


Make = Callable[..., Batcher]


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes()


@pytest.fixture
def batcher(outcomes: Outcomes) -> Iterator[Make]:
    with ExitStack() as stack:

        def make(engine: FakeEngine, **options: Any) -> Batcher:
            made = Batcher(engine, **{"on_outcome": outcomes, "gather_s": 0.0, **options})
            stack.callback(made.stop, 0.0)
            return made

        yield make


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def read(batcher: Batcher, *namespaces: str) -> None:
    """Wait until the batcher has read the states of namespaces, so that their runs start in the order of submission."""
    until(lambda: all(batcher.holds(key("s", namespace=namespace)) is not None for namespace in namespaces))


def test_changes_that_arrive_during_a_run_share_the_next_one(batcher: Make, outcomes: Outcomes) -> None:
    gate = Gate()
    engine = FakeEngine(before_run=gate)
    made = batcher(engine)
    made.submit(service("first"))
    gate.wait_inside(1)
    for number in range(20):
        made.submit(service(f"s-{number}"))
    made.remove(key("gone"))
    gate.open()
    assert made.drain(TIMEOUT_S)
    assert [len(batch.keys) for batch in engine.runs] == [1, 21]
    assert engine.runs[1].remove == (key("gone"),)
    assert len(outcomes.told) == 22


@pytest.mark.slow
def test_a_batch_waits_while_others_arrive_and_not_for_ever(batcher: Make) -> None:
    began: list[float] = []
    engine = FakeEngine(before_run=lambda _: began.append(time.monotonic()))
    made = batcher(engine, gather_s=1.0, gather_most_s=1.5)
    read(made, "default")
    ended = threading.Event()

    def submit_often() -> None:
        for number in range(1000):
            made.submit(service(f"s-{number:04}"))
            if ended.wait(0.01):
                return

    thread = threading.Thread(target=submit_often)
    first = time.monotonic()
    thread.start()
    try:
        until(lambda: began)
    finally:
        ended.set()
        thread.join()
    assert began[0] - first >= 1.5, "it waited longer than once"
    assert len(engine.runs[0].keys) > 1


def test_a_released_service_is_forgotten_and_its_objects_stay(batcher: Make, outcomes: Outcomes) -> None:
    engine = FakeEngine()
    made = batcher(engine)
    made.submit(service("a"))
    made.submit(service("b"))
    assert made.drain(TIMEOUT_S)
    before = dict(engine.objects)
    made.release(key("a"))
    made.remove(key("b"))
    assert made.drain(TIMEOUT_S)
    assert not made.holds(key("a")) and not made.holds(key("b"))
    assert engine.objects == {at: obj for at, obj in before.items() if at[2] == "a"}
    assert all(outcome.ok for _, outcome in outcomes.told)
    made.submit(service("a", replicas=2))
    assert made.drain(TIMEOUT_S) and made.holds(key("a")), "it can come back"


def test_what_is_withdrawn_right_before_a_run_is_not_made_and_has_no_outcome(batcher: Make, outcomes: Outcomes) -> None:
    asked: list[tuple[str, tuple[ServiceKey, ...]]] = []

    def withdrawn(namespace: str, submissions: tuple[Submission, ...]) -> frozenset[ServiceKey]:
        asked.append((namespace, tuple(each.key for each in submissions)))
        return frozenset({key("paused")})

    gate = Gate()
    engine = FakeEngine(before_run=gate)
    made = batcher(engine, withdrawn=withdrawn)
    made.submit(service("first"))
    gate.wait_inside(1)
    made.submit(service("paused"))
    made.submit(service("b"))
    made.remove(key("gone"))
    gate.open()
    assert made.drain(TIMEOUT_S)
    assert asked == [("default", (key("first"),)), ("default", (key("paused"), key("b")))]
    assert set(engine.runs[1].keys) == {key("b"), key("gone")}
    made.submit(service("paused"))
    assert made.drain(TIMEOUT_S)
    assert len(engine.runs) == 2, "where nothing is left there is no run"
    assert "paused" not in outcomes.keys


def test_where_nobody_can_say_what_is_withdrawn_nothing_is_made(batcher: Make, outcomes: Outcomes) -> None:
    def withdrawn(namespace: str, submissions: tuple[Submission, ...]) -> frozenset[ServiceKey]:
        raise EngineFailed("ApplyFailed", "the mode cannot be read")

    engine = FakeEngine()
    made = batcher(engine, withdrawn=withdrawn)
    made.submit(service("a"))
    assert made.drain(TIMEOUT_S)
    assert not engine.runs
    assert [outcome.error and outcome.error.message for _, outcome in outcomes.told] == ["the mode cannot be read"]


def test_the_latest_of_several_submissions_counts(batcher: Make) -> None:
    gate = Gate()
    engine = FakeEngine(before_run=gate)
    made = batcher(engine)
    made.submit(service("first"))
    gate.wait_inside(1)
    made.submit(service("a", replicas=1))
    made.remove(key("a"))
    made.submit(service("a", replicas=3))
    made.submit(service("b"))
    made.remove(key("b"))
    gate.open()
    assert made.drain(TIMEOUT_S)
    (last,) = engine.runs[1:]
    assert [rendered.key.name for rendered in last.apply] == ["a"]
    assert last.remove == (key("b"),)
    assert engine.objects["default", "Deployment", "a"]["spec"]["replicas"] == 3


def test_never_two_runs_of_one_stack_and_never_more_than_allowed(batcher: Make) -> None:
    gate = Gate()
    engine = FakeEngine(before_run=gate)
    made = batcher(engine, max_parallel=2)
    read(made, "a", "b", "c")
    for namespace in ("a", "a", "b", "c"):
        made.submit(service("s", namespace=namespace))
    gate.wait_inside(2)
    made.submit(service("t", namespace="a"))
    time.sleep(0.1)
    assert gate.inside == 2
    assert {batch.stack.namespace for batch in engine.runs} == {"a", "b"}
    gate.open()
    assert made.drain(TIMEOUT_S)
    assert gate.most == 2
    assert sorted(batch.stack.namespace for batch in engine.runs) == ["a", "a", "b", "c"]


def test_a_key_is_busy_from_its_submission_until_just_before_its_outcome(batcher: Make) -> None:
    gate = Gate()
    seen: list[bool] = []
    made: Batcher = batcher(FakeEngine(before_run=gate), on_outcome=lambda of, _: seen.append(made.busy(of.key)))
    assert made.idle()
    made.submit(service("a"))
    gate.wait_inside(1)
    made.submit(service("b"))
    assert made.busy(key("a"))
    assert made.busy(key("b"))
    assert not made.busy(key("c"))
    assert not made.idle()
    gate.open()
    assert made.drain(TIMEOUT_S)
    assert made.idle()
    assert seen == [False, False]


def test_a_key_submitted_again_during_its_run_stays_busy(batcher: Make) -> None:
    gate = Gate()
    seen: list[bool] = []
    made: Batcher = batcher(FakeEngine(before_run=gate), on_outcome=lambda of, _: seen.append(made.busy(of.key)))
    made.submit(service("a"))
    gate.wait_inside(1)
    made.submit(service("a", replicas=2))
    gate.open()
    assert made.drain(TIMEOUT_S)
    assert seen == [True, False]


def test_one_failing_service_is_told_alone(batcher: Make, outcomes: Outcomes) -> None:
    reports: list[BatchReport] = []
    engine = Unread()
    made = batcher(engine, on_batch=reports.append)
    made.submit(service("good"))
    made.submit(service("bad", port=BAD_PORT))
    engine.read.set()
    assert made.drain(TIMEOUT_S)
    assert {at.name: outcome.ok for at, outcome in outcomes.told} == {"good": True, "bad": False}
    assert [(report.services, report.failed, report.result) for report in reports] == [(2, 1, "partial")]


@pytest.mark.parametrize(
    ("raised", "message"),
    [(EngineFailed("ApplyFailed", "no disk"), "no disk"), (RuntimeError("a defect"), "RuntimeError: a defect")],
)
@pytest.mark.slow
def test_a_run_that_fails_as_a_whole_is_told_to_all_and_stops_nothing(
    batcher: Make, outcomes: Outcomes, raised: Exception, message: str
) -> None:
    failing = [True]

    def fail_once(_: Batch) -> None:
        if failing.pop() if failing else False:
            raise raised

    engine = Unread(before_run=fail_once)
    made = batcher(engine)
    made.submit(service("a"))
    made.submit(service("b"))
    engine.read.set()
    assert made.drain(TIMEOUT_S)
    assert [(at.name, outcome.ok) for at, outcome in outcomes.told] == [("a", False), ("b", False)]
    assert all(outcome.error is not None and outcome.error.message == message for _, outcome in outcomes.told)
    made.submit(service("a"))
    assert made.drain(TIMEOUT_S)
    assert outcomes.told[-1][1].ok


def test_a_listener_that_raises_does_not_stop_the_others(batcher: Make) -> None:
    told: list[str] = []

    def listen(of: Submission, _: ServiceOutcome) -> None:
        told.append(of.key.name)
        if of.key.name == "a":
            raise ValueError("a defect of the listener")

    made = batcher(FakeEngine(), gather_s=0.1, on_outcome=listen)
    made.submit(service("a"))
    made.submit(service("b"))
    assert made.drain(TIMEOUT_S)
    assert told == ["a", "b"]


def test_stopping_lets_a_run_end_and_drops_what_waits(outcomes: Outcomes) -> None:
    gate = Gate()
    engine = FakeEngine(before_run=gate)
    made = Batcher(engine, on_outcome=outcomes, gather_s=0.0)
    made.submit(service("a"))
    gate.wait_inside(1)
    made.submit(service("b"))
    stopping = threading.Thread(target=made.stop, args=(TIMEOUT_S,))
    stopping.start()
    until(lambda: not made.busy(key("b")))
    gate.open()
    stopping.join(30.0)
    assert outcomes.keys == ["a"]
    assert outcomes.told[0][1].ok
    made.submit(service("c"))
    assert made.idle()
    assert len(engine.runs) == 1


def test_stopping_cancels_a_run_that_takes_longer(outcomes: Outcomes) -> None:
    gate = Gate()
    made = Batcher(FakeEngine(before_run=gate), on_outcome=outcomes, gather_s=0.0)
    made.submit(service("a"))
    gate.wait_inside(1)
    stopping = threading.Thread(target=made.stop, args=(0.05,))
    stopping.start()
    assert made._cancel.wait(TIMEOUT_S)
    gate.open()
    stopping.join(30.0)
    assert isinstance(outcomes.told[0][1].error, EngineCancelled)


def test_the_place_of_a_removed_service_is_free_again(batcher: Make) -> None:
    engine = FakeEngine()
    made = batcher(engine, capacity=1)
    made.submit(service("a"))
    assert made.drain(TIMEOUT_S)
    assert made.holds(key("a"))
    made.remove(key("a"))
    assert made.drain(TIMEOUT_S)
    assert not made.holds(key("a"))
    made.submit(service("b"))
    assert made.drain(TIMEOUT_S)
    assert [batch.stack.shard for batch in engine.runs] == [0, 0, 0]


def test_a_large_namespace_runs_in_parallel_parts(batcher: Make) -> None:
    gate = Gate()
    engine = Unread(before_run=gate)
    made = batcher(engine, capacity=30, max_parallel=2)
    for number in range(20):
        made.submit(service(f"s-{number}"))
    engine.read.set()
    gate.wait_inside(2)
    gate.open()
    assert made.drain(TIMEOUT_S)
    assert sorted((batch.stack.name, len(batch.apply)) for batch in engine.runs) == [("default", 10), ("default.1", 10)]
    assert len(engine.objects) == 40


class Away(FakeEngine):
    """An engine whose state can be unavailable; then its resources are unknown."""

    away = False

    def sizes(self, stack: Stack) -> dict[ServiceKey, int]:
        if self.away:
            raise StateUnreachable("the state is away")
        return super().sizes(stack)


def test_a_state_that_is_away_fails_a_submission_and_the_next_one_is_made(batcher: Make, outcomes: Outcomes) -> None:
    engine = Away()
    engine.up(Batch(Stack("default"), (service("old"),)))
    engine.away = True
    made = batcher(engine)
    made.submit(service("a"))
    made.remove(key("old"))
    assert made.drain(TIMEOUT_S)
    assert {at.name: type(outcome.error) for at, outcome in outcomes.told} == dict.fromkeys("a", StateUnreachable) | {
        "old": StateUnreachable
    }
    assert made.newest(key("a")) is None, "no outcome is awaited any more"
    engine.away = False
    made.submit(service("a"))
    assert made.drain(TIMEOUT_S)
    assert outcomes.told[-1] == (key("a"), ServiceOutcome(key("a"), ok=True, changes=outcomes.told[-1][1].changes))


def test_nothing_waits_for_a_state_that_is_slow(batcher: Make) -> None:
    reading, read = threading.Event(), threading.Event()

    class Slow(FakeEngine):
        def sizes(self, stack: Stack) -> dict[ServiceKey, int]:
            reading.set()
            assert read.wait(TIMEOUT_S)
            return super().sizes(stack)

    engine = Slow()
    engine.up(Batch(Stack("default"), (service("old"),)))
    made = batcher(engine)
    began = time.monotonic()
    assert made.holds(key("old")) is None, "it is being read"
    made.submit(service("a"))
    made.submit(service("elsewhere", namespace="other"))
    assert reading.wait(TIMEOUT_S) and made.busy(key("a")) and not made.idle()
    assert time.monotonic() - began < TIMEOUT_S / 2
    read.set()
    assert made.drain(TIMEOUT_S)
    assert made.holds(key("old")) is True and made.holds(key("a")) is True and made.holds(key("b")) is False
    assert {batch.stack.namespace for batch in engine.runs[1:]} == {"default", "other"}


def test_namespaces_are_read_in_parallel_and_all_are_told(batcher: Make) -> None:
    together = threading.Barrier(3)

    class Counted(FakeEngine):
        def sizes(self, stack: Stack) -> dict[ServiceKey, int]:
            together.wait(TIMEOUT_S)
            return super().sizes(stack)

    engine = Counted()
    for name in ("a", "b", "c", "unwanted"):
        engine.up(Batch(Stack(name), (service("s", namespace=name),)))
    told: dict[str, frozenset[ServiceKey]] = {}
    made = batcher(engine, on_known=told.__setitem__)
    assert made.read_all(lambda namespace: namespace != "unwanted") == 3
    assert told == {name: frozenset({key("s", namespace=name)}) for name in ("a", "b", "c")}


def test_whether_a_service_is_held_waits_for_no_run(batcher: Make, outcomes: Outcomes) -> None:
    gate = Gate()

    class Failing(FakeEngine):
        """After a failed run it reads its state again, which waits for the next run, as Pulumi does."""

        def __init__(self) -> None:
            super().__init__()
            self.up(Batch(Stack("default"), (service("old"),)))
            self._before_run = self.fail

        def fail(self, batch: Batch) -> None:
            if len(self.runs) > 2:
                gate(batch)
            raise EngineFailed("ApplyFailed", "no")

        def services(self, stack: Stack) -> set[ServiceKey]:
            if len(self.runs) > 2:
                time.sleep(TIMEOUT_S)
            return super().services(stack)

    made = batcher(Failing())
    made.submit(service("a"))
    assert made.drain(TIMEOUT_S)
    made.submit(service("a"))
    gate.wait_inside(1)
    began = time.monotonic()
    assert made.holds(key("old")) is True and made.holds(key("a")) is True and made.holds(key("b")) is False
    assert time.monotonic() - began < TIMEOUT_S / 2
    gate.open()
    assert made.drain(TIMEOUT_S)
    assert made.holds(key("a")) is True, "the progress of the run is unknown"


def test_an_outcome_is_told_of_the_submission_that_it_belongs_to(batcher: Make) -> None:
    gate = Gate()
    told: list[tuple[Submission, bool]] = []
    made: Batcher = batcher(
        FakeEngine(before_run=gate), on_outcome=lambda of, _: told.append((of, made.newest(of.key) is of))
    )
    first = made.submit(service("a"), asked=("v1",))
    gate.wait_inside(1)
    second = made.submit(service("a", replicas=2), asked=("v2",))
    assert made.newest(key("a")) is second and first.number < second.number
    gate.open()
    assert made.drain(TIMEOUT_S)
    assert told == [(first, False), (second, True)]
    assert first.fingerprint != second.fingerprint and made.newest(key("a")) is None


def test_the_stacks_of_a_namespace_that_is_gone_are_dropped_once_they_are_empty(batcher: Make) -> None:
    engine = FakeEngine()
    made = batcher(engine, capacity=1)
    for name in ("a", "b"):
        made.submit(service(name))
    assert made.drain(TIMEOUT_S)
    assert engine.stacks() == {Stack("default"), Stack("default", 1)}
    assert not made.discard_namespace("default"), "it holds two services"
    for name in ("a", "b"):
        made.remove(key(name))
    assert made.drain(TIMEOUT_S)
    for stack in engine.stacks():
        engine.release(stack, [])  # the objects that its services shared
    assert made.discard_namespace("default")
    assert not engine.stacks()
    made.submit(service("a"))
    assert made.drain(TIMEOUT_S)
    assert engine.stacks() == {Stack("default")}, "a namespace may come again"
