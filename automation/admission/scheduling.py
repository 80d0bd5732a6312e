"""What the scheduler does with the pods of services: who waits for a GPU, who can never be placed, who lost a place.

`cluster_cache` tells of pods, Deployments, services and nodes; `observe` asks for what is to be said of one service.
Nothing here asks the API server.
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
"""Nodes come and go in crowds; those who wait for one are looked at again once for all of them."""
MOST_VERDICTS = 4096
"""Different wishes of pods that are remembered with what the nodes have to say to them."""


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
        self._nodes: tuple[NodeCapacity, ...] | None = None
        self._verdicts: dict[tuple[object, ...], str] = {}
        self._largest: dict[tuple[tuple[str, str], ...], int | None] = {}
        self._unscheduled: dict[ServiceKey, str] = {}
        self._nodes_settled = Debounce(self._look_again, delay_s=NODES_SETTLE_S, later=later)
        self.gpu_queue = GpuQueue(on_moved=enqueue, later=later)
        self.preemptions = PreemptionLog()

    # --- what is to be said of a service --------------------------------------------------------------------------

    def place(self, key: ServiceKey) -> QueuePosition | None:
        """Where a service stands among those that wait for a GPU."""
        return self.gpu_queue.place(key)

    def never_fits(self, key: ServiceKey) -> str:
        """Why no node could ever hold a pod of the service that is not scheduled; empty when one could."""
        return next((why for pod in self._waiting_pods(key) if (why := self._verdict(pod))), "")

    def preemption(self, key: ServiceKey) -> tuple[Problem, ...]:
        """Whose place the service took, and who took its place."""
        return self.preemptions.explain(key)

    def largest_memory_bytes(self, node_selector: dict[str, str] | None = None) -> int | None:
        """The most memory that any (selected) node could give one pod; None while no node is known."""
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
        """All nodes, with what each can give to pods when it is empty."""
        with self._lock:
            if self._nodes is None:
                self._nodes = tuple(
                    NodeCapacity(n["metadata"]["name"], n["status"]["allocatable"], n["metadata"]["labels"])
                    for n in self._list_nodes()
                )
                self._verdicts.clear()
                self._largest.clear()
            return self._nodes

    # --- what happened --------------------------------------------------------------------------------------------

    def pod_changed(self, key: ServiceKey, new: Json | None, *, name: str) -> None:
        """A pod of the service changed; None when it is gone."""
        concerned: frozenset[ServiceKey] = frozenset()
        if new is None:
            self.preemptions.drop_nominee(key, name)
        elif new["preempted"]:
            concerned = self.preemptions.record_victim(Victim(key, name, new["node"], new["priority"]))
        elif new["nominated_node"]:
            concerned = self.preemptions.record_nominee(Nominee(key, name, new["nominated_node"], new["priority"]))
        self._enqueue_all(concerned - {key})
        self._make_good(key)
        self.refresh(key)

    def deployment_changed(self, key: ServiceKey) -> None:
        """The service's Deployment changed or is gone."""
        self._make_good(key)

    def nodes_changed(self) -> None:
        """A node came, went, or has another capacity or other labels."""
        with self._lock:
            self._nodes = None
        self._nodes_settled.trigger()

    def refresh(self, key: ServiceKey) -> None:
        """Find out anew whether the service waits for a GPU."""
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
            # Who can never be placed stands in nobody's way.
            if resource and not self._verdict(pod):
                cr = self._service(key.namespace, key.name) or {"metadata": {}}
                created = str(cr["metadata"].get("creationTimestamp", ""))
                found = Waiting(resource, pod["priority"], created)
                break
        self.gpu_queue.update(key, found)

    def _make_good(self, key: ServiceKey) -> None:
        """Let go of what the service lost once it has all its replicas again.

        Its pods are counted, since the Deployment's own count is behind them just when one was taken away.
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
