"""Choose the host of a service that runs as a process. Pure; the controller asks, `observe` supplies the hosts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LiveHost:
    """A host whose heartbeat is fresh, and how many processes it already holds."""

    name: str
    processes: int = 0


def place(*, pinned: str | None, current: str | None, hosts: tuple[LiveHost, ...]) -> str | None:
    """Name the host that should run a service; None when there is none to choose.

    A pin (annotation `herdsman.dev/host`) is obeyed even while that host is away. A service that is placed stays: a
    host that is only silent for a while must not make it run twice. Otherwise the host with the fewest processes wins,
    and the name decides between equals, so that every pass chooses the same.
    """
    if pinned:
        return pinned
    if current:
        return current
    if not hosts:
        return None
    return min(hosts, key=lambda host: (host.processes, host.name)).name
