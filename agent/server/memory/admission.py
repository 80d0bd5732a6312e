"""Decides whether a process may start now: its need must fit into the budget less the memory of running processes.

`decide` has no I/O. The ledger calls it under its lock, so that two starts at the same time never get the same memory.
A running process counts with the larger of its estimated and its measured memory. A process of unknown need is refused.
`host_memory` calls this module: an admission adds an entry, the end of the process removes it, and the adoption of an
earlier agent's process adds one too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from agent.contract import ProcessReason
from agent.server.memory.need import Need, amount, total

_NAMED = 4
"""Number of processes that a message lists by name."""


@dataclass(frozen=True)
class Bound:
    """The memory that a process and those admitted before it may take together."""

    room: Need
    source: str
    """Where the bound comes from, for people."""


@dataclass(frozen=True)
class AdmissionRequest:
    """The request of a process to start."""

    key: str
    need: Need | None
    """None: unknown."""
    bound: Bound
    priority: int = 0
    check: Literal["enforce", "warn", "off"] = "enforce"
    since: float = 0.0
    """When it asked first."""
    unknown: str = ""
    """Why its need is unknown."""


@dataclass(frozen=True)
class Refusal:
    """Why a process may not start now."""

    reason: Literal[ProcessReason.INSUFFICIENT_MEMORY, ProcessReason.MEMORY_UNKNOWN]
    message: str
    hopeless: bool = False
    """The process would not fit even if it were alone on the host."""


def decide(
    request: AdmissionRequest, taken: Mapping[str, Need], waiting: Iterable[AdmissionRequest] = ()
) -> Refusal | None:
    """Return None if the process may start, else the refusal. The caller applies `request.check`.

    `taken` is the memory of running and admitted processes by key; `waiting` are refused requests that are still
    repeated. Memory is kept free for waiting requests that come first and fit; one that does not fit blocks no other
    request.
    """
    if request.need is None:
        return Refusal(
            ProcessReason.MEMORY_UNKNOWN,
            f"The memory that the process needs is unknown: {request.unknown or 'it names no model file'}. Set "
            f"spec.resources.memory, or skip this check with annotation herdsman.dev/memory-check: off",
        )
    others = {key: need for key, need in taken.items() if key != request.key}
    room = request.bound.room
    if not request.need.within(room):
        return Refusal(
            ProcessReason.INSUFFICIENT_MEMORY,
            f"Needs {request.need} and may never have more than {room} here ({request.bound.source}); "
            "choose a smaller context, cache type or quantization, another host, or a larger budget",
            hopeless=True,
        )
    free = room - total(others.values())
    if not request.need.within(free):
        return Refusal(
            ProcessReason.INSUFFICIENT_MEMORY,
            f"Needs {request.need}; of {room} ({request.bound.source}) {free} are free{_holders(others)}",
        )
    for first in ahead_of(request, waiting):
        if first.need is None or not first.need.within(free):
            continue
        free -= first.need
        if not request.need.within(free):
            return Refusal(
                ProcessReason.INSUFFICIENT_MEMORY,
                f"Needs {request.need}; the free memory is kept for {first.key}, which requested {first.need} "
                f"{'with a higher priority' if first.priority > request.priority else 'before'}",
            )
    return None


def ahead_of(request: AdmissionRequest, waiting: Iterable[AdmissionRequest]) -> list[AdmissionRequest]:
    """List the waiting requests that come first: higher priority, or the same priority and longer waiting."""
    first = [each for each in waiting if each.key != request.key and _rank(each) < _rank(request)]
    return sorted(first, key=_rank)


def in_turn(waiting: Iterable[AdmissionRequest]) -> list[AdmissionRequest]:
    """Sort waiting requests by their turn."""
    return sorted(waiting, key=_rank)


def _rank(request: AdmissionRequest) -> tuple[int, float, str]:
    return -request.priority, request.since, request.key


def _holders(taken: Mapping[str, Need]) -> str:
    by_size = sorted(taken.items(), key=lambda item: (-item[1].total_bytes, item[0]))
    if not by_size:
        return ""
    named = [f"{key} has {need}" for key, need in by_size[:_NAMED]]
    rest = by_size[_NAMED:]
    if rest:
        named.append(f"{len(rest)} more have {amount(sum(need.total_bytes for _, need in rest))}")
    return ": " + ", ".join(named)


WAITING_S = 20.0
"""A request that is not repeated for this time no longer waits. A refused process repeats it every few seconds."""

NOTICED_SHARE = 0.05
"""Smaller relative changes of measured memory are ignored, because every message with the numbers would change."""


@dataclass(frozen=True)
class Entry:
    """The memory of one process."""

    need: Need
    priority: int
    since: float
    measured_bytes: int = 0
    """Its measured memory in the machine's RAM, at the last measurement."""

    @property
    def counted(self) -> Need:
        """The memory that counts: the larger of estimate and measurement."""
        return Need(max(self.need.ram_bytes, self.measured_bytes), self.need.gpu_bytes)


class Ledger:
    """The admitted processes of one host and the requests that wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._waiting: dict[str, tuple[AdmissionRequest, float]] = {}
        """Refused requests, with the time of their last repetition."""

    def admit(self, request: AdmissionRequest, *, now: float) -> Refusal | None:
        """Decide, and add an entry for an admitted process.

        A refusal that `request.check` overrides is returned, too.
        """
        with self._lock:
            self._waiting = {key: each for key, each in self._waiting.items() if now - each[1] <= WAITING_S}
            if request.key in self._waiting:
                request = replace(request, since=self._waiting[request.key][0].since)
            counted = {key: entry.counted for key, entry in self._entries.items()}
            refusal = decide(request, counted, [each for each, _ in self._waiting.values()])
            if refusal is not None and request.check == "enforce":
                if refusal.hopeless:
                    self._waiting.pop(request.key, None)
                else:
                    self._waiting[request.key] = (request, now)
                return refusal
            self._waiting.pop(request.key, None)
            self._entries[request.key] = Entry(request.need or Need(), request.priority, now)
            return refusal

    def adopt(self, key: str, need: Need, priority: int, *, now: float) -> None:
        """Add an entry for a running process. An existing entry only gets this need."""
        with self._lock:
            known = self._entries.get(key)
            self._entries[key] = replace(known, need=need) if known is not None else Entry(need, priority, now)

    def measure(self, footprints: Mapping[str, int]) -> None:
        """Record the measured memory of processes in bytes, without small changes."""
        with self._lock:
            for key, measured in footprints.items():
                entry = self._entries.get(key)
                if entry is None or entry.need.gpu_bytes:
                    continue
                if abs(measured - entry.measured_bytes) > NOTICED_SHARE * entry.measured_bytes:
                    self._entries[key] = replace(entry, measured_bytes=measured)

    def remove_process(self, key: str) -> bool:
        """Remove the entry of a process. Returns False if it had none."""
        with self._lock:
            return self._entries.pop(key, None) is not None

    def stop_waiting(self, key: str) -> None:
        """Remove a process from the waiting requests."""
        with self._lock:
            self._waiting.pop(key, None)

    def waiting(self) -> list[str]:
        """List the waiting processes in the order of their turns."""
        with self._lock:
            return [each.key for each in in_turn(each for each, _ in self._waiting.values())]

    def entry(self, key: str) -> Entry | None:
        """Return the entry of one process, or None."""
        with self._lock:
            return self._entries.get(key)

    def entries(self) -> dict[str, Entry]:
        """Return all entries by process."""
        with self._lock:
            return dict(self._entries)
