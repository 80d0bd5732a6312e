"""From pods, nodes and Deployments to a service's scheduling message: position, impossible requests, preemption."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from automation.admission.scheduling import Scheduling
from automation.cache import trim
from automation.cache.service_index import ServiceIndex
from components import naming
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey

GPU = "nvidia.com/gpu"
FULL = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


def key(name: str) -> ServiceKey:
    return ServiceKey("llmkube", "prod", name)


class World:
    """The part of the caches that scheduling reads, and timers that the test runs."""

    def __init__(self, *nodes: Json) -> None:
        self.nodes = list(nodes)
        self.services: dict[str, Json] = {}
        self.enqueued: list[str] = []
        self.timers: list[Callable[[], None]] = []
        self.index = ServiceIndex()
        self.scheduling = Scheduling(
            self.index,
            enqueue=lambda each: self.enqueued.append(each.name),
            service=lambda _, name: self.services.get(name),
            nodes=lambda: self.nodes,
            later=lambda _, call: self.timers.append(call),
        )

    def pod(self, service: str, *, gone: bool = False, gpus: int = 1, status: Json | None = None, **spec: Any) -> None:
        amount = {GPU: str(gpus)}
        container = {"name": "engine", "resources": {"limits": amount, "requests": amount}}
        metadata = {"name": f"{service}-1", "namespace": "prod", "labels": {naming.LABEL_SERVICE: service}}
        obj = trim.pod({"metadata": metadata, "spec": {"containers": [container], **spec}, "status": status or {}})
        self.index.object_changed(kinds.PODS, None if not gone else obj, None if gone else obj)
        self.scheduling.pod_changed(key(service), None if gone else obj, name=f"{service}-1")

    def fire(self) -> list[str]:
        self.enqueued.clear()
        timers, self.timers = self.timers, []
        for call in timers:
            call()
        return sorted(self.enqueued)


def node(name: str, gpus: int) -> Json:
    status = {"allocatable": {GPU: str(gpus), "cpu": "8", "memory": "64Gi"}, "capacity": {GPU: str(gpus)}}
    return trim.node({"metadata": {"name": name, "labels": {"host": name}}, "status": status})


def unscheduled(message: str = FULL, **more: Any) -> Json:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}], **more}


def test_a_service_waits_from_its_pod_to_its_pods_end() -> None:
    world = World(node("n1", 4))
    world.services["a"] = {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}
    world.pod("a", status=unscheduled(), priority=1000)
    place = world.scheduling.place(key("a"))
    assert place is not None
    assert place.position == 1
    assert world.scheduling.gpu_queue.waiting()[key("a")].created == "2026-01-01T00:00:00Z"
    world.pod("a", status={"phase": "Running"}, nodeName="n1")
    assert world.scheduling.place(key("a")) is None


def test_a_pod_that_is_scheduled_during_a_check_by_another_thread_leaves_the_queue() -> None:
    world = World(node("n1", 4))
    world.pod("a", status=unscheduled())
    informer = threading.Thread(
        target=world.pod, args=("a",), kwargs={"status": {"phase": "Running"}, "nodeName": "n1"}
    )

    class Services(dict[str, Json]):
        """Lets the informer see the scheduled pod after the check has read the pods, or wait for the check."""

        def get(self, name: str, default: Any = None) -> Any:
            if not informer.ident:
                informer.start()
                informer.join(0.5)
            return super().get(name, default)

    world.services = Services()
    world.scheduling.refresh(key("a"))
    informer.join()
    assert world.scheduling.place(key("a")) is None


def test_who_never_fits_stands_in_nobodys_way_until_a_node_comes() -> None:
    world = World(node("n1", 4))
    world.pod("huge", gpus=8, status=unscheduled(), priority=9)
    world.pod("small", status=unscheduled())
    assert "the largest node, n1, has 4" in world.scheduling.never_fits(key("huge"))
    place = world.scheduling.place(key("small"))
    assert place is not None
    assert (place.position, place.length) == (1, 1)
    world.nodes.append(node("n2", 8))
    world.scheduling.nodes_changed()
    world.scheduling.nodes_changed()
    assert world.fire() == ["huge"]
    assert world.fire() == ["small"]
    assert world.scheduling.never_fits(key("huge")) == ""
    place = world.scheduling.place(key("huge"))
    assert place is not None
    assert place.position == 1


def test_nodes_that_change_nothing_for_those_who_wait_enqueue_nobody() -> None:
    world = World(node("n1", 4))
    world.pod("a", status=unscheduled())
    world.nodes.append(node("n2", 4))
    world.scheduling.nodes_changed()
    assert world.fire() == []
    assert world.scheduling.largest_memory_bytes() == 64 * 2**30
    assert world.scheduling.largest_memory_bytes({"host": "n9"}) is None


def test_a_pod_that_is_gone_waits_for_nothing() -> None:
    world = World()
    world.pod("a", status=unscheduled())
    assert world.scheduling.place(key("a"))
    world.pod("a", gone=True)
    assert world.scheduling.place(key("a")) is None
    assert world.scheduling.gpu_queue.waiting() == {}


def test_a_preemption_is_explained_until_the_loser_is_whole_again() -> None:
    world = World(node("n1", 1))
    whole = {"metadata": {"namespace": "prod", "name": "low", "labels": {naming.LABEL_SERVICE: "low"}}}
    world.index.object_changed(
        kinds.DEPLOYMENTS, None, {**whole, "spec": {"replicas": 1}, "status": {"readyReplicas": 1}}
    )
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    ready = {"type": "Ready", "status": "True"}

    def said(name: str) -> list[str]:
        return [problem.reason for problem in world.scheduling.preemption(key(name))]

    world.pod("low", status={"conditions": [ready, disrupted]}, nodeName="n1", priority=1000)
    world.pod("chat", status=unscheduled(nominatedNodeName="n1"), priority=1_000_000)
    assert world.enqueued == ["low"]
    # The Deployment still counts the preempted replica, and does so for a moment after its pod is gone.
    world.scheduling.deployment_changed(key("low"))
    assert said("low") == ["Preempted"]
    world.pod("low", gone=True)
    world.scheduling.deployment_changed(key("low"))
    assert said("chat") == ["PreemptedOthers"]
    world.pod("low", status={"conditions": [ready]}, nodeName="n2", priority=1000)
    assert said("chat") == said("low") == []
    assert world.enqueued[-1] == "chat"
