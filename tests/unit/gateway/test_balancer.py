"""Which replica gets a request."""

from __future__ import annotations

import collections
import random

from gateway.balancer import EJECTED_S, FAILURES, Balancer, Endpoint

TARGETS = [(f"10.0.0.{n}", 8080) for n in range(1, 9)]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def balancer(number: int, clock: Clock | None = None) -> Balancer:
    made = Balancer(clock or Clock(), random.Random(1))
    made.set_targets(TARGETS[:number])
    return made


def chosen(made: Balancer, key: str = "") -> Endpoint:
    found = made.choose(key)
    assert found is not None
    return found


def test_without_replicas_there_is_no_choice() -> None:
    assert balancer(0).choose() is None
    assert balancer(1).choose(excluded={TARGETS[0]}) is None


def test_the_replica_with_the_fewest_requests_gets_the_next_one() -> None:
    made = balancer(4)
    for _ in range(40):
        made.started(chosen(made))
    assert [each.in_flight for each in made.endpoints] == [10] * 4


def test_equal_beginnings_go_to_the_same_replica() -> None:
    made = balancer(8)
    assert {chosen(made, "once upon a time").target for _ in range(50)} == {chosen(made, "once upon a time").target}
    used = collections.Counter(chosen(made, f"prompt {n}").target for n in range(4000))
    assert len(used) == 8
    assert max(used.values()) < 1.5 * 500


def test_a_replica_above_the_mean_passes_its_keys_on() -> None:
    made = balancer(4)
    for _ in range(100):
        made.started(chosen(made, "one prompt for all"))
    loads = sorted(each.in_flight for each in made.endpoints)
    assert sum(loads) == 100
    assert loads[-1] <= 100 / 4 * 1.25 + 1


def test_most_keys_stay_when_a_replica_goes() -> None:
    made = balancer(8)
    before = {f"prompt {n}": chosen(made, f"prompt {n}").target for n in range(2000)}
    made.set_targets(TARGETS[:7])
    moved = [key for key, target in before.items() if chosen(made, key).target != target]
    assert {before[key] for key in moved} == {TARGETS[7]}


def test_a_replica_that_fails_is_left_out_and_gets_one_request_as_a_trial() -> None:
    clock = Clock()
    made = balancer(2, clock)
    bad, good = made.endpoints
    for _ in range(FAILURES):
        made.failed(bad)
    assert {chosen(made).target for _ in range(20)} == {good.target}
    clock.now += EJECTED_S
    good.in_flight = 5
    made.started(chosen(made))
    assert bad.in_flight == 1
    assert {chosen(made).target for _ in range(20)} == {good.target}, "one trial at a time"
    made.failed(bad)
    made.ended(bad)
    clock.now += EJECTED_S
    assert chosen(made) is good, "the second pause is longer"
    clock.now += EJECTED_S
    made.started(chosen(made))
    made.succeeded(bad)
    made.ended(bad)
    assert chosen(made) is bad


def test_the_last_replica_is_never_left_out() -> None:
    made = balancer(2)
    for each in made.endpoints:
        for _ in range(FAILURES):
            made.failed(each)
    assert made.choose() is not None
    assert made.choose(excluded={TARGETS[0]}) is made.endpoints[1]


def test_replicas_that_stay_keep_their_counters() -> None:
    made = balancer(3)
    made.endpoints[1].in_flight = 7
    made.set_targets(TARGETS[1:5])
    assert [each.in_flight for each in made.endpoints] == [7, 0, 0, 0]
