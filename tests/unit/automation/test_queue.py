"""The work queue: which keys a worker gets, when, and which it never gets."""

from __future__ import annotations

import threading
import time
from collections import Counter
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from automation.workqueue.backoff import Backoff
from automation.workqueue.queue import WorkQueue


class Clock:
    """Monotonic seconds that only the test advances."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue[str]:
    return WorkQueue(clock=clock, backoff=Backoff(base_s=1.0, cap_s=8.0, dice=lambda: 0.0))


def take(queue: WorkQueue[str]) -> str | None:
    return queue.get(timeout_s=0)


def test_keys_come_in_the_order_they_were_added(queue: WorkQueue[str]) -> None:
    for key in "cab":
        queue.add(key)
    assert len(queue) == 3
    assert [take(queue) for _ in range(4)] == ["c", "a", "b", None]


def test_a_key_added_twice_is_taken_once(queue: WorkQueue[str]) -> None:
    queue.add("a")
    queue.add("a")
    assert take(queue) == "a"
    queue.done("a")
    assert take(queue) is None


def test_a_condition_is_evaluated_when_the_key_is_due(queue: WorkQueue[str], clock: Clock) -> None:
    wanted = {"a": True, "b": True}
    for key in wanted:
        queue.add_after_if(key, 10.0, partial(wanted.__getitem__, key))
    wanted["b"] = False
    assert take(queue) is None
    clock.now_s += 10.0
    assert [take(queue), take(queue)] == ["a", None]
    assert not queue.idle()
    queue.done("a")
    assert queue.idle()


def test_of_two_conditions_for_a_key_the_last_counts(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after_if("a", 5.0, lambda: True)
    queue.add_after_if("a", 20.0, lambda: True)
    clock.now_s += 10.0
    assert take(queue) is None
    clock.now_s += 10.0
    assert take(queue) == "a"


def test_a_refused_condition_keeps_a_delayed_key(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after_if("a", 5.0, lambda: False)
    queue.add_after("a", 8.0)
    clock.now_s += 6.0
    assert take(queue) is None
    clock.now_s += 2.0
    assert take(queue) == "a"


def test_a_worker_wakes_for_a_key_with_a_condition() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after_if("a", 0.05, lambda: True)
    assert queue.get(timeout_s=30.0) == "a"


def test_keys_that_were_put_back_let_the_others_go_first_and_have_each_fourth_turn(queue: WorkQueue[str]) -> None:
    for key in ("old-1", "edited", "old-2", "old-3"):
        queue.add(key)
    assert queue.put_back(lambda key: key.startswith("old")) == 3
    assert len(queue) == 4
    for number in range(6):
        queue.add(f"new-{number}")
    assert [take(queue) for _ in range(4)] == ["edited", "new-0", "new-1", "old-1"]
    queue.add("old-3")  # it was edited, too
    assert [take(queue) for _ in range(8)] == ["new-2", "new-3", "new-4", "old-2", "new-5", "old-3", None, None]


def test_a_key_that_was_put_back_and_added_again_is_taken_once(queue: WorkQueue[str]) -> None:
    queue.add("a")
    assert queue.put_back(lambda _: True) == 1
    queue.add("a")
    assert [take(queue), take(queue)] == ["a", None]
    queue.done("a")
    assert queue.idle()


def test_a_key_in_progress_is_not_given_to_a_second_worker(queue: WorkQueue[str]) -> None:
    queue.add("a")
    assert take(queue) == "a"
    queue.add("a")
    assert take(queue) is None
    assert len(queue) == 0


def test_a_key_added_while_in_progress_comes_again_after_done(queue: WorkQueue[str]) -> None:
    queue.add("a")
    take(queue)
    queue.add("a")
    queue.add("a")
    queue.done("a")
    assert take(queue) == "a"
    queue.done("a")
    assert take(queue) is None
    assert queue.idle()


def test_a_delayed_key_comes_when_it_is_due_and_not_before(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after("a", 5.0)
    assert (take(queue), len(queue), queue.idle()) == (None, 0, True)
    clock.now_s += 4.9
    assert take(queue) is None
    clock.now_s += 0.2
    assert len(queue) == 1
    assert take(queue) == "a"


def test_of_several_delays_the_earliest_holds_and_counts_once(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after("a", 9.0)
    queue.add_after("a", 2.0)
    queue.add_after("a", 5.0)
    clock.now_s += 2.0
    assert take(queue) == "a"
    queue.done("a")
    clock.now_s += 10.0
    assert take(queue) is None


def test_a_delay_of_nothing_is_an_add(queue: WorkQueue[str]) -> None:
    queue.add_after("a", 0.0)
    assert take(queue) == "a"


def test_failures_back_off_until_forgotten(queue: WorkQueue[str], clock: Clock) -> None:
    assert [queue.add_failed("a"), queue.failures("a")] == [1.0, 1]
    clock.now_s += 1.0
    assert take(queue) == "a"
    queue.done("a")
    assert queue.add_failed("a") == 2.0
    queue.reset_backoff("a")
    assert queue.failures("a") == 0
    assert queue.add_failed("a") == 1.0


def test_after_shutdown_ready_keys_are_given_out_and_no_new_ones_taken(queue: WorkQueue[str]) -> None:
    queue.add("a")
    queue.add_after("later", 0.5)
    queue.shutdown()
    queue.add("b")
    assert [queue.get(), queue.get()] == ["a", None]


def test_shutdown_wakes_a_waiting_worker() -> None:
    queue: WorkQueue[str] = WorkQueue()
    got: list[str | None] = []
    worker = threading.Thread(target=lambda: got.append(queue.get()))
    worker.start()
    queue.shutdown()
    worker.join(timeout=5.0)
    assert got == [None]


def test_a_sleeping_worker_wakes_when_a_delayed_key_is_due() -> None:
    queue: WorkQueue[str] = WorkQueue()
    got: list[tuple[str | None, float]] = []
    started = time.monotonic()
    worker = threading.Thread(target=lambda: got.append((queue.get(), time.monotonic() - started)))
    worker.start()
    queue.add_after("a", 0.05)
    worker.join(timeout=5.0)
    assert got[0][0] == "a"
    assert got[0][1] >= 0.05


def test_a_delayed_key_is_served_though_the_worker_that_waited_for_it_is_busy() -> None:
    queue: WorkQueue[str] = WorkQueue()
    free = threading.Event()
    served = threading.Event()

    def work() -> None:
        while (key := queue.get()) is not None:
            if key == "slow":
                free.wait(60.0)
            if key == "later":
                served.set()
            queue.done(key)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    queue.add_after("later", 0.1)
    queue.add("slow")
    assert served.wait(30.0)
    free.set()
    queue.shutdown()
    for worker in workers:
        worker.join(timeout=5.0)


def test_many_workers_never_share_a_key_and_lose_none() -> None:
    queue: WorkQueue[int] = WorkQueue()
    lock = threading.Lock()
    busy: set[int] = set()
    clashes: list[int] = []
    taken: Counter[int] = Counter()

    def work() -> None:
        while (key := queue.get()) is not None:
            with lock:
                if key in busy:
                    clashes.append(key)
                busy.add(key)
                taken[key] += 1
            time.sleep(0.0002)
            with lock:
                busy.discard(key)
            queue.done(key)

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for round_number in range(20):
        for key in range(25):
            queue.add(key) if (key + round_number) % 3 else queue.add_after(key, 0.001)
    deadline = time.monotonic() + 5.0
    while (len(taken) < 25 or not queue.idle()) and time.monotonic() < deadline:
        time.sleep(0.005)
    queue.shutdown()
    for worker in workers:
        worker.join(timeout=5.0)
    assert clashes == []
    assert set(taken) == set(range(25))


class AgainstAModel(RuleBasedStateMachine):
    """The queue agrees with a simple model: sets of dirty, processing and later keys."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.queue: WorkQueue[str] = WorkQueue(clock=self.clock)
        self.dirty: set[str] = set()
        self.processing: set[str] = set()
        self.later: dict[str, float] = {}

    keys = st.sampled_from("abcd")

    @rule(key=keys)
    def add(self, key: str) -> None:
        self.queue.add(key)
        self.dirty.add(key)

    @rule(key=keys, delay_s=st.integers(min_value=1, max_value=5))
    def add_after(self, key: str, delay_s: int) -> None:
        self.queue.add_after(key, delay_s)
        due = self.clock.now_s + delay_s
        self.later[key] = min(due, self.later.get(key, due))

    @rule(seconds=st.integers(min_value=1, max_value=3))
    def pass_time(self, seconds: int) -> None:
        self.clock.now_s += seconds
        for key in [key for key, due in self.later.items() if due <= self.clock.now_s]:
            del self.later[key]
            self.dirty.add(key)

    @rule()
    def get(self) -> None:
        key = self.queue.get(timeout_s=0)
        waiting = self.dirty - self.processing
        if key is None:
            assert not waiting
        else:
            assert key in waiting
            self.dirty.discard(key)
            self.processing.add(key)

    @precondition(lambda self: self.processing)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.processing)))
        self.queue.done(key)
        self.processing.discard(key)

    @invariant()
    def lengths_agree(self) -> None:
        assert len(self.queue) == len(self.dirty - self.processing)
        assert self.queue.idle() == (not self.dirty and not self.processing)


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
