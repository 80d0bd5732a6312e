"""What Prometheus can read of an agent: its processes by phase, and what each of them uses.

Called by `agent.server.http_api`; reads the supervisor and the operating system at each scrape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.contract import ProcessPhase
from agent.server.supervisor import Supervisor


class _Processes(Collector):
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def describe(self) -> Iterator[Metric]:
        # Nothing is measured for the registration alone.
        return iter(())

    def collect(self) -> Iterator[Metric]:
        reports = self._supervisor.reports()
        phases = GaugeMetricFamily("herdsman_agent_processes", "Processes by phase.", labels=["phase"])
        counted = Counter(report.phase for report in reports.values())
        for phase in ProcessPhase:
            phases.add_metric([phase.value], counted[phase])
        yield phases
        labels = ["namespace", "name"]
        ready = GaugeMetricFamily("herdsman_agent_process_ready", "1 while the process serves.", labels=labels)
        restarts = CounterMetricFamily(
            "herdsman_agent_process_restarts", "Starts after a crash or a failed health check.", labels=labels
        )
        for key, report in sorted(reports.items()):
            ready.add_metric(key.split("/", 1), 1 if report.ready else 0)
            restarts.add_metric(key.split("/", 1), report.restarts)
        yield ready
        yield restarts
        rss = GaugeMetricFamily(
            "herdsman_agent_process_resident_memory_bytes", "Resident memory, descendants included.", labels=labels
        )
        cpu = CounterMetricFamily(
            "herdsman_agent_process_cpu_seconds", "Processor time, living descendants included.", labels=labels
        )
        for key, handle in sorted(self._supervisor.handles().items()):
            usage = handle.usage()
            if usage is not None:
                rss.add_metric(key.split("/", 1), usage.rss_bytes)
                cpu.add_metric(key.split("/", 1), usage.cpu_s)
        yield rss
        yield cpu


class AgentMetrics:
    """The registry of one agent; never the global one."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Processes(supervisor))

    def text(self) -> bytes:
        """Give the metrics in Prometheus' text format."""
        return generate_latest(self._registry)
