"""Events wait while the engine makes the objects of many services, and never for long."""

from __future__ import annotations

import threading

from automation.engine.runs import BULK, FIRST_STATUS_IN_BULK_S, QUIET_IN_BULK_S, QUIET_S, EngineRuns
from automation.engine.submissions import Submission
from automation.workqueue.precedence import Precedence
from program.desired.keys import ServiceKey

TIMEOUT_S = 10.0


class Writer:
    """A thread that asks for its turn, as a recorder does before it writes."""

    def __init__(self, precedence: Precedence) -> None:
        self.has_turn = threading.Event()
        self._thread = threading.Thread(target=self._ask, args=(precedence,), daemon=True)
        self._thread.start()

    def _ask(self, precedence: Precedence) -> None:
        precedence.give_way(precedence.now())
        self.has_turn.set()


def test_a_write_waits_until_the_others_are_done() -> None:
    busy = threading.Event()
    busy.set()
    writer = Writer(Precedence(busy.is_set))
    assert not writer.has_turn.wait(0.2)
    busy.clear()
    assert writer.has_turn.wait(TIMEOUT_S)


def test_a_write_waits_no_longer_than_its_limit() -> None:
    now = [100.0]
    writer = Writer(Precedence(lambda: True, longest_s=30.0, clock=lambda: now[0]))
    assert not writer.has_turn.wait(0.2)
    now[0] += 30.0
    assert writer.has_turn.wait(TIMEOUT_S)


def test_nothing_waits_at_the_end_of_the_loop() -> None:
    precedence = Precedence(lambda: True)
    writer = Writer(precedence)
    precedence.end()
    assert writer.has_turn.wait(TIMEOUT_S)


def test_many_services_without_an_outcome_are_a_bulk_and_are_told_later() -> None:
    unsettled = [BULK - 1]
    requests: dict[ServiceKey, Submission] = {}
    runs, key = EngineRuns(requests.get, lambda: unsettled[0]), ServiceKey("llmkube", "ns", "svc")
    assert not runs.in_bulk()
    assert runs.state(key).quiet_s == QUIET_S
    unsettled[0] = BULK
    assert runs.in_bulk()
    assert runs.state(key).quiet_s == QUIET_IN_BULK_S
    assert runs.state(key, is_new=True).quiet_s == FIRST_STATUS_IN_BULK_S
