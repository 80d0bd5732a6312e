"""The scheduling of services' pods: which wait for a GPU, which can never be placed, which were preempted.

`cluster_cache` reports changes of pods, Deployments, services and nodes. `observe` reads the result for one service.
This module sends no request to the API server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from automation.admission.capacity import NodeCapacity, largest_memory_bytes, never_fits
from automation.admission.gpu_queue import GpuQueue, Waiting, waited_resource
from automation.admission.preemption import Nominee, PreemptionLog, Victim
from automation.cache.service_index import ServiceIndex
from automation.workqueue.debounce import Debounce, start_timer
from components import naming
from kubeapi.json_types import Json
from program.desired.facts import Problem, QueuePosition
from program.desired.keys import ServiceKey

NODES_SETTLE_S = 1.0
"""Nodes are added and removed in groups. Services that wait for one are checked again once for the group."""
MOST_VERDICTS = 4096
"""The number of different pod requests whose result is cached."""


class Scheduling:
    """The queue for GPUs, the capacity of nodes, and the preemptions. Thread-safe."""

    def __init__(
        self,
        index: ServiceIndex,
        *,
        enqueue: Callable[[ServiceKey], None],
        service: Callable[[str, str], Json | None],
        nodes: Callable[[], Iterable[Json]],
        later: Callable[[float, Callable[[], None]], None] = start_timer,
    ) -> None:
        self._index = index
        self._enqueue = enqueue
        self._service = service
        self._list_nodes = nodes
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._nodes: tuple[NodeCapacity, ...] | None = None
        self._verdicts: dict[tuple[object, ...], str] = {}
        self._largest: dict[tuple[tuple[str, str], ...], int | None] = {}
        self._unscheduled: dict[ServiceKey, str] = {}
        self._nodes_settled = Debounce(self._look_again, delay_s=NODES_SETTLE_S, later=later)
        self.gpu_queue = GpuQueue(on_moved=enqueue, later=later)
        self.preemptions = PreemptionLog()

    # --- the result for a service
    # ---------------------------------------------------------------------------------------

    def observe(self, key: ServiceKey) -> tuple[QueuePosition | None, str, tuple[Problem, ...]]:
        """Return the place of a service in the queue for GPUs, why it never fits, and its preemptions."""
        return self.place(key), self.never_fits(key), self.preemption(key)

    def place(self, key: ServiceKey) -> QueuePosition | None:
        """Return the place of a service in the queue for GPUs."""
        return self.gpu_queue.place(key)

    def never_fits(self, key: ServiceKey) -> str:
        """Return why no node could hold a pending pod of the service; empty when one could."""
        return next((why for pod in self._waiting_pods(key) if (why := self._verdict(pod))), "")

    def preemption(self, key: ServiceKey) -> tuple[Problem, ...]:
        """Describe the preemptions of the service's pods, and those for its pods."""
        return self.preemptions.explain(key)

    def largest_memory_bytes(self, node_selector: dict[str, str] | None = None) -> int | None:
        """Return the largest allocatable memory of a (selected) node; None while no node is known."""
        nodes, asked = self.nodes(), tuple(sorted((node_selector or {}).items()))
        with self._lock:
            if self._nodes is nodes and asked in self._largest:
                return self._largest[asked]
        found = largest_memory_bytes(nodes, node_selector)
        with self._lock:
            if self._nodes is nodes:
                self._largest[asked] = found
        return found

    def nodes(self) -> tuple[NodeCapacity, ...]:
        """Return all nodes with their allocatable resources."""
        with self._lock:
            if self._nodes is None:
                self._nodes = tuple(
                    NodeCapacity(n["metadata"]["name"], n["status"]["allocatable"], n["metadata"]["labels"])
                    for n in self._list_nodes()
                )
                self._verdicts.clear()
                self._largest.clear()
            return self._nodes

    # --- changes
    # --------------------------------------------------------------------------------------------------------

    def pod_changed(self, key: ServiceKey, new: Json | None, *, name: str) -> None:
        """Handle a change of a pod of the service; None when the pod was deleted."""
        concerned: frozenset[ServiceKey] = frozenset()
        if new is None:
            self.preemptions.drop_nominee(key, name)
        elif new["preempted"]:
            concerned = self.preemptions.record_victim(Victim(key, name, new["node"], new["priority"]))
        elif new["nominated_node"]:
            concerned = self.preemptions.record_nominee(Nominee(key, name, new["nominated_node"], new["priority"]))
        self._enqueue_all(concerned - {key})
        self._drop_replaced_victims(key)
        self.refresh(key)

    def deployment_changed(self, key: ServiceKey) -> None:
        """Handle a change or the deletion of the service's Deployment."""
        self._drop_replaced_victims(key)

    def nodes_changed(self) -> None:
        """Handle a new or deleted node, or a change of a node's capacity or labels."""
        with self._lock:
            self._nodes = None
        self._nodes_settled.trigger()

    def refresh(self, key: ServiceKey) -> None:
        """Check again whether the service waits for a GPU."""
        # The informers of pods and services and the timer of nodes call this at the same time. Each has to record what
        # it has read before the next one reads. Otherwise a pod that was scheduled meanwhile would stay in the queue.
        with self._refreshing:
            self._refresh(key)

    def _refresh(self, key: ServiceKey) -> None:
        pods = self._waiting_pods(key)
        why = self.never_fits(key) if pods else ""
        with self._lock:
            if pods:
                self._unscheduled[key] = why
            else:
                self._unscheduled.pop(key, None)
        found = None
        for pod in pods:
            resource = waited_resource(pod["unschedulable"], pod["requests"], claims=pod["device_claims"])
            # A pod that no node can hold does not wait in the queue.
            if resource and not self._verdict(pod):
                cr = self._service(key.namespace, key.name) or {"metadata": {}}
                created = str(cr["metadata"].get("creationTimestamp", ""))
                found = Waiting(resource, pod["priority"], created)
                break
        self.gpu_queue.update(key, found)

    def _drop_replaced_victims(self, key: ServiceKey) -> None:
        """Drop the victims of the service when it has all its replicas again.

        The pods are counted, because the count in the Deployment's status lags behind a preemption.
        """
        if not self.preemptions.has_victims(key):
            return
        deployment = self._index.objects(key.namespace, key.name).get(("Deployment", naming.deployment_name(key.name)))
        pods = self._index.pods(key.namespace, key.name)
        ready = sum(1 for pod in pods if pod["ready"] and not pod["preempted"] and not pod["metadata"]["deleting"])
        if deployment is None or ready >= deployment["spec"]["replicas"]:
            self._enqueue_all(self.preemptions.drop_victims(key) - {key})

    def _look_again(self) -> None:
        with self._lock:
            before = dict(self._unscheduled)
        for key, said in before.items():
            now = self.never_fits(key)
            if now != said:
                self.refresh(key)
                self._enqueue(key)

    def _waiting_pods(self, key: ServiceKey) -> list[Json]:
        pods = self._index.pods(key.namespace, key.name)
        found = [p for p in pods if p["unschedulable"] and not p["metadata"]["deleting"]]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def _verdict(self, pod: Json) -> str:
        nodes = self.nodes()
        asked = (tuple(sorted(pod["needs"].items())), tuple(sorted(pod["node_selector"].items())))
        with self._lock:
            known = self._verdicts.get(asked)
        if known is None:
            known = never_fits(pod["needs"], pod["node_selector"], nodes)
            with self._lock:
                if self._nodes is nodes:
                    if len(self._verdicts) >= MOST_VERDICTS:
                        self._verdicts.clear()
                    self._verdicts[asked] = known
        return known

    def _enqueue_all(self, keys: Iterable[ServiceKey]) -> None:
        for key in sorted(keys):
            self._enqueue(key)
