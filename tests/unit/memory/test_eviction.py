"""Eviction under critical pressure: which process is evicted, when none is, and the return of all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.contract import MemoryPressure
from agent.server.memory.eviction import EvictedProcess, ReturnPolicy, RunningProcess, Skip, choose, returning
from agent.server.memory.meminfo import Memory
from agent.server.memory.watchdog import Thresholds, Watchdog

NORMAL, WARNING, CRITICAL = MemoryPressure
GIB = 1 << 30


def runner(key: str, priority: int = 10_000, gib: float = 8, **fields: float | bool) -> RunningProcess:
    return RunningProcess(key, priority, int(gib * GIB), **{"started": 0.0, **fields})  # type: ignore[arg-type]


def evicted(*runners: RunningProcess, used_gib: float = 20, level: MemoryPressure = CRITICAL) -> str | None:
    verdict = choose(level, runners, enabled=True, used_bytes=int(used_gib * GIB))
    return verdict.evict.key if verdict.evict else None


def test_the_least_important_goes_first_then_the_largest_then_the_oldest() -> None:
    assert evicted(runner("a", 100, 1), runner("b", 1000, 30)) == "a"
    assert evicted(runner("a", gib=4), runner("b", gib=9)) == "b"
    assert evicted(runner("a", started=5.0), runner("b", started=3.0)) == "b"


def test_a_protected_one_never_goes() -> None:
    assert evicted(runner("a", 1, protected=True), runner("b", 9)) == "b"


def test_nobody_goes_unless_pressure_is_critical() -> None:
    for level in (NORMAL, WARNING):
        verdict = choose(level, [runner("a"), runner("b")], enabled=True, used_bytes=1)
        assert (verdict.evict, verdict.skip) == (None, None)


@pytest.mark.parametrize(
    ("runners", "enabled", "used_gib", "skip"),
    [
        ([runner("a"), runner("b")], False, 20, Skip.DISABLED),
        ([], True, 20, Skip.NONE),
        ([runner("a"), runner("b", stopping=True)], True, 20, Skip.STOPPING),
        ([runner("a"), runner("b")], True, 33, Skip.BELOW_GUARD),
        ([runner("a", gib=16)], True, 20, Skip.FLOOR),
        ([runner("a", protected=True), runner("b", protected=True)], True, 20, Skip.ALL_PROTECTED),
    ],
)
def test_why_nobody_goes(runners: list[RunningProcess], enabled: bool, used_gib: float, skip: Skip) -> None:
    assert choose(CRITICAL, runners, enabled=enabled, used_bytes=int(used_gib * GIB)).skip is skip


def test_who_comes_back_first() -> None:
    return_policy = ReturnPolicy(calm_s=60, between_s=30)
    evicted = [
        EvictedProcess("low", 100, since=0),
        EvictedProcess("high", 9000, since=10),
        EvictedProcess("again", 99_999, since=10, times=4),
    ]

    def back(now: float, normal_since: float | None = 0.0, last: float | None = None, room: float = 0.0) -> str | None:
        found = returning(
            evicted, normal_since=normal_since, last_return=last, room_bytes=room, now=now, return_policy=return_policy
        )
        return found.key if found else None

    assert back(59) is None
    assert back(75) == "high"
    assert back(75, last=50) is None
    assert back(75, normal_since=None) is None
    assert back(75, normal_since=70) is None
    # After its fourth eviction in a row, a process waits 8 minutes.
    assert back(489) == "high"
    assert back(490) == "again"
    # A process that needs more memory than is available waits for others, for half an hour at most.
    evicted[1] = EvictedProcess("high", 9000, since=10, brings_bytes=GIB)
    assert back(75) == "low"
    assert back(75, room=GIB) == "high"
    evicted.pop()
    assert back(1810) == "high"


@dataclass
class Host:
    """A host whose processes use memory, and its watchdog."""

    total_gib: int
    foreign_gib: float
    sizes: dict[str, float]
    priorities: dict[str, int] = field(default_factory=dict)
    protected: frozenset[str] = frozenset()
    running: set[str] = field(default_factory=set)
    events: list[tuple[str, str]] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.running = set(self.sizes)
        self.watchdog = Watchdog(
            runners=self.runners,
            evict=lambda key, _why: self.stop(key),
            let_back=self.start,
            thresholds=Thresholds(settle_s=30),
            return_policy=ReturnPolicy(),
            enabled=True,
        )

    def runners(self) -> list[RunningProcess]:
        return [
            runner(key, self.priorities.get(key, 0), self.sizes[key], protected=key in self.protected)
            for key in sorted(self.running)
        ]

    def stop(self, key: str) -> None:
        assert key in self.running
        self.running.discard(key)
        self.events.append(("out", key))

    def start(self, key: str) -> None:
        assert key not in self.running
        self.running.add(key)
        self.events.append(("back", key))

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 10
            used = self.foreign_gib + sum(self.sizes[key] for key in self.running)
            available = max(0.0, self.total_gib - used)
            self.watchdog.check(Memory(self.total_gib * GIB, int(available * GIB)), now=self.now)


def test_one_goes_when_one_suffices_and_comes_back_when_the_pressure_is_over() -> None:
    host = Host(64, 4, {"a": 20, "b": 20, "c": 10}, {"a": 5, "b": 1, "c": 3})
    host.look(3)
    assert host.events == []
    host.foreign_gib = 12
    host.look(20)
    assert host.events == [("out", "b")]
    assert host.watchdog.evictions == 1
    host.foreign_gib = 4
    host.look(20)
    assert host.events == [("out", "b"), ("back", "b")]


def test_several_go_one_by_one_and_come_back_the_most_important_first() -> None:
    host = Host(64, 36, {"a": 10, "b": 5, "c": 10}, {"a": 9, "b": 1, "c": 3})
    # The processes use less than half of the memory in use, so none is evicted.
    host.look(5)
    assert host.events == []
    assert host.watchdog.skipped == {Skip.BELOW_GUARD: 5}
    host = Host(64, 25, {"a": 27, "b": 5, "c": 5}, {"a": 9, "b": 1, "c": 3})
    host.look()
    assert host.events == [("out", "b")]
    host.foreign_gib = 30
    host.look()
    assert host.events == [("out", "b"), ("out", "c")]
    host.foreign_gib = 4
    host.look(60)
    assert host.events[2:] == [("back", "c"), ("back", "b")]


def test_what_would_bring_the_pressure_back_stays_away_for_long() -> None:
    host = Host(64, 4, {"a": 30, "b": 28}, {"a": 9, "b": 1})
    host.look(175)
    assert host.events == [("out", "b")]
    host.look(20)
    # After half an hour it is started again, and evicted again because it does not fit.
    assert host.events == [("out", "b"), ("back", "b"), ("out", "b")]


def test_a_service_that_is_gone_is_not_waited_for() -> None:
    host = Host(64, 4, {"a": 30, "b": 28}, {"a": 9, "b": 1})
    host.look()
    assert set(host.watchdog.evicted) == {"b"}
    host.watchdog.keep_only({"a"})
    del host.sizes["b"]
    host.look(500)
    assert host.events == [("out", "b")]


sizes = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.5, 20), min_size=1)


@settings(max_examples=40, deadline=None)
@given(
    sizes,
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 3)),
    st.frozensets(st.sampled_from("abcdefgh"), max_size=4),
    st.lists(st.floats(0, 64), min_size=1, max_size=12),
)
def test_never_a_protected_one_never_the_last_never_more_than_needed_and_always_back(
    sizes: dict[str, float], priorities: dict[str, int], protected: frozenset[str], foreign: list[float]
) -> None:
    host = Host(64, 0, sizes, priorities, protected)
    for each in foreign:
        host.foreign_gib = each
        before = set(host.running)
        available = 64 - each - sum(sizes[key] for key in before)
        host.look()
        gone = before - host.running
        assert len(gone) <= 1
        if gone:
            assert available < 0.10 * 64
            assert len(before) > 1
            (victim,) = gone
            open_to_it = [key for key in before if key not in protected]
            assert priorities.get(victim, 0) == min(priorities.get(key, 0) for key in open_to_it)
    assert not any(key in protected for event, key in host.events if event == "out")
    # All sizes together may be more than the host has. With enough memory, all processes must return.
    host.foreign_gib, host.total_gib = 0, 640
    host.look(300)
    assert host.running == set(sizes)
