"""When a Lease may be taken: by its observed changes and the time since then."""

from __future__ import annotations

from typing import Any

import pytest

from automation.leadership import lease_observations as sightings
from automation.leadership.lease_observations import FormerLoop, LeaseObservations, former_of, former_text

DURATION_S = 13.0


class Watch:
    """LeaseObservations with a clock that a test moves."""

    def __init__(self, *, nobody_led: bool = False) -> None:
        self.now = 100.0
        self.seen = LeaseObservations(duration_s=DURATION_S, nobody_led=lambda: nobody_led, clock=lambda: self.now)

    def free_in_s(self, lease: dict[str, Any] | None) -> float:
        return self.seen.free_in_s("herdsman", lease)


def lease(version: int = 1, *, holder: str | None = "other", duration_s: int = 13, mark: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"leaseDurationSeconds": duration_s}
    if holder is not None:
        spec["holderIdentity"] = holder
    annotations = {sightings.MARK_ANNOTATION: mark} if mark else {}
    return {"metadata": {"resourceVersion": str(version), "annotations": annotations}, "spec": spec}


def test_a_lease_is_free_when_it_stayed_unrenewed_for_its_duration_while_we_looked() -> None:
    watch = Watch()
    assert watch.free_in_s(lease()) == DURATION_S
    watch.now += 12.9
    assert watch.free_in_s(lease()) == pytest.approx(0.1)
    assert watch.free_in_s(lease(version=2)) == DURATION_S, "it was renewed"
    watch.now += DURATION_S
    assert watch.free_in_s(lease(version=2)) <= 0


def test_a_longer_duration_of_the_holder_counts_and_a_shorter_does_not() -> None:
    watch = Watch()
    assert watch.free_in_s(lease(duration_s=60)) == 60
    assert watch.free_in_s(lease(version=2, duration_s=2)) == DURATION_S


def test_a_released_lease_is_free_at_once_but_one_that_somebody_emptied_is_not() -> None:
    watch = Watch()
    assert watch.free_in_s(lease(holder=None, duration_s=1)) == 0
    assert watch.free_in_s(lease(version=2, holder=None)) == DURATION_S
    assert watch.free_in_s(lease(version=3, holder="")) == DURATION_S


def test_a_deleted_lease_is_waited_for_as_long_as_its_holder_may_be_at_work() -> None:
    watch = Watch(nobody_led=True)
    watch.free_in_s(lease())
    assert watch.free_in_s(None) == DURATION_S, "it was held when it was last seen, whatever the cluster looks like"
    watch.now += DURATION_S
    assert watch.free_in_s(None) <= 0


def test_where_no_lease_ever_was_seen_the_cluster_tells_whether_to_wait() -> None:
    assert Watch(nobody_led=True).free_in_s(None) == 0
    assert Watch(nobody_led=False).free_in_s(None) == DURATION_S


def test_a_released_lease_that_was_deleted_then_is_free_on_a_fresh_cluster() -> None:
    watch = Watch(nobody_led=True)
    assert watch.free_in_s(lease(holder=None, duration_s=1)) == 0
    assert watch.free_in_s(None) == 0


def test_a_dead_holder_frees_its_lease_only_when_its_engine_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared = [False, True, True]
    monkeypatch.setattr(sightings, "is_dead", lambda mark: mark == "dead")
    monkeypatch.setattr(sightings, "end_engines_of", lambda _: cleared.pop(0))
    watch = Watch()
    assert watch.free_in_s(lease(mark="dead")) == DURATION_S
    assert watch.free_in_s(lease(mark="dead")) == 0
    assert watch.free_in_s(lease(version=2, mark="alive")) == DURATION_S
    watch.free_in_s(lease(version=3, mark="dead"))
    assert cleared == []


def test_former_leaders_are_kept_once_each_and_only_the_latest() -> None:
    loops = tuple(FormerLoop("host", f"mark-{number % 20}") for number in range(60))
    found = former_of({"metadata": {"annotations": {sightings.FORMER_ANNOTATION: former_text(loops)}}})
    assert found == tuple(FormerLoop("host", f"mark-{number}") for number in range(4, 20))


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}', "null", '[["only-one"]]'])
def test_a_list_of_former_leaders_that_makes_no_sense_is_none(text: str) -> None:
    assert former_of({"metadata": {"annotations": {sightings.FORMER_ANNOTATION: text}}}) == ()
    assert former_of(None) == ()
