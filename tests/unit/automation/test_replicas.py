"""Failing replicas are detected, reported and replaced; a real HTTP server takes the place of the API server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from automation.reconcile.act_on_pods import PodActor
from automation.serving.completion_check import CompletionCheck
from automation.serving.readiness import MOST_REPLACED, Proofs
from automation.serving.replicas import ReplicaReview, Replicas
from automation.serving.stall_watch import StallWatch
from automation.status.event_recorder import EventRecorder
from components.drained_pods import HUNG_S
from kubeapi.json_types import Json
from program.desired.engines import SecretKey
from program.desired.facts import Problem
from program.desired.keys import ServiceKey
from tests.support.builders import service
from tests.support.loop import eventually
from tests.support.pod_actions import act_on_pods
from tests.support.pod_proxy import PodProxy, Say, api_status, token
from tests.support.pods import remembered

pytestmark = pytest.mark.slow

KEY = ServiceKey("llmkube", "ns", "svc")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Scene:
    """The parts that the loop connects, and passes as the controller runs them."""

    def __init__(self, proxy: PodProxy, stall_s: float) -> None:
        self.proxy = proxy
        self.clock = Clock()
        self.requeued: list[float] = []
        self.recorder = EventRecorder(proxy.client)
        self.check = CompletionCheck(proxy.client, timeout_s=30, clock=self.clock, dice=lambda: 0.0)
        hasty = CompletionCheck(proxy.client, timeout_s=0.5)
        self.stalls = StallWatch(proxy.client, hasty.check, every_s=0.05, stall_s=stall_s)
        self.replicas = self.made(self.check)
        self.actor = PodActor(proxy.client, self.replicas)
        self.generation = 1

    def made(self, check: CompletionCheck | None) -> Replicas:
        return Replicas(check=check, stalls=self.stalls, requeue=self.requeue)

    def requeue(self, _key: ServiceKey, delay_s: float) -> None:
        self.requeued.append(delay_s)

    def pass_(
        self,
        *pods: Json,
        after_s: float = 0.0,
        replicas: Replicas | None = None,
        may_replace: bool = True,
        **fields: Any,
    ) -> tuple[Proofs | None, Problem | None]:
        """Run a pass, and another one after its requests have been answered; return proofs and problem."""
        cr = {"apiVersion": "v1", "kind": "X", "metadata": {"name": "svc", "namespace": "ns", "uid": "u"}}
        cr["metadata"]["generation"] = self.generation  # type: ignore[index]
        now = NOW + timedelta(seconds=after_s)
        used = replicas or self.replicas
        actor = self.actor if used is self.replicas else PodActor(self.proxy.client, used)
        found, failed = ReplicaReview(), None
        for _ in range(2):
            found = used.review(KEY, cr, service(**fields), pods, now=now, may_replace=may_replace)
            failed = act_on_pods(actor, self.recorder, KEY, cr, found.actions, requeue=self.requeue, now=now)
            eventually(self.check.idle, what="the answers", timeout_s=60)
        return found.proofs, found.problem or failed

    def writes(self, method: str) -> list[tuple[str, Json]]:
        return [(path, body) for verb, path, body in self.proxy.others if verb == method]

    def events(self) -> list[str]:
        assert self.recorder.flush(30)
        return [body["reason"] for path, body in self.writes("POST") if path.endswith("/events")]


@pytest.fixture
def stall_s() -> float:
    """Shorter where an engine stalls."""
    return 30.0


@pytest.fixture
def scene(stall_s: float) -> Iterator[Scene]:
    with PodProxy() as proxy:
        made = Scene(proxy, stall_s)
        yield made
        made.stalls.close()
        made.check.close()
        made.recorder.stop()


def test_a_replica_that_answers_is_told_so_and_not_asked_by_the_next_loop(scene: Scene) -> None:
    scene.proxy.engines["a"] = lambda *_: token()
    proofs, problem = scene.pass_(remembered("a"))
    assert proofs is not None and proofs["a"] is not None and proofs["a"].state == "proved" and problem is None
    path, body = scene.writes("PATCH")[0]
    assert path.startswith("/api/v1/namespaces/ns/pods/a/status")
    (condition,) = body["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["message"]) == ("herdsman.dev/completed", "True", "c1")
    assert body["metadata"] == {"uid": "uid-a"}
    asked = scene.proxy.count("a", "/v1/")
    next_loop = scene.made(CompletionCheck(scene.proxy.client, timeout_s=30))
    proofs, _ = scene.pass_(remembered("a", completed=("True", "Answered", "c1")), replicas=next_loop)
    assert proofs is not None and proofs["a"] is not None and proofs["a"].state == "proved"
    assert scene.proxy.count("a", "/v1/") == asked == 1


def test_a_replica_that_fails_three_times_is_replaced_with_an_event(scene: Scene) -> None:
    scene.proxy.engines["a"] = lambda *_: Say(500, {"error": "out of memory"})
    scene.pass_(remembered("a"))
    assert not scene.writes("DELETE")
    for _ in range(2):
        scene.clock.now += 60
        scene.pass_(remembered("a"))
    path, body = scene.writes("DELETE")[0]
    assert path == "/api/v1/namespaces/ns/pods/a" and body["preconditions"] == {"uid": "uid-a"}
    assert body["gracePeriodSeconds"] == HUNG_S, "the loop does not wait for requests without an answer"
    assert len(scene.writes("DELETE")) == 1, "the cache still has the pod, which is gone"
    assert scene.events() == ["ReplicaReplaced"]
    assert [round(delay_s) for delay_s in scene.requeued if delay_s][:1] == [5]


def fail(scene: Scene, name: str, after_s: float) -> Problem | None:
    scene.proxy.engines[name] = lambda *_: Say(500)
    problem = None
    for _ in range(3):
        _, problem = scene.pass_(remembered(name), after_s=after_s)
        scene.clock.now += 60
    return problem


def test_a_service_that_may_not_be_touched_keeps_its_replicas(scene: Scene) -> None:
    """Such a service is paused, or its change waits for approval."""
    scene.proxy.engines["a"] = lambda *_: Say(500, {"error": "out of memory"})
    for _ in range(4):
        proofs, problem = scene.pass_(remembered("a"), may_replace=False)
        scene.clock.now += 60
    assert proofs is not None and proofs["a"] is not None and proofs["a"].state == "failed"
    assert problem is None
    assert not scene.writes("DELETE")
    scene.pass_(remembered("a"))
    assert scene.writes("DELETE")


def test_after_five_replacements_in_a_row_a_person_must_look(scene: Scene) -> None:
    for number in range(MOST_REPLACED):
        assert fail(scene, f"p{number}", 100.0 * number) is None
    assert len(scene.writes("DELETE")) == MOST_REPLACED
    problem = fail(scene, "last", 1000)
    assert problem is not None and problem.terminal and problem.reason == "CompletionFailed"
    assert "kubectl logs last" in problem.message
    assert len(scene.writes("DELETE")) == MOST_REPLACED
    scene.generation = 2
    assert fail(scene, "edited", 2000) is None, "an edit starts a new count"
    assert len(scene.writes("DELETE")) == MOST_REPLACED + 1


def test_a_loop_without_the_right_to_ask_calls_no_replica_bad(scene: Scene) -> None:
    scene.proxy.engines["a"] = lambda *_: api_status(403, "Forbidden", "cannot create pods/proxy")
    for _ in range(4):
        proofs, problem = scene.pass_(remembered("a"))
        scene.clock.now += 3600
    assert proofs is not None and proofs["a"] is not None and proofs["a"].state == "unknown" and problem is None
    assert scene.proxy.count("a") == 1 and not scene.proxy.others


def test_a_loop_without_the_rights_to_act_says_so_and_goes_on(scene: Scene) -> None:
    scene.proxy.other = lambda method, path, body: (
        api_status(403, "Forbidden", "not allowed") if method in ("PATCH", "DELETE") else Say(body={})
    )
    scene.proxy.engines["good"] = lambda *_: token()
    for _ in range(3):
        scene.pass_(remembered("good"))
    assert len(scene.writes("PATCH")) == 1, "a right that is missing is not tried again with every pass"
    problem = fail(scene, "bad", 0)
    assert problem is not None and not problem.terminal and "cannot be deleted: not allowed" in problem.message


def test_a_key_that_is_secret_is_not_needed(scene: Scene) -> None:
    proofs, _ = scene.pass_(remembered("a", gate=True), api_key=SecretKey(name="keys", key="one"))
    assert proofs is not None and proofs["a"] is not None and proofs["a"].serves
    assert not scene.proxy.asked
    ((_, body), *_) = scene.writes("PATCH")
    assert body["status"]["conditions"][0]["reason"] == "Unverified"


@pytest.mark.parametrize("fields", [{"completion_check": False}, {}])
def test_where_no_check_is_wanted_gates_are_opened_and_nothing_is_asked(scene: Scene, fields: dict[str, bool]) -> None:
    replicas = scene.replicas if fields else scene.made(None)
    assert scene.pass_(remembered("a", gate=True), remembered("b"), replicas=replicas, **fields) == (None, None)
    assert not scene.proxy.asked
    assert {path.rpartition("/pods/")[2].partition("/")[0] for path, _ in scene.writes("PATCH")} == {"a"}


@pytest.mark.parametrize("stall_s", [0.2])
def test_a_replica_that_stalls_is_taken_out_and_replaced(scene: Scene) -> None:
    hanging = False

    def engine(method: str, path: str, body: object) -> Say:
        if path == "/metrics":
            return Say(body=b"llamacpp:requests_processing 1\nllamacpp:n_decode_total 7\n")
        if method == "POST":
            return Say(after_s=1.0) if hanging else token()
        return Say()

    scene.proxy.engines["a"] = engine
    scene.pass_(remembered("a", gate=True))
    hanging = True
    eventually(lambda: scene.stalls.followed() == 0, what="a stall", timeout_s=60)
    proofs, _ = scene.pass_(remembered("a", gate=True, completed=("True", "Answered", "c1")))
    assert proofs is not None and proofs["a"] is not None and not proofs["a"].serves
    assert scene.writes("PATCH")[-1][1]["status"]["conditions"][0]["status"] == "False"
    assert len(scene.writes("DELETE")) == 1 and 0.0 in scene.requeued
