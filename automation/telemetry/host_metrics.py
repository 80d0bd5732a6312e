"""Metrics of hosts, read from the loop's host allocations at each scrape.

They show the capacity that placement uses. The agent serves the host's measurements (`herdsman_host_memory_bytes` and
more).
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from automation.hosts.host_allocations import HostAllocations


class HostCollector(Collector):
    """A collector for a `CollectorRegistry`."""

    def __init__(self, book: HostAllocations) -> None:
        self._book = book

    def describe(self) -> Iterable[Metric]:
        """Return the metrics' names without values, so that a registration costs nothing."""
        return _families()

    def collect(self) -> Iterable[Metric]:
        alive, allocatable, reserved, replicas, waiting = families = _families()
        for host, lives, bytes_, placed in self._book.hosts():
            alive.add_metric((host.name,), float(lives))
            reserved.add_metric((host.name,), float(bytes_))
            replicas.add_metric((host.name,), float(placed))
            if host.memory_bytes is not None:
                allocatable.add_metric((host.name,), float(host.memory_bytes))
        waiting.add_metric((), float(len(self._book.waiting())))
        return families


def _families() -> tuple[GaugeMetricFamily, ...]:
    def gauge(name: str, what: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"herdsman_{name}", what, labels=labels)

    return (
        gauge("host_alive", "1 for a host that renews its Lease", "host"),
        gauge("host_allocatable_memory_bytes", "Memory that all processes of a host may use together", "host"),
        gauge("host_reserved_memory_bytes", "Memory of a host that its placed replicas reserve", "host"),
        gauge("host_placed_replicas", "Replicas that are placed on a host", "host"),
        gauge("services_waiting_for_host", "Services with a replica that no host fits"),
    )
