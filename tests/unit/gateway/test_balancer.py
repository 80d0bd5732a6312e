"""Which replica gets a request."""

from __future__ import annotations

import collections
import random

from gateway.engines.balancer import (
    EJECTED_S,
    FAILURES,
    FRESH_S,
    FULL_CACHE,
    FULL_QUEUE,
    Balancer,
    Endpoint,
    Nearness,
    Traits,
)
from gateway.engines.load import EngineLoad

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


def test_a_trial_that_the_client_cancels_allows_another_one() -> None:
    clock = Clock()
    made = balancer(2, clock)
    bad, good = made.endpoints
    for _ in range(FAILURES):
        made.failed(bad)
    clock.now += EJECTED_S
    good.in_flight = 5
    assert made.started(chosen(made)), "it is the trial"
    assert chosen(made) is good
    made.ended(bad, trial=True)
    assert chosen(made) is bad


# --- metrics of engines -------------------------------------------------------------------------------------------


def test_requests_that_others_sent_count_as_load_while_the_metrics_are_fresh() -> None:
    clock = Clock()
    made = balancer(2, clock)
    busy, idle = made.endpoints
    idle.in_flight = 2
    assert chosen(made) is busy
    made.measured(busy, EngineLoad(running=6, waiting=0))
    made.measured(idle, EngineLoad(running=2, waiting=0))
    assert (made.load(busy), made.load(idle)) == (6, 2), "own requests do not count twice"
    assert chosen(made) is idle
    clock.now += FRESH_S + 0.1
    assert chosen(made) is busy, "stale metrics are ignored"


def test_an_engine_with_a_queue_or_a_full_cache_is_left_out_unless_all_are() -> None:
    made = balancer(3)
    first = chosen(made, "a prompt")
    others = [each for each in made.endpoints if each is not first]
    for load in (EngineLoad(0, FULL_QUEUE + 1), EngineLoad(0, 0, FULL_CACHE + 0.1)):
        made.measured(first, load)
        assert chosen(made, "a prompt") is not first
    made.measured(first, EngineLoad(0, 0, FULL_CACHE))
    assert chosen(made, "a prompt") is first
    for each in (first, *others):
        made.measured(each, EngineLoad(0, 0, 1.0))
    assert chosen(made, "a prompt") is first, "when all are full, the choice is as without metrics"


# --- weights and nearness -----------------------------------------------------------------------------------------


def test_requests_are_shared_by_weight() -> None:
    made = Balancer(Clock(), random.Random(1))
    made.set_targets(TARGETS[:3], {TARGETS[0]: Traits(weight=4.0)})
    for _ in range(60):
        made.started(chosen(made))
    assert [each.in_flight for each in made.endpoints] == [40, 10, 10]
    for each in made.endpoints:
        each.in_flight = 0
    used = collections.Counter(chosen(made, f"prompt {n}").target for n in range(3000))
    assert 0.55 < used[TARGETS[0]] / 3000 < 0.75
    for _ in range(300):
        made.started(chosen(made, "one prompt for all"))
    assert made.endpoints[0].in_flight > 2.5 * made.endpoints[1].in_flight


def near(*, node: str = "", zone: str = "") -> Balancer:
    made = Balancer(Clock(), random.Random(1), near=Nearness(node, zone))
    traits = [Traits("a", "east"), Traits("b", "east"), Traits("c", "west"), Traits("d", "west")]
    made.set_targets(TARGETS[:4], dict(zip(TARGETS, traits, strict=False)))
    return made


def test_near_replicas_are_preferred_until_they_have_far_more_load() -> None:
    made = near(node="a", zone="east")
    assert {chosen(made).target for _ in range(20)} == {TARGETS[0]}
    assert chosen(made, "a prompt").target == TARGETS[0]
    made.endpoints[0].in_flight = 9
    assert {chosen(made).target for _ in range(20)} == {TARGETS[1]}, "then those of the zone"
    made.endpoints[1].in_flight = 9
    assert {chosen(made).target for _ in range(40)} == {TARGETS[2], TARGETS[3]}


def test_without_a_near_replica_all_are_used() -> None:
    made = near(zone="north")
    assert {chosen(made).target for _ in range(80)} == set(TARGETS[:4])


def test_half_of_a_character_in_a_prompt_is_hashed() -> None:
    """Clients that cut texts send lone surrogates."""
    made = Balancer()
    made.set_targets([("10.0.0.1", 80), ("10.0.0.2", 80)])
    assert made.choose("smile \ud83d") is made.choose("smile \ud83d")
