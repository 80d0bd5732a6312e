"""The Prometheus metrics of a host's memory: budget, reserved memory, pressure, evictions, swaps.

Registered by `agent.server.main` with the agent's other metrics.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.server.memory.eviction import Skip
from agent.server.memory.host_memory import HostMemory
from agent.server.memory.need import total
from agent.server.memory.watchdog import severity


class MemoryMetrics(Collector):
    """The collector of one host's memory."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory

    def describe(self) -> Iterator[Metric]:
        # The registration alone must not read anything.
        return iter(())

    def collect(self) -> Iterator[Metric]:
        memory, entries = self._memory, self._memory.ledger.entries()
        budget, taken = memory.budget, total(entry.counted for entry in entries.values())
        where = ["memory"]
        limits = GaugeMetricFamily(
            "herdsman_agent_memory_budget_bytes", "Memory that all processes may use together.", labels=where
        )
        promised = GaugeMetricFamily(
            "herdsman_agent_memory_reserved_bytes",
            "Memory of the budget that running processes use: the estimate, or the measured memory if larger.",
            labels=where,
        )
        limits.add_metric(["ram"], budget.bytes)
        promised.add_metric(["ram"], taken.ram_bytes)
        if budget.gpu_bytes is not None:
            limits.add_metric(["gpu"], budget.gpu_bytes)
            promised.add_metric(["gpu"], taken.gpu_bytes)
        yield limits
        yield promised
        estimates = GaugeMetricFamily(
            "herdsman_agent_process_memory_estimated_bytes",
            "Estimated memory with which a process was admitted.",
            labels=["namespace", "name"],
        )
        for key, entry in sorted(entries.items()):
            estimates.add_metric(key.split("/", 1), entry.need.total_bytes)
        yield estimates
        yield GaugeMetricFamily(
            "herdsman_agent_memory_waiting", "Processes that wait for room.", value=len(memory.ledger.waiting())
        )
        yield GaugeMetricFamily(
            "herdsman_agent_memory_pressure", "0 is Normal, 1 Warning, 2 Critical.", value=severity(memory.pressure)
        )
        yield CounterMetricFamily(
            "herdsman_agent_evictions",
            "Processes stopped because the host was short of memory.",
            value=memory.watchdog.evictions,
        )
        skipped = CounterMetricFamily(
            "herdsman_agent_evictions_skipped",
            "Checks under critical pressure that evicted nothing.",
            labels=["reason"],
        )
        for reason in Skip:
            skipped.add_metric([reason.value], memory.watchdog.skipped.get(reason, 0))
        yield skipped
        yield CounterMetricFamily(
            "herdsman_agent_swaps",
            "Processes stopped to make room for others of their group.",
            value=memory.groups.swaps,
        )
