"""Admission of processes: within the budget, only with a known size, by priority, and without endless waiting."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent.contract import ProcessReason
from agent.server.memory.admission import WAITING_S, AdmissionRequest, Bound, Ledger, decide
from agent.server.memory.need import Need, total

GIB = 1 << 30
ROOM = Need(16 * GIB, 0)


def asking(
    key: str,
    gib: float | None = 4,
    *,
    priority: int = 0,
    room: Need = ROOM,
    check: Literal["enforce", "warn", "off"] = "enforce",
    since: float = 0.0,
    gpu_gib: float = 0,
) -> AdmissionRequest:
    need = Need(int(gib * GIB), int(gpu_gib * GIB)) if gib is not None else None
    return AdmissionRequest(key, need, Bound(room, "memoryBudget"), priority, check, since)


def test_what_fits_beside_what_runs_may_start() -> None:
    assert decide(asking("a", 4), {"b": Need(12 * GIB)}) is None
    # A restart of the same process does not count twice.
    assert decide(asking("a", 12), {"a": Need(12 * GIB), "b": Need(4 * GIB)}) is None


def test_a_refusal_names_the_numbers_and_who_has_the_memory() -> None:
    taken = {f"prod/{name}": Need(size * GIB) for name, size in zip("abcdef", (5, 4, 2, 1, 1, 1), strict=True)}
    refusal = decide(asking("prod/x", 4.5), taken)
    assert refusal is not None
    assert refusal.reason is ProcessReason.INSUFFICIENT_MEMORY
    assert refusal.message == (
        "Needs 4.5 GiB; of 16 GiB (memoryBudget) 2 GiB are free: prod/a has 5 GiB, prod/b has 4 GiB, "
        "prod/c has 2 GiB, prod/d has 1 GiB, 2 more have 2 GiB"
    )
    never = decide(asking("prod/x", 20), {})
    assert never is not None
    assert never.hopeless
    assert "may never have more than 16 GiB here" in never.message


def test_an_unknown_size_is_refused_and_says_what_to_do() -> None:
    refusal = decide(asking("a", None), {})
    assert refusal is not None
    assert refusal.reason is ProcessReason.MEMORY_UNKNOWN
    assert "herdsman.dev/memory-check: off" in refusal.message


def test_memory_of_gpus_is_counted_apart() -> None:
    room = Need(8 * GIB, 24 * GIB)
    assert decide(asking("a", 1, gpu_gib=20, room=room), {"b": Need(6 * GIB, 4 * GIB)}) is None
    refusal = decide(asking("a", 1, gpu_gib=20, room=room), {"b": Need(6 * GIB, 5 * GIB)})
    assert refusal is not None
    assert "20 GiB of GPU memory" in refusal.message


def test_room_is_kept_for_the_more_important_that_would_fit() -> None:
    taken = {"b": Need(10 * GIB)}
    high = asking("high", 5, priority=9)
    refusal = decide(asking("low", 2), taken, [high])
    assert refusal is not None
    assert "kept for high" in refusal.message
    assert decide(asking("low", 1), taken, [high]) is None
    # A process that does not fit yet does not block others.
    assert decide(asking("low", 2), taken, [asking("huge", 12, priority=9)]) is None
    # Among processes of one priority, the one that asked first starts first.
    assert decide(asking("late", 4, since=9), taken, [asking("early", 4, since=1)]) is not None
    assert decide(asking("early", 4, since=1), taken, [asking("late", 4, since=9)]) is None


def test_warn_and_off_let_a_start_pass_and_count_it() -> None:
    ledger = Ledger()
    assert ledger.admit(asking("a", 20, check="warn"), now=0) is not None
    assert ledger.entry("a") is not None
    assert ledger.admit(asking("b", 1), now=0) is not None, "nothing is left"
    assert ledger.admit(asking("c", None, check="off"), now=0) is not None
    assert ledger.entry("c") is not None
    assert ledger.waiting() == ["b"]


def test_more_than_the_estimate_counts_once_it_was_measured() -> None:
    ledger = Ledger()
    assert ledger.admit(asking("a", 4), now=0) is None
    ledger.measure({"a": 13 * GIB, "gone": GIB})
    assert ledger.admit(asking("b", 4), now=0) is not None
    ledger.measure({"a": 13 * GIB + 600_000_000})
    entry = ledger.entry("a")
    assert entry is not None
    assert entry.counted == Need(13 * GIB), "a little more is no news"
    ledger.measure({"a": 1 * GIB})
    assert ledger.admit(asking("b", 4), now=0) is None
    assert ledger.remove_process("a")
    assert not ledger.remove_process("a")


def test_who_stopped_asking_holds_up_nobody() -> None:
    ledger = Ledger()
    ledger.adopt("running", Need(10 * GIB), 0, now=0)
    assert ledger.admit(asking("high", 7, priority=9), now=0) is not None
    ledger.remove_process("running")
    assert ledger.admit(asking("low", 10), now=1) is not None
    assert ledger.admit(asking("low", 10), now=WAITING_S + 2) is None


def test_starts_at_once_never_take_the_same_room() -> None:
    ledger, ready = Ledger(), threading.Barrier(16)
    admitted: list[str] = []

    def start(key: str) -> None:
        ready.wait()
        if ledger.admit(asking(key, 5), now=0) is None:
            admitted.append(key)

    threads = [threading.Thread(target=start, args=(f"p{n}",)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == 3


@settings(max_examples=60, stateful_step_count=40, deadline=None)
class Accounts(RuleBasedStateMachine):
    """Processes start and end in any order: the budget is kept, and each waiting one can start on an empty host."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.now = 0.0

    @rule(key=st.sampled_from("abcdef"), gib=st.floats(0.1, 18), priority=st.integers(0, 2))
    def start(self, key: str, gib: float, priority: int) -> None:
        self.now += 1
        self.ledger.admit(asking(key, gib, priority=priority, since=self.now), now=self.now)

    @rule(key=st.sampled_from("abcdef"))
    def end(self, key: str) -> None:
        self.ledger.remove_process(key)

    @invariant()
    def never_over_the_budget(self) -> None:
        taken = total(entry.counted for entry in self.ledger.entries().values())
        assert taken.within(ROOM)

    @invariant()
    def who_waits_gets_in_once_all_others_are_gone(self) -> None:
        for key in self.ledger.waiting():
            ledger = Ledger()
            assert ledger.admit(replace(self.waiting(key), since=0), now=0) is None

    def waiting(self, key: str) -> AdmissionRequest:
        return self.ledger._waiting[key][0]


TestAccounts = Accounts.TestCase


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 16), st.integers(0, 3)), min_size=1, max_size=8))
def test_one_of_those_that_wait_is_always_let_in_when_all_room_is_free(waiting: list[tuple[float, int]]) -> None:
    everyone = [asking(f"p{n}", gib, priority=p, since=n) for n, (gib, p) in enumerate(waiting)]
    assert any(decide(each, {}, everyone) is None for each in everyone)
    first = min(everyone, key=lambda each: (-each.priority, each.since))
    assert decide(first, {}, everyone) is None


def test_needs_never_fall_below_nothing() -> None:
    assert Need(1, 5) - Need(2, 3) == Need(0, 2)
    assert total([Need(1, 2), Need(3, 4)]) == Need(4, 6)
    assert str(Need(512 << 20)) == "512 MiB"
    assert str(Need(GIB, 2 * GIB)) == "2 GiB of GPU memory and 1 GiB"
    with pytest.raises(AttributeError):
        Need(1).ram_bytes = 2  # type: ignore[misc]
