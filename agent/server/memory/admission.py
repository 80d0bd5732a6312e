"""Decides whether a process may start now: its need against the budget less what runs. Fails closed.

`decide` is pure. The ledger calls it under its lock, so that two starts at once never get the same memory. A running
process counts with its estimate or its measured memory, whichever is more. Called by `host_memory`: an entry is made by
the admission and dropped when the process is gone; a process of an earlier agent is entered when it is adopted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from agent.contract import ProcessReason
from agent.server.memory.need import Need, amount, total

_NAMED = 4
"""Holders of memory that a message names."""


@dataclass(frozen=True)
class Bound:
    """What a process and all before it may take together."""

    room: Need
    source: str
    """Who says so, for people."""


@dataclass(frozen=True)
class AdmissionRequest:
    """A process that wants to start."""

    key: str
    need: Need | None
    """None: nobody can tell."""
    bound: Bound
    priority: int = 0
    check: Literal["enforce", "warn", "off"] = "enforce"
    since: float = 0.0
    """Since when it asks."""
    unknown: str = ""
    """Why nobody can tell what it needs."""


@dataclass(frozen=True)
class Refusal:
    """Why a process may not start now."""

    reason: Literal[ProcessReason.INSUFFICIENT_MEMORY, ProcessReason.MEMORY_UNKNOWN]
    message: str
    hopeless: bool = False
    """It would not fit with nothing else on the host."""


def decide(
    request: AdmissionRequest, taken: Mapping[str, Need], waiting: Iterable[AdmissionRequest] = ()
) -> Refusal | None:
    """Give None when the process may start, whatever its own `check` makes of the answer.

    `taken` is what each process has that runs or was admitted, `waiting` those that were refused before and still ask.
    Room in which a more important one of them fits is kept for it; one that does not fit holds up nobody.
    """
    if request.need is None:
        return Refusal(
            ProcessReason.MEMORY_UNKNOWN,
            f"Nobody can tell how much memory the process will take: {request.unknown or 'it names no model file'}. "
            "Say it (spec.resources.memory), or take the risk with herdsman.dev/memory-check: off",
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
                f"Needs {request.need}; the room that is free is kept for {first.key}, which asked for {first.need} "
                f"{'with a higher priority' if first.priority > request.priority else 'before'}",
            )
    return None


def ahead_of(request: AdmissionRequest, waiting: Iterable[AdmissionRequest]) -> list[AdmissionRequest]:
    """List those that wait and come first: more important, or as important and longer waiting."""
    first = [each for each in waiting if each.key != request.key and _rank(each) < _rank(request)]
    return sorted(first, key=_rank)


def in_turn(waiting: Iterable[AdmissionRequest]) -> list[AdmissionRequest]:
    """Sort those that wait by whose turn it is."""
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
"""Who has not asked again for so long waits no more; a refused process asks every few seconds."""

NOTICED_SHARE = 0.05
"""A smaller change of what a process has is none: every message with the numbers would change with it."""


@dataclass(frozen=True)
class Entry:
    """What one process has of the memory."""

    need: Need
    priority: int
    since: float
    measured_bytes: int = 0
    """What it was last measured to have in the machine's memory."""

    @property
    def counted(self) -> Need:
        """What counts: the estimate, or more where more was measured."""
        return Need(max(self.need.ram_bytes, self.measured_bytes), self.need.gpu_bytes)


class Ledger:
    """The account of one host."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._waiting: dict[str, tuple[AdmissionRequest, float]] = {}
        """Who was refused, and when it last asked."""

    def admit(self, request: AdmissionRequest, *, now: float) -> Refusal | None:
        """Decide, and enter what is admitted. A refusal that the process's own check lets pass is returned, too."""
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
        """Enter a process that runs already; one that is entered only gets this need."""
        with self._lock:
            known = self._entries.get(key)
            self._entries[key] = replace(known, need=need) if known is not None else Entry(need, priority, now)

    def measure(self, footprints: Mapping[str, int]) -> None:
        """Note what processes were measured to have, in bytes; small changes are let go."""
        with self._lock:
            for key, measured in footprints.items():
                entry = self._entries.get(key)
                if entry is None or entry.need.gpu_bytes:
                    continue
                if abs(measured - entry.measured_bytes) > NOTICED_SHARE * entry.measured_bytes:
                    self._entries[key] = replace(entry, measured_bytes=measured)

    def remove_process(self, key: str) -> bool:
        """Strike off a process that is gone; False when it had nothing."""
        with self._lock:
            return self._entries.pop(key, None) is not None

    def stop_waiting(self, key: str) -> None:
        """Stop counting a process among those that wait."""
        with self._lock:
            self._waiting.pop(key, None)

    def waiting(self) -> list[str]:
        """Name who waits for room, whose turn it is first."""
        with self._lock:
            return [each.key for each in in_turn(each for each, _ in self._waiting.values())]

    def entry(self, key: str) -> Entry | None:
        """Give what one process has; None when it has nothing."""
        with self._lock:
            return self._entries.get(key)

    def entries(self) -> dict[str, Entry]:
        """Give what every process has."""
        with self._lock:
            return dict(self._entries)
