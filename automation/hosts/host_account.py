"""The reservations on one host, and the hosts that fit given requirements.

The lock of `host_allocations` guards them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from automation.hosts import placement
from automation.hosts.placement import HostCapacity, PlacementRequest, Requirements
from program.desired.keys import ServiceKey


@dataclass
class Reservation:
    host: str
    memory_bytes: int
    group: tuple[str, str] | None = None
    stays_in_memory: bool = True
    requirements: Requirements | None = None
    """The requirements at its placement. None: the replica was found running."""
    asked_bytes: int | None = None
    """The memory estimate at its placement."""
    reported: bool = False
    """`memory_bytes` was reported by the host."""


@dataclass
class HostAccount:
    """A host with its reservations and their sums."""

    name: str
    capacity: HostCapacity
    alive: bool = False
    exists: bool = False
    """False: neither a Host object nor a Lease exists, only replicas with this host."""
    placed: dict[tuple[ServiceKey, int], Reservation] = field(default_factory=dict)
    alone_bytes: int = 0
    """Memory of processes that share it with no group."""
    groups: dict[tuple[str, str], Counter[int]] = field(default_factory=dict)
    """Memory of the members of each group that take turns. The largest member counts."""
    reserved_bytes: int = 0
    free_bytes: float = math.inf
    """Free memory for a process outside of groups. Infinite while the host's memory is unknown."""
    rank: tuple[float, int, str] = (0.0, 0, "")
    """Sort key for `spread`, smallest first: reserved share of the memory, number of processes, name."""
    packed: tuple[float, int, str] = (0.0, 0, "")
    """Sort key for `pack`."""

    def put(self, which: tuple[ServiceKey, int], reservation: Reservation) -> None:
        self.remove(which)
        self.placed[which] = reservation
        self._count(reservation, 1)
        self.recalculate()

    def remove(self, which: tuple[ServiceKey, int]) -> None:
        reservation = self.placed.pop(which, None)
        if reservation is not None:
            self._count(reservation, -1)
            self.recalculate()

    def recalculate(self) -> None:
        """Calculate the sums and sort keys from reservations and capacity."""
        shared = sum(max(sizes) for sizes in self.groups.values())
        self.reserved_bytes = self.alone_bytes + shared
        most = self.capacity.memory_bytes
        self.free_bytes = math.inf if most is None else most - self.reserved_bytes
        share = self.reserved_bytes / most if most else 0.0
        self.rank = (share, len(self.placed), self.name)
        self.packed = (-share, -len(self.placed), self.name)

    def grows_by(self, request: PlacementRequest) -> int:
        """Return how much memory is reserved in addition if this request is placed."""
        need = request.memory_bytes or 0
        if request.group is None or request.stays_in_memory:
            return need
        return max(0, need - max(self.groups.get(request.group, {0: 1})))

    def has_room(self, request: PlacementRequest, promised_bytes: int = 0) -> bool:
        """Return whether a replica fits, in addition to reservations and to the memory promised to others."""
        limit = request.limit_bytes(self.capacity)
        return limit is None or self.reserved_bytes + promised_bytes + self.grows_by(request) <= limit

    def reserved_without(self, which: tuple[ServiceKey, int], request: PlacementRequest) -> int:
        """Return the memory that others have reserved beside a replica with this request.

        Members of its own group that take turns do not count.
        """
        alone, largest = 0, dict[tuple[str, str], int]()
        for each in (reservation for key, reservation in self.placed.items() if key != which):
            if each.group is None or each.stays_in_memory:
                alone += each.memory_bytes
            elif each.group != request.group or request.stays_in_memory:
                largest[each.group] = max(largest.get(each.group, 0), each.memory_bytes)
        return alone + sum(largest.values())

    def _count(self, reservation: Reservation, sign: int) -> None:
        if reservation.group is None or reservation.stays_in_memory:
            self.alone_bytes += sign * reservation.memory_bytes
            return
        sizes = self.groups.setdefault(reservation.group, Counter())
        sizes[reservation.memory_bytes] += sign
        if not sizes[reservation.memory_bytes]:
            del sizes[reservation.memory_bytes]
        if not sizes:
            del self.groups[reservation.group]


@dataclass
class FitResults:
    """The results of all hosts for the same requirements."""

    requirements: Requirements
    fits: dict[str, HostAccount] = field(default_factory=dict)
    discouraged: dict[str, HostAccount] = field(default_factory=dict)
    """Hosts that fit, but are only for services without another host."""
    said: dict[str, str] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)

    def update(self, name: str, host: HostAccount | None) -> None:
        """Evaluate one host again. None: the host is gone."""
        before = self.said.pop(name, None)
        if before is not None:
            self.counted[before] -= 1
            if not self.counted[before]:
                del self.counted[before]
        self.fits.pop(name, None)
        self.discouraged.pop(name, None)
        if host is None or not host.exists:
            return
        why = placement.refusal(host.capacity, self.requirements) or ("" if host.alive else placement.LOST)
        if why:
            self.said[name] = why
            self.counted[why] += 1
        elif placement.is_discouraged(host.capacity, self.requirements):
            self.discouraged[name] = host
        else:
            self.fits[name] = host
