"""Keeps account of a host's memory: which process has how much, and who waits for room. Thread-safe.

Called by `agent.server.memory.host_memory`. An entry is made by the admission itself and struck off when the process is
gone; what an earlier agent left running is entered when it is adopted.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.server.memory.admission import AdmissionRequest, Refusal, decide, in_turn
from agent.server.memory.need import Need

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
