"""An action that is requested many times runs once, soon afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable

from automation.workqueue.debounce import Debounce


def test_many_wishes_make_one_call_and_a_later_wish_another() -> None:
    calls: list[int] = []
    timers: list[Callable[[], None]] = []
    soon = Debounce(lambda: calls.append(1), delay_s=1.0, later=lambda _, call: timers.append(call))
    for _ in range(5):
        soon.trigger()
    assert len(timers) == 1
    timers.pop()()
    assert calls == [1]
    soon.trigger()
    assert len(timers) == 1


def test_an_action_that_fails_is_called_again_when_it_is_asked_for() -> None:
    timers: list[Callable[[], None]] = []
    tries: list[int] = []

    def fail() -> None:
        tries.append(1)
        raise OSError("no route")

    soon = Debounce(fail, delay_s=1.0, later=lambda _, call: timers.append(call))
    for _ in range(2):
        soon.trigger()
        timers.pop()()
    assert len(tries) == 2


def test_a_wish_during_the_call_is_not_lost() -> None:
    done = threading.Semaphore(0)
    asked: list[bool] = []

    def action() -> None:
        if not asked:
            asked.append(True)
            soon.trigger()
        done.release()

    soon = Debounce(action, delay_s=0.01)
    soon.trigger()
    assert done.acquire(timeout=5)
    assert done.acquire(timeout=5)
