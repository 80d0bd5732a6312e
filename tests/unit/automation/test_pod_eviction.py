"""Which pods are too old, and when they may be evicted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from automation.reconcile.act_on_pods import PodActor
from automation.serving.completion_check import Proof
from automation.serving.idleness import IdleCheck, Idleness
from automation.serving.pod_eviction import PodLifetime, is_whole, may_evict
from automation.serving.replicas import Replicas
from automation.status.event_recorder import EventRecorder
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from tests.support.builders import service
from tests.support.loop import eventually
from tests.support.pod_actions import act_on_pods
from tests.support.pod_proxy import PodProxy, Say, api_status
from tests.support.pods import remembered

KEY = ServiceKey("llmkube", "ns", "svc")
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CR: dict[str, Any] = {"apiVersion": "v1", "kind": "X", "metadata": {"name": "svc", "namespace": "ns", "uid": "u"}}


def pod(name: str, age_s: float, **more: Any) -> Json:
    return remembered(name, created=(NOW - timedelta(seconds=age_s)).isoformat().replace("+00:00", "Z"), **more)


def deployment(target: int = 2, **status: int) -> Json:
    counts = {"replicas": target, "updatedReplicas": target, "readyReplicas": target, "observedGeneration": 1}
    return {"metadata": {"generation": 1}, "spec": {"replicas": target}, "status": {**counts, **status}}


class Scene:
    def __init__(self, proxy: PodProxy) -> None:
        self.proxy = proxy
        self.requeued: list[float] = []
        self.recorder = EventRecorder(proxy.client)
        self.idle = IdleCheck(proxy.client)
        self.lifetime = PodLifetime(self.idle, requeue=self.requeue)
        self.actor = PodActor(proxy.client, Replicas(check=None, stalls=None, requeue=self.requeue))

    def requeue(self, _key: ServiceKey, delay_s: float) -> None:
        self.requeued.append(delay_s)

    def enforce(self, *pods: Json, live: Json | None = None, **fields: Any) -> None:
        desired = service(**{"max_pod_lifetime_s": 3600, **fields})
        found = self.lifetime.expired_pod(KEY, desired, live or deployment(len(pods)), pods, None, now=NOW)
        act_on_pods(self.actor, self.recorder, KEY, CR, found, requeue=self.requeue, now=NOW)

    def evicted(self) -> list[str]:
        return [path.split("/")[-2] for method, path, _ in self.proxy.others if path.endswith("/eviction")]

    def events(self) -> list[str]:
        assert self.recorder.flush(30)
        return [body["reason"] for _, path, body in self.proxy.others if path.endswith("/events")]


@pytest.fixture
def scene() -> Iterator[Scene]:
    with PodProxy() as proxy:
        made = Scene(proxy)
        yield made
        made.recorder.stop()
        made.idle.close()


def test_the_oldest_of_the_expired_goes_alone(scene: Scene) -> None:
    scene.enforce(pod("young", 10), pod("old", 4000), pod("older", 5000))
    assert scene.evicted() == ["older"]
    assert scene.events() == ["PodRecycled"]


def test_young_pods_are_looked_at_when_they_will_be_old(scene: Scene) -> None:
    scene.enforce(pod("a", 600), pod("b", 1000))
    assert not scene.evicted() and scene.requeued == [2600.0]
    scene.enforce(pod("a", 99999), max_pod_lifetime_s=None)
    assert not scene.evicted()


def test_a_budget_that_forbids_it_is_asked_again(scene: Scene) -> None:
    scene.proxy.other = lambda method, path, body: (
        api_status(429, "TooManyRequests", "disruption budget") if path.endswith("/eviction") else Say(body={})
    )
    scene.enforce(pod("a", 4000))
    assert scene.requeued == [30.0] and scene.events() == ["PodRecycleForbidden"]


def test_nothing_goes_while_the_service_is_not_whole(scene: Scene) -> None:
    old, other = pod("a", 4000), pod("b", 10)
    for live, pods in (
        (deployment(2, readyReplicas=1), (old, other)),
        (deployment(2, updatedReplicas=1), (old, other)),
        (deployment(2, replicas=3), (old, other)),
        (deployment(2, observedGeneration=0), (old, other)),
        (deployment(2), (old, pod("b", 10, healthy=False))),
        (deployment(2), (old, other, pod("c", 5))),
    ):
        scene.enforce(*pods, live=live)
    assert not scene.evicted()
    assert not is_whole(None, (old,), None)
    assert not is_whole(deployment(1), (old,), {"a": Proof("failed")})
    assert is_whole(deployment(1), (old,), {"a": Proof("proved")})


def test_a_busy_pod_is_waited_for_as_long_as_allowed(scene: Scene) -> None:
    slots = [{"is_processing": True}]
    scene.proxy.engines["a"] = lambda *_: Say(body=slots)
    scene.enforce(pod("a", 3700), pod_lifetime_idle_timeout_s=300)
    eventually(scene.idle.idle, what="an answer", timeout_s=60)
    scene.enforce(pod("a", 3701), pod_lifetime_idle_timeout_s=300)
    assert not scene.evicted() and 5.0 in scene.requeued
    scene.enforce(pod("a", 3900), pod_lifetime_idle_timeout_s=300)
    assert scene.evicted() == ["a"]


def test_an_idle_pod_need_not_be_waited_for() -> None:
    assert may_evict(300, Idleness("idle"), overdue_s=1)
    assert not may_evict(300, Idleness("unknown"), overdue_s=1)
    assert not may_evict(300, None, overdue_s=1)
    assert may_evict(None, None, overdue_s=0)
