"""Which hosts live, as the loop has seen it: a host whose Lease has not changed for the Lease's duration is silent.

`cluster_cache` tells of each change of a Lease, `lost_hosts` asks whose time has run out and, once it has fenced such a
host, calls it lost. Everybody else only reads. Clocks are never compared: what counts is when this process saw a
renewal, by its own monotonic clock, so that a host whose clock is wrong by minutes lives as long as any other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kubeapi.json_types import Json


@dataclass
class _Host:
    """What is known of one host; times are the loop's own."""

    renewed: str
    """The Lease's renewTime as it was last seen: only that it changes is of interest."""
    holder: str
    seen_at: float
    duration_s: float
    lost_at: float | None = None


class Liveness:
    """Who lives. Thread-safe. The first sight of a host counts as a sign of life."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._hosts: dict[str, _Host] = {}
        self._began = clock()
        self.on_change: Callable[[str], None] = lambda _host: None
        """Is told of each host that came back, or was lost, after the fact; must not block."""

    def seen(self, host: str, lease: Json | None) -> None:
        """Take in a host's Lease as `trim.lease` leaves it; None when it was deleted.

        Its end is at once where nobody holds the Lease: its agent has said good-bye. A fenced host stays lost until its
        agent takes the fence away, whatever else it writes.
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
        """Tell whether a host lives; one that was never seen does not."""
        with self._lock:
            known = self._hosts.get(host)
            return known is not None and known.lost_at is None

    def living(self) -> tuple[str, ...]:
        """Name the hosts that live, sorted."""
        with self._lock:
            return tuple(sorted(name for name, known in self._hosts.items() if known.lost_at is None))

    def lost(self) -> tuple[str, ...]:
        """Name the hosts that were seen and are lost, sorted."""
        with self._lock:
            return tuple(sorted(name for name, known in self._hosts.items() if known.lost_at is not None))

    def known(self) -> tuple[str, ...]:
        """Name every host that was seen, sorted."""
        with self._lock:
            return tuple(sorted(self._hosts))

    def lost_for_s(self, host: str) -> float | None:
        """Give the seconds since a host was lost; None while it lives.

        A host that has no Lease at all counts as lost since this process began to look.
        """
        with self._lock:
            known = self._hosts.get(host)
            since = self._began if known is None else known.lost_at
            return None if since is None else max(0.0, self._clock() - since)

    def silent(self) -> tuple[str, ...]:
        """Name the hosts whose time has run out and that nobody has called lost yet."""
        now = self._clock()
        with self._lock:
            return tuple(
                sorted(n for n, h in self._hosts.items() if h.lost_at is None and now - h.seen_at >= h.duration_s)
            )

    def next_silence_s(self) -> float | None:
        """Give the seconds until the next host would have been silent for too long; None when no host lives."""
        now = self._clock()
        with self._lock:
            left = (h.seen_at + h.duration_s - now for h in self._hosts.values() if h.lost_at is None)
            soonest = min(left, default=None)
            return None if soonest is None else max(0.0, soonest)

    def lose(self, host: str) -> None:
        """Call a host lost; only what its Lease says later can call it back."""
        with self._lock:
            known = self._hosts.get(host)
            if known is None or known.lost_at is not None:
                return
            known.lost_at = self._clock()
        self.on_change(host)

    def restart(self, host: str | None = None) -> None:
        """Give a host, or all of them, one full duration from now: nobody could be heard until now."""
        now = self._clock()
        with self._lock:
            for name, known in self._hosts.items():
                if host in (None, name):
                    known.seen_at = now
