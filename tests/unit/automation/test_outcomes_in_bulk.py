"""In a bulk, the first status of a service that was applied waits for the objects of the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from automation.engine.batches import Batcher
from automation.engine.port import Batch, ServiceOutcome
from automation.engine.runs import BULK, FIRST_STATUS_IN_BULK_S
from automation.engine.submissions import Submission
from automation.reconcile.outcomes import Outcomes
from program.desired.keys import ServiceKey
from tests.fakes.engine import FakeEngine
from tests.fakes.rendered import BAD_PORT, key, service

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIMEOUT_S = 10.0
ASKED = ("v1", 1)


class Bulk:
    """A Batcher whose outcomes go to `Outcomes`. The runs of a namespace wait until the test opens it."""

    def __init__(self) -> None:
        self.open = {"early": threading.Event(), "late": threading.Event()}
        self.enqueued: dict[ServiceKey, list[float]] = {}
        """The delays with which each service was enqueued."""
        self._crs: dict[ServiceKey, dict[str, Any]] = {}
        self.batcher = Batcher(FakeEngine(before_run=self._before_run), on_outcome=self._record)
        parts: dict[str, Any] = {
            "services": {"llmkube": SimpleNamespace(get=self._get, references=lambda _key: ())},
            "drift": SimpleNamespace(settled=lambda _key: ""),
            "recorder": SimpleNamespace(record=lambda *_about, **_note: None),
            "history": SimpleNamespace(record=lambda *_about, **_rest: None),
            "client": None,
            "cluster": None,
        }
        self._outcomes = Outcomes(
            batcher=self.batcher,
            requeue=lambda of, delay_s: self.enqueued.setdefault(of, []).append(delay_s),
            clock=lambda: NOW,
            **parts,
        )

    def submit(self, name: str, namespace: str, *, phase: str = "", port: int = 8080) -> ServiceKey:
        of = key(name, namespace)
        self._crs[of] = {"metadata": {"name": name, "generation": 1}, **({"status": {"phase": phase}} if phase else {})}
        self.batcher.submit(service(name, namespace=namespace, port=port), asked=ASKED, now=NOW)
        return of

    def await_outcomes(self, *of: ServiceKey) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not all(each in self.enqueued for each in of):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def quiet_for_s(self, of: ServiceKey, *, asked: tuple[object, ...] = ASKED) -> float:
        return self.batcher.runs.state(of).quiet_for_s(asked, now=NOW + timedelta(seconds=1))

    def _before_run(self, batch: Batch) -> None:
        assert self.open[batch.stack.namespace].wait(TIMEOUT_S)

    def _get(self, namespace: str, name: str) -> dict[str, Any]:
        return self._crs[key(name, namespace)]

    def _record(self, submission: Submission, outcome: ServiceOutcome) -> None:
        self._outcomes.record(submission, outcome)


@pytest.fixture
def bulk() -> Iterator[Bulk]:
    made = Bulk()
    yield made
    for event in made.open.values():
        event.set()
    made.batcher.stop(TIMEOUT_S)


def test_a_new_service_is_reported_after_the_objects_of_the_others(bulk: Bulk) -> None:
    last = bulk.submit("last", "late")
    new = [bulk.submit(f"new-{number}", "early") for number in range(BULK)]
    bulk.open["early"].set()
    bulk.await_outcomes(*new)
    assert {tuple(bulk.enqueued[each]) for each in new} == {(FIRST_STATUS_IN_BULK_S,)}, (
        "the objects of `last` do not exist"
    )
    assert bulk.quiet_for_s(new[0]) == FIRST_STATUS_IN_BULK_S - 1
    assert bulk.quiet_for_s(new[0], asked=("v2", 2)) <= 0, "edited meanwhile"
    bulk.open["late"].set()
    bulk.await_outcomes(last)
    assert bulk.batcher.drain(TIMEOUT_S)
    assert {tuple(bulk.enqueued[each]) for each in new} == {(FIRST_STATUS_IN_BULK_S, 0.0)}
    assert bulk.quiet_for_s(new[0]) <= 0
    assert bulk.enqueued[last] == [0.0]


def test_failures_and_services_with_a_status_are_reported_at_once_in_a_bulk(bulk: Bulk) -> None:
    bulk.submit("last", "late")
    new = [bulk.submit(f"new-{number}", "early") for number in range(BULK)]
    edited = bulk.submit("edited", "early", phase="Ready")
    failing = bulk.submit("failing", "early", port=BAD_PORT)
    bulk.open["early"].set()
    bulk.await_outcomes(*new, edited, failing)
    assert bulk.enqueued[edited] == [0.0] and bulk.quiet_for_s(edited) <= 0
    assert bulk.enqueued[failing] == [0.0] and bulk.quiet_for_s(failing) <= 0


def test_a_few_services_are_reported_at_once(bulk: Bulk) -> None:
    bulk.submit("last", "late")
    new = [bulk.submit(f"new-{number}", "early") for number in range(3)]
    bulk.open["early"].set()
    bulk.await_outcomes(*new)
    assert {tuple(bulk.enqueued[each]) for each in new} == {(0.0,)}


def test_a_bulk_ends_when_no_service_waits_for_the_engine(bulk: Bulk) -> None:
    runs = bulk.batcher.runs
    bulk.submit("last", "late")
    new = [bulk.submit(f"new-{number}", "early") for number in range(BULK)]
    assert runs.in_bulk()
    bulk.open["early"].set()
    bulk.await_outcomes(*new)
    assert runs.in_bulk(), "one service still waits"
    bulk.open["late"].set()
    assert bulk.batcher.drain(TIMEOUT_S)
    assert not runs.in_bulk()
