"""Decides which replica runs on which host, and keeps account of each host's memory.

`placement` contains the rules; `registry` passes in the hosts. The controller calls this on every pass: for a placed
service, only its hosts are checked. Whether a host fits is calculated once for all services with the same requirements,
and updated host by host.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from automation.hosts import placement
from automation.hosts.host_account import FitResults, HostAccount, Reservation
from automation.hosts.placement import HostCapacity, PlacementRequest, Refusals, Requirements
from program.desired.keys import ServiceKey
from program.host_context import HostRoom

MOST_ANSWERS = 128
"""Number of different requirements for which results are cached."""
_NOWHERE = (0.0, 0, "")


@dataclass(frozen=True)
class PlacementDecision:
    """The hosts of a service's replicas."""

    hosts: tuple[str | None, ...] = ()
    """By replica. None: no host was found."""
    refusals: Refusals | None = None
    """Why replicas have no host."""
    stuck: str = ""
    """Why replicas stay on hosts that they should leave. Empty: none should leave its host."""
    moved: tuple[str, ...] = ()
    """For each moved replica: its old and new host, and the reason."""
    retry_after_s: float | None = None
    """When to ask again, because the host of a replica was lost too recently."""
    changes: bool = field(default=False, compare=False)
    """The reservation changes other reservations or the waiting services."""


@dataclass(frozen=True)
class _Waiting:
    request: PlacementRequest
    told: str
    """The reported reason."""


