"""Levels of memory pressure: they rise at once and fall after a delay, and always return to normal in the end."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.contract import MemoryPressure
from agent.server.memory.meminfo import Memory
from agent.server.memory.watchdog import Pressure, Thresholds, after, level_of, severity

NORMAL, WARNING, CRITICAL = MemoryPressure
RULES = Thresholds(settle_s=30)


def at(share: float, kernel: MemoryPressure | None = None) -> Memory:
    return Memory(10_000, round(10_000 * share), kernel)


def levels(*looks: tuple[float, float]) -> list[MemoryPressure]:
    state, found = Pressure(), []
    for now, share in looks:
        state = after(state, at(share), RULES, now=now)
        found.append(state.level)
    return found


def test_it_gets_worse_at_once_and_better_after_a_while() -> None:
    assert levels((0, 0.5), (10, 0.15), (20, 0.05), (30, 0.5), (40, 0.5), (59, 0.5), (61, 0.5)) == [
        *(NORMAL, WARNING, CRITICAL, CRITICAL, CRITICAL, CRITICAL, NORMAL)
    ]


def test_a_little_more_than_the_threshold_is_not_enough_to_leave() -> None:
    assert levels((0, 0.09), (10, 0.11), (100, 0.119), (200, 0.13), (231, 0.13)) == [
        *(CRITICAL, CRITICAL, CRITICAL, CRITICAL, WARNING)
    ]
    assert levels((0, 0.19), (100, 0.21), (200, 0.21)) == [WARNING] * 3


def test_a_relapse_begins_the_wait_anew_and_the_worst_of_the_wait_counts() -> None:
    assert levels((0, 0.05), (10, 0.5), (30, 0.05), (50, 0.5), (70, 0.5), (81, 0.5))[-2:] == [CRITICAL, NORMAL]
    # In the 30 s before the level drops, one sample allowed only a drop to Warning.
    assert levels((0, 0.05), (10, 0.5), (20, 0.15), (41, 0.5)) == [CRITICAL, CRITICAL, CRITICAL, WARNING]


def test_the_kernel_is_believed_before_the_pages_that_are_free() -> None:
    assert after(Pressure(), at(0.9, CRITICAL), RULES, now=0).level is CRITICAL
    assert after(Pressure(), at(0.05, NORMAL), RULES, now=0).level is NORMAL, "macOS keeps little memory free"
    assert after(Pressure(), at(0.05, WARNING), RULES, now=0).level is WARNING
    state = after(Pressure(), at(0.5, CRITICAL), RULES, now=0)
    assert after(state, at(0.5, NORMAL), RULES, now=1).level is CRITICAL, "it is left with patience all the same"


def test_a_share_that_the_kernel_tells_counts_where_it_tells_no_level() -> None:
    assert level_of(replace(at(0.05), kernel_share=0.5), RULES) is NORMAL
    assert level_of(replace(at(0.5), kernel_share=0.05), RULES) is CRITICAL
    assert level_of(at(0.05), RULES) is CRITICAL


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), max_size=40))
def test_a_level_is_never_better_than_the_memory_and_plenty_of_it_always_ends_in_normal(shares: list[float]) -> None:
    state, now = Pressure(), 0.0
    for share in shares:
        now += 10
        before, state = state, after(state, at(share), RULES, now=now)
        assert severity(state.level) >= severity(level_of(at(share), RULES))
        if state.level is not before.level:
            assert state.since == now
    # The level falls from Critical to Warning and then to Normal, and waits at least 30 s before each step.
    for _ in range(9):
        now += 10
        state = after(state, at(0.9), RULES, now=now)
    assert state.level is NORMAL
