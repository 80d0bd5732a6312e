"""What is reserved on one host, and which hosts fit given requirements. `host_allocations` guards them by its lock."""

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
    """Those that it was placed by; None for one that was found, not decided."""
    asked_bytes: int | None = None
    """The estimate that it was placed by."""
    reported: bool = False
    """`memory_bytes` is what the host itself says."""


@dataclass
class HostAccount:
    """A host with the sums of what is placed on it."""

    name: str
    capacity: HostCapacity
    alive: bool = False
    exists: bool = False
    """False for one that only replicas name, which is nowhere else to be seen."""
    placed: dict[tuple[ServiceKey, int], Reservation] = field(default_factory=dict)
    alone_bytes: int = 0
    """Of the processes that share their memory with nobody."""
    groups: dict[tuple[str, str], Counter[int]] = field(default_factory=dict)
    """How much members of each group take that give way to each other; the largest of them counts."""
    reserved_bytes: int = 0
    free_bytes: float = math.inf
    """For a process that shares its memory with nobody; infinite while nobody knows what the host has."""
    rank: tuple[float, int, str] = (0.0, 0, "")
    """For `spread`, the smallest first: share of memory that is reserved, processes, name."""
    packed: tuple[float, int, str] = (0.0, 0, "")
    """For `pack`."""

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
        """Work out what follows from what is placed and what the host has."""
        shared = sum(max(sizes) for sizes in self.groups.values())
        self.reserved_bytes = self.alone_bytes + shared
        most = self.capacity.memory_bytes
        self.free_bytes = math.inf if most is None else most - self.reserved_bytes
        share = self.reserved_bytes / most if most else 0.0
        self.rank = (share, len(self.placed), self.name)
        self.packed = (-share, -len(self.placed), self.name)

    def grows_by(self, request: PlacementRequest) -> int:
        """How much more is reserved once this is placed too."""
        need = request.memory_bytes or 0
        if request.group is None or request.stays_in_memory:
            return need
        return max(0, need - max(self.groups.get(request.group, {0: 1})))

    def has_room(self, request: PlacementRequest, promised_bytes: int = 0) -> bool:
        """Tell whether a replica fits beside what is placed, and what others were promised."""
        limit = request.limit_bytes(self.capacity)
        return limit is None or self.reserved_bytes + promised_bytes + self.grows_by(request) <= limit

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
    """What all hosts say to the same requirements."""

    requirements: Requirements
    fits: dict[str, HostAccount] = field(default_factory=dict)
    discouraged: dict[str, HostAccount] = field(default_factory=dict)
    """Fit, and are only for who finds no other."""
    said: dict[str, str] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)

    def update(self, name: str, host: HostAccount | None) -> None:
        """Ask one host again; None for one that is gone."""
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