class HostAllocations:
    """Decides all placements under one lock, so that two replicas never get the same memory. Thread-safe.

    A placed replica stays on its host. It leaves only a host that is excluded, drained, tainted with NoExecute or lost
    for `move_after_s`, only if the service may move, and only for a host that fits. Both callbacks are called without
    the lock: `on_room` for waiting services that could be placed now, most important first, and `on_reserved` after
    reservations changed while services wait, because their refusals may be different now.
    """

    def __init__(
        self,
        *,
        lost_for_s: Callable[[str], float | None],
        move_after_s: float = 60.0,
        on_room: Callable[[ServiceKey], None] = lambda _: None,
        on_reserved: Callable[[], None] = lambda: None,
    ) -> None:
        self._lost_for_s = lost_for_s
        self._move_after_s = move_after_s
        self._on_room = on_room
        self._on_reserved = on_reserved
        self.namespace_labels: Callable[[str], Mapping[str, str]] = lambda _namespace: {}
        """Returns the labels of a namespace, which hosts may select. Called without the lock."""
        self._lock = threading.Lock()
        self._hosts: dict[str, HostAccount] = {}
        self._placed: dict[ServiceKey, dict[int, Reservation]] = {}
        self._waiting: dict[ServiceKey, _Waiting] = {}
        self._answers: dict[Requirements, FitResults] = {}
        self._groups: dict[tuple[str, str], Counter[str]] = {}
        """The number of members of each group, by host."""
        self._choosy: set[str] = set()
        """Hosts that accept only some namespaces."""

    # --- hosts ----------------------------------------------------------------------------------------------------

    def set_host(self, name: str, capacity: HostCapacity | None, *, alive: bool) -> None:
        """Set the capacity of a host. None: it has neither a Host object nor a Lease any more."""
        with self._lock:
            host = self._hosts.get(name)
            if host is None:
                if capacity is None:
                    return
                host = self._hosts[name] = HostAccount(name, capacity)
            host.exists = capacity is not None
            host.capacity = capacity or HostCapacity(name)
            host.alive = alive and host.exists
            (self._choosy.add if host.capacity.allowance.restricts_namespaces else self._choosy.discard)(name)
            host.recalculate()
            for answers in self._answers.values():
                answers.update(name, host)
            self._drop_if_empty(host)
            who = self._could_use(name) if host.alive else []
        self._notify(who)

    def hosts(self) -> tuple[tuple[HostCapacity, bool, int, int], ...]:
        """List the hosts: capacity, whether they live, reserved bytes, and number of processes."""
        with self._lock:
            return tuple(
                (host.capacity, host.alive, host.reserved_bytes, len(host.placed))
                for _, host in sorted(self._hosts.items())
                if host.exists
            )

    def placed_on(self, host: str) -> tuple[ServiceKey, ...]:
        """Return the services with a replica on a host."""
        with self._lock:
            found = self._hosts.get(host)
            return tuple(sorted({key for key, _ in found.placed})) if found is not None else ()

    def services_in_namespace(self, namespace: str) -> tuple[ServiceKey, ...]:
        """List the placed and waiting services of a namespace. Empty while every host accepts all namespaces."""
        with self._lock:
            if not self._choosy:
                return ()
            return tuple(sorted({key for key in (*self._placed, *self._waiting) if key.namespace == namespace}))

    def waiting(self) -> tuple[ServiceKey, ...]:
        """List the services that wait for a host or for another host, most important first."""
        with self._lock:
            return tuple(key for key, _ in self._in_order())

    def services_with_new_refusals(self) -> tuple[ServiceKey, ...]:
        """List waiting services whose refusal differs from the reported one."""
        labels = {key.namespace: self.namespace_labels(key.namespace) for key in self.waiting()} if self._choosy else {}
        with self._lock:
            reasons: dict[tuple[PlacementRequest, frozenset[str], frozenset[str], str], str] = {}
            found = []
            for key, waiting in self._waiting.items():
                taken = frozenset(r.host for r in self._placed.get(key, {}).values())
                closed = self._closed_to(key, labels.get(key.namespace, {}))
                # The refusal names the namespace that a host does not accept.
                namespace = key.namespace if closed else ""
                asked = (replace(waiting.request, priority=0, created=""), taken, closed, namespace)
                if asked not in reasons:
                    reasons[asked] = str(self._explain(key, waiting.request, closed))
                if reasons[asked] != waiting.told:
                    found.append(key)
            return tuple(found)

    # --- running replicas -----------------------------------------------------------------------------------------

    def record_replica(self, key: ServiceKey, replica: int, host: str, memory_bytes: int | None) -> None:
        """Record a replica with a HostProcess. `memory_bytes` is reported by its host, or None before that.

        A replica without a placement decision counts as placed, so that running replicas stay when the loop starts.
        """
        with self._lock:
            mine = self._placed.get(key, {}).get(replica)
            if mine is None:
                found = Reservation(host, memory_bytes or 0, reported=bool(memory_bytes))
            elif not memory_bytes or mine.host != host or mine.memory_bytes == memory_bytes:
                return
            else:
                found = replace(mine, memory_bytes=memory_bytes, reported=True)
            who = self._put(key, replica, found)
        self._reserved(who)

    def expect_memory(self, key: ServiceKey, replica: int, host: str, memory_bytes: int) -> None:
        """Count this memory for a placed replica until its host has reported its own number."""
        with self._lock:
            mine = self._placed.get(key, {}).get(replica)
            if mine is None or mine.host != host or mine.reported or mine.memory_bytes >= memory_bytes:
                return
            who = self._put(key, replica, replace(mine, memory_bytes=memory_bytes))
        self._reserved(who)

    def remove_replica(self, key: ServiceKey, replica: int) -> None:
        """Remove a replica whose HostProcess was deleted.

        A decided placement stays, because the object is created again.
        """
        with self._lock:
            mine = self._placed.get(key, {}).get(replica)
            if mine is None or mine.requirements is not None:
                return
            who = self._drop(key, replica)
        self._reserved(who)

    def release(self, key: ServiceKey) -> None:
        """Release the reservations of a service that is deleted or runs in pods."""
        with self._lock:
            if key not in self._placed and key not in self._waiting:
                return
            self._waiting.pop(key, None)
            who = self._drop_from(key, 0)
        self._reserved(who)

    def room_for(self, key: ServiceKey, replica: int, host: str, request: PlacementRequest) -> HostRoom | None:
        """Return the memory that a replica may take on a host beside the others; None while the host's is unknown."""
        with self._lock:
            account = self._hosts.get(host)
            limit = request.limit_bytes(account.capacity) if account is not None else None
            if account is None or limit is None:
                return None
            reserved = account.reserved_without((key, replica), request)
            gpu = account.capacity.gpu_memory_bytes
            # Herdsman puts all layers on the GPUs, so what is reserved counts against them first.
            return HostRoom(max(0, limit - reserved), None if gpu is None else max(0, gpu - min(reserved, gpu)))

    # --- placement ------------------------------------------------------------------------------------------------

    def propose(self, key: ServiceKey, request: PlacementRequest) -> PlacementDecision:
        """Return the decision that `reserve` would make now, without reserving anything."""
        labels = self.namespace_labels(key.namespace) if self._choosy else {}
        with self._lock:
            placed, waiting = dict(self._placed.get(key, {})), self._waiting.get(key)
            decision, _ = self._reserve(key, request, labels)
            if placed == self._placed.get(key, {}) and waiting == self._waiting.get(key):
                return decision
            self._drop_from(key, 0)
            for replica, reservation in placed.items():
                self._put(key, replica, reservation)
            self._waiting.pop(key, None)
            if waiting is not None:
                self._waiting[key] = waiting
        return replace(decision, changes=True)

    def reserve(self, key: ServiceKey, request: PlacementRequest) -> PlacementDecision:
        """Choose a host for each replica and reserve its memory there. A placed replica stays if it can."""
        labels = self.namespace_labels(key.namespace) if self._choosy else {}
        with self._lock:
            decision, could_use = self._reserve(key, request, labels)
        self._reserved(each for each in could_use if each != key)
        return decision

    def _reserve(
        self, key: ServiceKey, request: PlacementRequest, labels: Mapping[str, str]
    ) -> tuple[PlacementDecision, list[ServiceKey]]:
        """Make the reservations.

        Returns the decision and the services that could use released memory. Requires the lock.
        """
        closed = self._closed_to(key, labels)
        who = self._drop_from(key, request.replicas)
        stuck: list[str] = []
        moved: list[str] = []
        soon: list[float] = []
        refusals: Refusals | None = None
        told = ""
        for replica in range(request.replicas):
            mine = self._placed.get(key, {}).get(replica)
            if request.pinned is not None:
                if replica == 0:
                    who += self._settle(key, replica, request, request.pinned)
                    stuck += self._pin_trouble(request)
                continue
            if mine is None:
                chosen = self._choose(key, request, closed)
                if chosen is not None:
                    who += self._settle(key, replica, request, chosen)
                else:
                    refusals = refusals or self._explain(key, request, closed)
                    told = str(refusals)
                continue
            why = placement.other_namespace(key.namespace) if mine.host in closed else ""
            why = why or self._why_leave(mine, request)
            if not why:
                who += self._settle(key, replica, request, mine.host)
                soon += self._may_be_lost_in_s(mine.host) if request.may_move else ()
                continue
            away = self._choose(key, request, closed) if request.may_move else None
            if away is not None:
                moved.append(f"replica {replica} moves from host `{mine.host}`, which {why}, to `{away}`")
                who += self._settle(key, replica, request, away)
            else:
                who += self._settle(key, replica, request, mine.host, unwillingly=True)
                stays = "the service may not move"
                if request.may_move:
                    stays = told = str(self._explain(key, request, closed))
                stuck.append(f"replica {replica} stays on host `{mine.host}`, which {why}: {stays}")
        if refusals is not None or (stuck and request.may_move and request.pinned is None):
            self._waiting[key] = _Waiting(request, told)
        else:
            self._waiting.pop(key, None)
        mine_now = self._placed.get(key, {})
        hosts = tuple(mine_now[n].host if n in mine_now else None for n in range(request.replicas))
        return PlacementDecision(hosts, refusals, "; ".join(stuck), tuple(moved), min(soon, default=None)), who

    def _pin_trouble(self, request: PlacementRequest) -> list[str]:
        found = self._hosts.get(request.pinned or "")
        why = placement.why_leave(found.capacity, request.requirements) if found is not None and found.exists else ""
        return (
            [f"replica 0 stays on host `{request.pinned}`, which {why}: the service is pinned to this host"]
            if why
            else []
        )

    def _why_leave(self, mine: Reservation, request: PlacementRequest) -> str:
        host = self._hosts[mine.host]
        why = placement.why_leave(host.capacity, request.requirements)
        if why:
            return why
        lost_for_s = None if host.alive else self._lost_for_s(mine.host)
        if lost_for_s is not None and lost_for_s >= self._move_after_s:
            return placement.LOST
        if mine.requirements is None or not host.alive:
            return ""
        if mine.requirements != request.requirements:
            # The service was edited, so its current requirements count, as for a new service.
            return placement.refusal(replace(host.capacity, unschedulable=False), request.requirements)
        if request.memory_enforced and mine.asked_bytes is not None and (request.memory_bytes or 0) > mine.asked_bytes:
            limit = request.limit_bytes(host.capacity)
            free = math.inf if limit is None else limit - host.reserved_bytes + mine.memory_bytes
            if (request.memory_bytes or 0) > free:
                return placement.lack((request.memory_bytes or 0) - int(free))
        return ""

    def _may_be_lost_in_s(self, name: str) -> tuple[float, ...]:
        """Return the seconds after which replicas may leave a lost host. Empty for a living host."""
        lost_for_s = None if self._hosts[name].alive else self._lost_for_s(name)
        return () if lost_for_s is None else (max(0.0, self._move_after_s - lost_for_s) + 0.1,)

    def _closed_to(self, key: ServiceKey, labels: Mapping[str, str]) -> frozenset[str]:
        """Return the hosts that do not accept this namespace, which has these labels."""
        return frozenset(
            name
            for name in self._choosy
            if name in self._hosts and not self._hosts[name].capacity.allowance.admits(key.namespace, labels)
        )

    def _choose(self, key: ServiceKey, request: PlacementRequest, closed: frozenset[str]) -> str | None:
        """Return the best host that fits, is not in `closed`, and runs no other replica of the service."""
        answers = self._answers_to(request.requirements)
        taken = {*(r.host for r in self._placed.get(key, {}).values()), *closed}
        for enforced in (True, False):
            if not enforced and request.memory_enforced:
                return None
            for hosts in (answers.fits, answers.discouraged):
                if (found := self._best(hosts, request, taken, enforced=enforced)) is not None:
                    return found
        return None

    def _best(
        self, hosts: dict[str, HostAccount], request: PlacementRequest, taken: Collection[str], *, enforced: bool
    ) -> str | None:
        first = (*request.preferred, *self._groups.get(request.group, ())) if request.group else request.preferred
        for name in first:
            if name in hosts and name not in taken and (not enforced or hosts[name].has_room(request)):
                return name
        able: Iterable[HostAccount] = hosts.values()
        if enforced and request.limits_itself:
            able = (host for host in hosts.values() if host.has_room(request))
        elif enforced:
            need = request.memory_bytes or 0
            able = (host for host in hosts.values() if need <= host.free_bytes)
        if request.strategy == "pack":
            return min((host.packed for host in able if host.name not in taken), default=_NOWHERE)[2] or None
        return min((host.rank for host in able if host.name not in taken), default=_NOWHERE)[2] or None

    def _explain(self, key: ServiceKey, request: PlacementRequest, closed: frozenset[str]) -> Refusals:
        """Count the reasons why hosts do not fit."""
        answers = self._answers_to(request.requirements)
        taken = {r.host for r in self._placed.get(key, {}).values()}
        reasons = Counter(answers.counted)
        lacking: list[int] = []
        for hosts in (answers.fits, answers.discouraged):
            for host in hosts.values():
                if host.name in closed:
                    reasons[placement.other_namespace(key.namespace)] += 1
                elif host.name in taken:
                    reasons[placement.TAKEN] += 1
                elif not host.has_room(request):
                    limit = request.limit_bytes(host.capacity) or 0
                    lacking.append(host.grows_by(request) + host.reserved_bytes - limit)
        if lacking:
            reasons[placement.lack(min(lacking), max(lacking))] = len(lacking)
        return Refusals(sum(1 for host in self._hosts.values() if host.exists), dict(reasons))

    def _answers_to(self, requirements: Requirements) -> FitResults:
        answers = self._answers.get(requirements)
        if answers is None:
            if len(self._answers) >= MOST_ANSWERS:
                self._answers.clear()
            answers = self._answers[requirements] = FitResults(requirements)
            for name, host in self._hosts.items():
                answers.update(name, host)
        return answers

    # --- reservations and their sums; these methods require the lock ----------------------------------------------

    def _settle(
        self, key: ServiceKey, replica: int, request: PlacementRequest, host: str, *, unwillingly: bool = False
    ) -> list[ServiceKey]:
        """Create or update the reservation of a replica with its current needs.

        `unwillingly`: the replica should leave this host, so its earlier requirements continue to count. Returns the
        waiting services that could use released memory.
        """
        wanted = Reservation(
            host,
            request.memory_bytes or 0,
            request.group,
            request.stays_in_memory,
            request.requirements,
            request.memory_bytes,
        )
        before = self._placed.get(key, {}).get(replica)
        if before is not None and before.host == host:
            known = before.reported or before.memory_bytes > wanted.memory_bytes
            if known and before.asked_bytes in (None, request.memory_bytes):
                # Reported by the host, or expected at the context of the replica.
                wanted = replace(wanted, memory_bytes=before.memory_bytes, reported=before.reported)
            if unwillingly and before.requirements is not None:
                wanted = replace(wanted, requirements=before.requirements, asked_bytes=before.asked_bytes)
        return self._put(key, replica, wanted) if before != wanted else []

    def _put(self, key: ServiceKey, replica: int, reservation: Reservation) -> list[ServiceKey]:
        before = self._placed.get(key, {}).get(replica)
        self._drop(key, replica)
        host = self._hosts.get(reservation.host)
        if host is None:
            host = self._hosts[reservation.host] = HostAccount(reservation.host, HostCapacity(reservation.host))
        host.put((key, replica), reservation)
        self._placed.setdefault(key, {})[replica] = reservation
        if reservation.group is not None:
            self._groups.setdefault(reservation.group, Counter())[reservation.host] += 1
        gave_back = before is not None and (
            before.host != reservation.host or before.memory_bytes > reservation.memory_bytes
        )
        return self._could_use(before.host) if before is not None and gave_back else []

    def _drop(self, key: ServiceKey, replica: int) -> list[ServiceKey]:
        """Remove a reservation. Returns the waiting services that could use its memory."""
        mine = self._placed.get(key, {}).pop(replica, None)
        if mine is None:
            return []
        if not self._placed[key]:
            del self._placed[key]
        if mine.group is not None:
            members = self._groups[mine.group]
            members[mine.host] -= 1
            if not members[mine.host]:
                del members[mine.host]
            if not members:
                del self._groups[mine.group]
        host = self._hosts[mine.host]
        host.remove((key, replica))
        self._drop_if_empty(host)
        return self._could_use(mine.host)

    def _drop_from(self, key: ServiceKey, first: int) -> list[ServiceKey]:
        """Remove the reservations of all replicas from `first` on."""
        return [who for n in sorted(self._placed.get(key, {})) if n >= first for who in self._drop(key, n)]

    def _drop_if_empty(self, host: HostAccount) -> None:
        if not host.exists and not host.placed:
            self._hosts.pop(host.name, None)

    def _could_use(self, name: str) -> list[ServiceKey]:
        """Return the waiting services that fit on a host together, most important first."""
        host = self._hosts.get(name)
        if host is None or not host.alive or not self._waiting:
            return []
        found, promised = [], 0
        for key, request in self._in_order():
            answers = self._answers_to(request.requirements)
            if name not in answers.fits and name not in answers.discouraged:
                continue
            if any(r.host == name for r in self._placed.get(key, {}).values()):
                continue
            if host.has_room(request, promised):
                found.append(key)
                promised += host.grows_by(request)
        return found

    def _in_order(self) -> list[tuple[ServiceKey, PlacementRequest]]:
        order = sorted(
            self._waiting.items(), key=lambda item: (-item[1].request.priority, item[1].request.created, item[0])
        )
        return [(key, waiting.request) for key, waiting in order]

    def _reserved(self, who: Iterable[ServiceKey]) -> None:
        """Report that reservations have changed, and the services that fit now."""
        self._notify(who)
        if self._waiting:
            self._on_reserved()

    def _notify(self, who: Iterable[ServiceKey]) -> None:
        for key in dict.fromkeys(who):
            self._on_room(key)
