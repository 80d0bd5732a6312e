"""Liveness of hosts depends on the time at which the loop observed a renewal, never on the clock of another machine."""

from __future__ import annotations

from typing import Any

import pytest

from automation.hosts.liveness import Liveness


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def liveness(clock: Clock) -> Liveness:
    return Liveness(clock)


def lease(renewed: str, *, holder: str = "a", duration_s: float = 12, fenced: str = "") -> dict[str, Any]:
    return {"renewed": renewed, "holder": holder, "duration_s": duration_s, "fenced": fenced}


def test_a_first_sight_counts_as_fresh_however_old_the_time_in_the_lease(liveness: Liveness, clock: Clock) -> None:
    liveness.seen("mac", lease("1999-01-01T00:00:00Z"))
    assert liveness.alive("mac")
    clock.now += 11.9
    assert liveness.silent() == ()
    assert liveness.next_silence_s() == pytest.approx(0.1)
    clock.now += 0.1
    assert liveness.silent() == ("mac",)


@pytest.mark.parametrize("times", [("2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z"), ("2040", "1980"), ("x", "y")])
def test_a_host_whose_clock_is_wrong_lives_as_long_as_its_time_changes(
    liveness: Liveness, clock: Clock, times: tuple[str, str]
) -> None:
    for number in range(10):
        liveness.seen("mac", lease(times[number % 2]))
        clock.now += 11
        assert liveness.silent() == ()


def test_a_lease_that_changes_without_a_renewal_is_no_sign_of_life(liveness: Liveness, clock: Clock) -> None:
    liveness.seen("mac", lease("1"))
    clock.now += 8
    liveness.seen("mac", lease("1"))  # an annotation was added
    clock.now += 4
    assert liveness.silent() == ("mac",)


def test_silence_alone_makes_nobody_lost_until_somebody_says_so(liveness: Liveness, clock: Clock) -> None:
    told: list[str] = []
    liveness.on_change = told.append
    liveness.seen("mac", lease("1"))
    clock.now += 60
    assert liveness.alive("mac")
    assert liveness.lost_for_s("mac") is None
    liveness.lose("mac")
    clock.now += 5
    assert (liveness.alive("mac"), liveness.living(), liveness.lost()) == (False, (), ("mac",))
    assert liveness.lost_for_s("mac") == 5
    assert liveness.silent() == ()
    assert liveness.next_silence_s() is None
    liveness.lose("mac")
    assert told == ["mac", "mac"], "once when it came, once when it was lost"


def test_a_lost_host_is_back_with_its_next_renewal_but_not_while_it_is_fenced(liveness: Liveness, clock: Clock) -> None:
    liveness.seen("mac", lease("1"))
    liveness.lose("mac")
    liveness.seen("mac", lease("1", fenced="token"))
    liveness.seen("mac", lease("2", fenced="token"))
    assert not liveness.alive("mac")
    liveness.seen("mac", lease("3"))
    assert liveness.alive("mac")


def test_a_host_that_is_first_seen_fenced_is_lost(liveness: Liveness) -> None:
    liveness.seen("mac", lease("1", fenced="token"))
    assert not liveness.alive("mac")


@pytest.mark.parametrize("gone", [lease("1", holder=""), None])
def test_a_released_or_deleted_lease_is_the_end_at_once(
    liveness: Liveness, clock: Clock, gone: dict[str, Any] | None
) -> None:
    liveness.seen("mac", lease("1"))
    liveness.seen("mac", gone)
    clock.now += 3
    liveness.seen("mac", gone)
    assert liveness.lost_for_s("mac") == 3
    liveness.seen("mac", lease("2"))
    assert liveness.alive("mac")


def test_after_an_outage_every_living_host_has_a_full_duration_again(liveness: Liveness, clock: Clock) -> None:
    liveness.seen("mac", lease("1"))
    liveness.seen("gone", lease("1", holder=""))
    clock.now += 600
    liveness.restart()
    assert liveness.silent() == ()
    assert liveness.next_silence_s() == 12
    assert not liveness.alive("gone")


def test_a_host_without_a_lease_counts_as_lost_since_the_loop_began_to_look(liveness: Liveness, clock: Clock) -> None:
    clock.now += 7
    assert not liveness.alive("never-seen")
    assert liveness.lost_for_s("never-seen") == 7
