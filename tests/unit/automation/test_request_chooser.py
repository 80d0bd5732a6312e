"""The number of replicas by the requests at the gateways."""

from __future__ import annotations

from typing import Any

import pytest

from automation.serving.request_chooser import Choice, Demand, choose
from program.desired.service import RequestScaling

RULES = RequestScaling(min_replicas=1, max_replicas=4, target=10, idle_timeout_s=60.0)
ASLEEP = Choice(replicas=0, started=True)
AWAKE = Choice(replicas=1, started=True)
WINDOW_S = RULES.down_window_s
UNKNOWN = Demand(is_whole=False)
"""A gateway is silent."""


def chosen(before: Choice, demand: Demand, *, now: float = 0.0, ready: bool = True, **rules: Any) -> Choice:
    return choose(before, demand, RULES.model_copy(update=rules), ready=ready, now=now)[0]


@pytest.mark.parametrize(
    ("demand", "replicas"),
    [
        (Demand(active=0), 1),
        (Demand(active=10), 1),
        (Demand(active=11), 2),
        (Demand(active=5, held=16), 3),
        (Demand(active=1000), 4),
        (UNKNOWN, 1),
    ],
)
def test_more_replicas_start_at_once(demand: Demand, replicas: int) -> None:
    assert chosen(AWAKE, demand).replicas == replicas


def test_the_smallest_number_is_kept_while_the_service_is_awake() -> None:
    assert chosen(AWAKE, Demand(active=1), min_replicas=2).replicas == 2


def test_a_replica_stops_after_a_window_without_need() -> None:
    busy = chosen(AWAKE, Demand(active=35), now=0.0)
    assert busy.replicas == 4
    # The load is the same until the next look, however late it comes.
    less = chosen(busy, Demand(active=12), now=1000.0)
    assert less.replicas == 4
    nearly = chosen(less, Demand(active=12), now=1000.0 + WINDOW_S - 1)
    assert nearly.replicas == 4
    assert chosen(nearly, Demand(active=12), now=1000.0 + WINDOW_S).replicas == 2


def test_the_window_is_a_rule_of_the_service() -> None:
    busy = chosen(AWAKE, Demand(active=35), now=0.0, down_window_s=60.0)
    less = chosen(busy, Demand(active=12), now=10.0, down_window_s=60.0)
    assert chosen(less, Demand(active=12), now=69.0, down_window_s=60.0).replicas == 4
    assert chosen(less, Demand(active=12), now=70.0, down_window_s=60.0).replicas == 2
    assert chosen(busy, Demand(active=12), now=10.0, down_window_s=0.0).replicas == 2


def test_a_peak_within_the_window_counts() -> None:
    at = chosen(AWAKE, Demand(active=35), now=0.0)
    at = chosen(at, Demand(active=5), now=10.0)
    at = chosen(at, Demand(active=25), now=200.0)
    at = chosen(at, Demand(active=5), now=210.0)
    assert chosen(at, Demand(active=5), now=310.0).replicas == 3
    assert chosen(at, Demand(active=5), now=510.0).replicas == 1


def test_the_next_look_is_when_a_replica_may_stop_or_the_service_may_sleep() -> None:
    busy = chosen(AWAKE, Demand(active=35), now=0.0)
    less, again_s = choose(busy, Demand(active=5), RULES, ready=True, now=100.0)
    assert again_s == WINDOW_S
    _, again_s = choose(less, Demand(quiet_s=20.0), RULES, ready=True, now=130.0)
    assert again_s == 40.0


def test_nothing_stops_while_the_requests_are_unknown() -> None:
    busy = chosen(AWAKE, Demand(active=35), now=0.0)
    unknown = chosen(busy, UNKNOWN, now=10_000.0)
    assert unknown.replicas == 4
    # The window begins anew when they are known again.
    assert chosen(unknown, Demand(quiet_s=1.0), now=10_001.0).replicas == 4
    assert chosen(ASLEEP, UNKNOWN).is_asleep
    assert chosen(AWAKE, Demand(quiet_s=1e6, is_whole=False)).replicas == 1


def test_the_requests_of_the_other_gateways_still_start_replicas() -> None:
    assert chosen(ASLEEP, Demand(held=1, is_whole=False), ready=False).replicas == 1
    assert chosen(AWAKE, Demand(active=25, is_whole=False)).replicas == 3


@pytest.mark.parametrize(
    ("before", "demand", "ready", "asleep"),
    [
        (AWAKE, Demand(quiet_s=60.0), True, True),
        (AWAKE, Demand(quiet_s=59.0), True, False),
        (AWAKE, Demand(active=1), True, False),
        (AWAKE, Demand(held=1), False, False),
        (AWAKE, UNKNOWN, True, False),
        (Choice(replicas=1), Demand(quiet_s=3600.0), False, False),
        (Choice(replicas=1, started=True, waking=True), Demand(quiet_s=60.0), False, True),
    ],
    ids=("idle", "not yet", "works", "waits", "unknown", "never started", "a start that fails and nobody waits for"),
)
def test_an_idle_service_sleeps(before: Choice, demand: Demand, ready: bool, asleep: bool) -> None:
    assert chosen(before, demand, ready=ready).is_asleep is asleep


def test_a_service_without_an_idle_timeout_never_sleeps() -> None:
    assert chosen(AWAKE, Demand(quiet_s=1e6), idle_timeout_s=None).replicas == 1


def test_requests_that_wait_wake_a_service() -> None:
    woken = chosen(ASLEEP, Demand(held=15), ready=False)
    assert (woken.replicas, woken.waking) == (2, True)
    assert chosen(ASLEEP, Demand(held=1), ready=False, target=None, min_replicas=3).replicas == 3
    served = chosen(woken, Demand(active=15), ready=True)
    assert (served.replicas, served.waking) == (2, False)


def test_a_request_at_a_replica_that_ends_wakes_nothing() -> None:
    assert chosen(ASLEEP, Demand(active=1), ready=True).is_asleep


def test_sleep_forgets_how_many_replicas_ran() -> None:
    busy = chosen(AWAKE, Demand(active=35), now=0.0)
    asleep = chosen(busy, Demand(quiet_s=60.0), now=60.0)
    assert chosen(asleep, Demand(held=1), now=61.0, ready=False).replicas == 1
