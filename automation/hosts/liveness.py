"""Tracks which hosts live: a host is silent if its Lease has not changed for the Lease's duration.

`automation.cache.cluster_cache` passes each change of a Lease. `lost_hosts` asks for silent hosts and, after fencing
one, marks it lost. All other modules only read. Clocks of machines are never compared: the time of a renewal is when
this process saw it, by its monotonic clock. So a host with a wrong clock is treated like any other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kubeapi.json_types import Json


@dataclass
class _Host:
    """The state of one host. Times are those of the loop's clock."""

    renewed: str
    """The Lease's renewTime at the last change. Only a change of it counts."""
    holder: str
    seen_at: float
    duration_s: float
    lost_at: float | None = None


class Liveness:
    """The liveness of all hosts. Thread-safe. The first sight of a host counts as a renewal."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._hosts: dict[str, _Host] = {}
        self._began = clock()
        self.on_change: Callable[[str], None] = lambda _host: None
        """Called after a host came back or was lost. Must not block."""

    def seen(self, host: str, lease: Json | None) -> None:
        """Process a host's Lease in the form of `trim_hosts.lease`; None means that it was deleted.

        A Lease without a holder makes the host lost immediately, because its agent has stopped. A fenced host stays
        lost until its agent removes the fence.
        """
        now = self._clock()
        renewed, holder, duration_s, fenced = "", "", 0.0, False
        if lease is not None:
            renewed, holder = str(lease["renewed"]), str(lease["holder"])
            duration_s, fenced = float(lease["duration_s"]), bool(lease["fenced"])
        with self._lock:
            known = self._hosts.get(host)
            if known is None:
                known = self._hosts[host] = _Host(renewed, holder, now, duration_s)
                changed = True
                known.lost_at = now if fenced or not holder else None
            else:
                was_lost = known.lost_at is not None
                is_new = (renewed, holder) != (known.renewed, known.holder)
                if is_new:
                    known.renewed, known.holder, known.seen_at = renewed, holder, now
                known.duration_s = duration_s
                if fenced or not holder:
                    known.lost_at = known.lost_at if was_lost else now
                elif is_new:
                    known.lost_at = None
                changed = was_lost != (known.lost_at is not None)
        if changed:
            self.on_change(host)

    def alive(self, host: str) -> bool:
        """Return whether a host lives. An unknown host does not."""
        with self._lock:
            known = self._hosts.get(host)
            return known is not None and known.lost_at is None

    def living(self) -> tuple[str, ...]:
        """Return the living hosts, sorted."""
        with self._lock:
            return tuple(sorted(name for name, known in self._hosts.items() if known.lost_at is None))

    def lost(self) -> tuple[str, ...]:
        """Return the lost hosts, sorted."""
        with self._lock:
            return tuple(sorted(name for name, known in self._hosts.items() if known.lost_at is not None))

    def known(self) -> tuple[str, ...]:
        """Return all hosts that were seen, sorted."""
        with self._lock:
            return tuple(sorted(self._hosts))

    def lost_for_s(self, host: str) -> float | None:
        """Return the seconds since a host was lost, or None while it lives.

        A host without a Lease counts as lost since the start of this process.
        """
        with self._lock:
            known = self._hosts.get(host)
            since = self._began if known is None else known.lost_at
            return None if since is None else max(0.0, self._clock() - since)

    def silent(self) -> tuple[str, ...]:
        """Return the hosts whose Leases have expired and that are not marked lost yet."""
        now = self._clock()
        with self._lock:
            return tuple(
                sorted(n for n, h in self._hosts.items() if h.lost_at is None and now - h.seen_at >= h.duration_s)
            )

    def next_silence_s(self) -> float | None:
        """Return the seconds until the next Lease can expire, or None if no host lives."""
        now = self._clock()
        with self._lock:
            left = (h.seen_at + h.duration_s - now for h in self._hosts.values() if h.lost_at is None)
            soonest = min(left, default=None)
            return None if soonest is None else max(0.0, soonest)

    def lose(self, host: str) -> None:
        """Mark a host lost. Only a later change of its Lease can mark it living again."""
        with self._lock:
            known = self._hosts.get(host)
            if known is None or known.lost_at is not None:
                return
            known.lost_at = self._clock()
        self.on_change(host)

    def restart(self, host: str | None = None) -> None:
        """Give one host, or all, a full Lease duration from now, because renewals could not be seen until now."""
        now = self._clock()
        with self._lock:
            for name, known in self._hosts.items():
                if host in (None, name):
                    known.seen_at = now
