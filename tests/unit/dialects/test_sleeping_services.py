"""The status of a service that sleeps or wakes: it is Ready, because it accepts requests."""

from __future__ import annotations

from automation.status.event_log import phase_events
from program.desired.facts import PodFacts
from tests.support.statuses import conditions, facts, message, protocol, service, status_of


def test_a_sleeping_service_is_ready_without_replicas() -> None:
    status = status_of(facts(desired=0, sleep="asleep"))
    assert (status["phase"], status["readyReplicas"]) == ("Ready", 0)
    assert protocol(status) == ("True", "False", "False", "Asleep")
    assert conditions(status)["Available"] == ("True", "Asleep")


def test_it_stays_ready_while_its_objects_are_applied() -> None:
    assert protocol(status_of(facts(ready=1, desired=1, applying=True, sleep="asleep")))[3] == "Asleep"


def test_a_waking_service_is_ready_until_something_is_wrong() -> None:
    status = status_of(facts(desired=1, sleep="waking"))
    assert protocol(status) == ("True", "False", "False", "Waking")
    assert "0 of 1 replicas ready" in message(status, "Ready")
    crashing = PodFacts(name="p", waiting_reason="CrashLoopBackOff", container="llama-server", restarts=5)
    failing = status_of(facts(desired=1, sleep="waking", pods=(crashing,)))
    assert protocol(failing)[0] == "False"
    assert protocol(failing)[3] == "CrashLooping"


def test_suspended_wins() -> None:
    assert status_of(facts(desired=0), service(suspend=True))["phase"] == "Suspended"


def test_events_tell_of_sleep_and_wake_once() -> None:
    steps = [
        facts(ready=1, desired=1),
        facts(desired=0, sleep="asleep"),
        facts(desired=0, sleep="asleep"),
        facts(desired=1, sleep="waking"),
        facts(ready=1, desired=1),
    ]
    told, before = [], None
    for step in steps:
        status = status_of(step)
        told += [entry.reason for entry in phase_events(before, status, step)]
        before = status
    assert told == ["Ready", "Asleep", "Woken"]
