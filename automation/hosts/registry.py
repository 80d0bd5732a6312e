"""The loop's knowledge of hosts: liveness, capacities, and placements.

Heartbeats do not enqueue services. A host that appears, grows or comes back enqueues the waiting services that fit. A
host that is lost, drained or tainted enqueues the services that are placed on it. Waiting services whose refusal has
changed, because of hosts or of other services, are enqueued some seconds later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from automation.hosts.host_allocations import HostAllocations, PlacementDecision
from automation.hosts.host_contexts import memory_at_context, with_contexts
from automation.hosts.liveness import Liveness
from automation.hosts.parse import placement_request
from automation.hosts.placement import HostCapacity, PlacementRequest
from automation.workqueue.debounce import Debounce, start_timer
from components.host_program import check_allowed, check_any_allowed
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.runtimes.host_rules import DEFAULT

REFRESH_S = 5.0
"""Shortest interval between two checks whether waiting services have new refusals, after hosts or reservations have
changed."""
SPREAD_S = 0.02
"""Delay between the services that such a check enqueues."""


@dataclass(frozen=True)
class HostProposal:
    """Hosts for the replicas of a service, not reserved yet."""

    request: PlacementRequest
    decision: PlacementDecision


class HostRegistry:
    """Liveness, capacities and allocations of hosts. Enqueues the services that a change affects. Thread-safe."""

    def __init__(
        self,
        *,
        enqueue: Callable[[ServiceKey], None] = lambda _key: None,
        enqueue_after: Callable[[ServiceKey, float], None] = lambda _key, _delay_s: None,
        move_after_s: float = 60.0,
        later: Callable[[float, Callable[[], None]], None] = start_timer,
    ) -> None:
        self._enqueue = enqueue
        self._enqueue_after = enqueue_after
        self._lock = threading.Lock()
        self._updating = threading.Lock()
        self._capacities: dict[str, HostCapacity] = {}
        self._leases: set[str] = set()
        self._refresh = Debounce(self._enqueue_waiting, delay_s=REFRESH_S, later=later)
        self.liveness = Liveness()
        self.liveness.on_change = self._liveness_changed
        self.allocations = HostAllocations(
            lost_for_s=self.liveness.lost_for_s,
            move_after_s=move_after_s,
            on_room=enqueue,
            on_reserved=self._refresh.trigger,
        )
        self.hosts_served: Callable[[], bool] = lambda: True
        """Returns whether the cluster serves Host objects. Without them a host is only a name with a Lease."""
        self.on_change: list[Callable[[str], None]] = []
        """Called for each host that was lost or came back, after the allocations were updated."""

    # --- watched changes ------------------------------------------------------------------------------------------

    def lease_changed(self, old: Json | None, new: Json | None) -> None:
        """Process a change of a host's Lease, in the form of `trim_hosts.lease`."""
        name = str((new or old or {})["host"])
        if not name:
            return
        self.liveness.seen(name, new)
        if old is None or new is None:
            with self._lock:
                (self._leases.add if new is not None else self._leases.discard)(name)
            self._update(name)
            # Whether a replica's host counts as lost depends on the existence of the Lease, too.
            self._enqueue_all(self.allocations.placed_on(name))

    def host_changed(self, old: Json | None, new: Json | None) -> None:
        """Process a change of a Host object, in the form of `trim_hosts.host`."""
        before, after = (each["capacity"] if each is not None else None for each in (old, new))
        if before == after:
            return
        name = str((new or old or {})["metadata"]["name"])
        with self._lock:
            if after is None:
                self._capacities.pop(name, None)
            else:
                self._capacities[name] = after
        self._update(name)
        if before is None or after is None or _for_placed(before) != _for_placed(after):
            self._enqueue_all(self.allocations.placed_on(name))

    def namespace_changed(self, namespace: str) -> None:
        """Process a change of a namespace's labels, by which hosts may accept or refuse its services."""
        self._enqueue_all(self.allocations.services_in_namespace(namespace))

    def process_changed(self, key: ServiceKey, new: Json | None, *, replica: int) -> None:
        """Process a change of a HostProcess, in the form of `trim_hosts.host_process`; None: it was deleted."""
        if new is None:
            self.allocations.remove_replica(key, replica)
            return
        told = new["status"].get("memoryBytes")
        self.allocations.record_replica(key, replica, new["spec"]["host"], told or new["spec"]["memory"])

    def _liveness_changed(self, name: str) -> None:
        self._update(name)
        self._enqueue_all(self.allocations.placed_on(name))
        for tell in self.on_change:
            tell(name)

    def _update(self, name: str) -> None:
        # The informers of Leases and of Hosts and the watch of silent hosts call this at the same time. Each passes on
        # what it has read before the next one reads. Otherwise an older value could overwrite a newer one, and stay.
        with self._updating:
            self.allocations.set_host(name, self.capacity(name), alive=self.liveness.alive(name))
        self._refresh.trigger()

    def _enqueue_waiting(self) -> None:
        for number, key in enumerate(self.allocations.services_with_new_refusals()):
            self._enqueue_after(key, number * SPREAD_S)

    def _enqueue_all(self, keys: Iterable[ServiceKey]) -> None:
        for key in keys:
            self._enqueue(key)

    # --- queries --------------------------------------------------------------------------------------------------

    def capacity(self, name: str) -> HostCapacity | None:
        """Return the properties of a host. With only a Lease, its name; None if there is no such host."""
        with self._lock:
            found = self._capacities.get(name)
            if found is None and name in self._leases:
                return HostCapacity(name, awaited=self.hosts_served())
            return found

    def has_lease(self, name: str) -> bool:
        """Return whether a host has a Lease. A host with LLMKube's agent has none."""
        with self._lock:
            return name in self._leases

    def propose(self, desired: DesiredService, *, created: str = "") -> HostProposal | None:
        """Choose hosts for the replicas of a service without reserving them.

        None for a service in pods without reserved hosts. If it has reserved hosts, the proposal releases them.
        """
        in_pods = desired.host_placement is None
        request = PlacementRequest(replicas=0) if in_pods else placement_request(desired, created=created)
        decision = self.allocations.propose(desired.key, request)
        return None if in_pods and not decision.changes else HostProposal(request, decision)

    def with_hosts(self, desired: DesiredService, proposal: HostProposal | None) -> DesiredService:
        """Return the service with the proposed hosts.

        Raises SpecInvalid, with the field, for a request that its hosts, or all hosts, do not allow.
        """
        hosting = desired.host_placement
        if hosting is None or proposal is None:
            return desired
        self._check_allowed(desired, proposal.request, proposal.decision)
        # A stopped service has no replica to place, but its pinned host is still reported.
        first, *others = proposal.decision.hosts or (hosting.host,)
        placed = hosting.model_copy(update={"host": first, "others": tuple(others)})
        return desired.model_copy(update={"host_placement": placed})

    def with_contexts(
        self, desired: DesiredService, proposal: HostProposal | None, processes: Mapping[int, Json]
    ) -> DesiredService:
        """Return the service with the context of each replica, if the service sets none (`host_contexts`).

        `processes` are its HostProcesses by replica, in the form of `trim_hosts.host_process`.
        """
        if proposal is None:
            return desired
        request, key = proposal.request, desired.key
        return with_contexts(
            desired, processes, lambda replica, host: self.allocations.room_for(key, replica, host, request)
        )

    def reserve(self, key: ServiceKey, proposal: HostProposal, desired: DesiredService | None) -> PlacementDecision:
        """Reserve the hosts of a proposal, with the memory that the replicas need at their contexts."""
        decision = self.allocations.reserve(key, proposal.request)
        for replica, host in enumerate(decision.hosts if desired is not None else ()):
            need = memory_at_context(desired, replica) if desired is not None else None
            if host is not None and need is not None:
                self.allocations.expect_memory(key, replica, host, need)
        return decision

    def place(
        self, desired: DesiredService, *, created: str = "", processes: Mapping[int, Json] | None = None
    ) -> tuple[DesiredService, PlacementDecision | None]:
        """Choose and reserve hosts for the replicas of a service. The decision is None for a service in pods.

        With `processes`, the contexts of its replicas are chosen, too.

        Raises SpecInvalid as `with_hosts` does. The hosts are reserved in that case, too.
        """
        proposal = self.propose(desired, created=created)
        if proposal is None:
            return desired, None
        self.allocations.reserve(desired.key, proposal.request)
        placed = self.with_hosts(desired, proposal)
        if processes is not None:
            placed = self.with_contexts(placed, proposal, processes)
            self.reserve(desired.key, proposal, placed)
        return placed, proposal.decision if desired.host_placement is not None else None

    def _check_allowed(self, desired: DesiredService, request: PlacementRequest, decision: PlacementDecision) -> None:
        needs, labels = request.requirements.needs, self.allocations.namespace_labels(desired.key.namespace)
        for name in dict.fromkeys(host for host in (*decision.hosts, request.pinned) if host is not None):
            allowance = (self.capacity(name) or HostCapacity(name)).allowance
            check_allowed(desired, needs, name, allowance, labels=labels)
        if decision.refusals is None or not needs:
            return
        with self._lock:
            known = [host.allowance for host in self._capacities.values()] or [DEFAULT]
        check_any_allowed(desired, needs, known)

    def release(self, key: ServiceKey) -> None:
        """Release the reservations of a deleted service."""
        self.allocations.release(key)


def _for_placed(host: HostCapacity) -> object:
    """Return the properties of a host that the status of its replicas depends on, or by which a replica leaves it."""
    return host.draining, host.taints, host.allowance, host.by_ssh
