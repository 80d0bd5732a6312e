"""The Prometheus metrics of an agent: its processes and their usage, the host, and the engines' metrics.

Called by `agent.server.api.http_api`. Everything is measured at a scrape, nothing in between.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import psutil
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.contract import ProcessPhase, ProcessReport
from agent.server.models.store_space import StoreSpace
from agent.server.telemetry import engine_metrics
from agent.server.telemetry.usage import UsageSampler
from agent.sources.errors import FileError
from agent.version import agent_version

SCRAPE_FRESH_S = 1.0
"""Scrapes within this time get the same values."""
_LABELS = ("namespace", "name")


class _Scraped(Collector):
    def describe(self) -> Iterator[Metric]:
        # The registration alone must not measure anything.
        return iter(())


class _Processes(_Scraped):
    def __init__(self, reports: Callable[[], Mapping[str, ProcessReport]], sampler: UsageSampler) -> None:
        self._reports = reports
        self._sampler = sampler

    def collect(self) -> Iterator[Metric]:
        reports = dict(sorted(self._reports().items()))
        yield from _of_reports(reports)
        samples = {
            key: sample for key, sample in self._sampler.samples(fresh_s=SCRAPE_FRESH_S).items() if key in reports
        }
        rss = _gauge("resident_memory_bytes", "Resident memory, descendants included.")
        footprint = _gauge("footprint_bytes", "Memory that would be free without the process.")
        cpu = CounterMetricFamily(
            "herdsman_agent_process_cpu_seconds", "Processor time, living descendants included.", labels=_LABELS
        )
        slots = _gauge("slots", "Requests that the process can work on at once.")
        for key, sample in sorted(samples.items()):
            labels = key.split("/", 1)
            rss.add_metric(labels, sample.measured.rss_bytes)
            cpu.add_metric(labels, sample.measured.cpu_s)
            if sample.measured.footprint_bytes is not None:
                footprint.add_metric(labels, sample.measured.footprint_bytes)
            if sample.usage.slots is not None:
                slots.add_metric(labels, sample.usage.slots)
        yield from (rss, footprint, cpu, slots)
        engines = [engine for engine in self._sampler.engines() if engine.key in samples]
        answers = _gauge("metrics_up", "1 if the engine's own metrics could be read, else 0.")
        for engine in engines:
            answers.add_metric(engine.key.split("/", 1), 1 if samples[engine.key].text else 0)
        yield answers
        yield from engine_metrics.relabelled({key: s.text for key, s in samples.items() if s.text}, engines)


def _of_reports(reports: Mapping[str, ProcessReport]) -> Iterator[Metric]:
    phases = GaugeMetricFamily("herdsman_agent_processes", "Processes by phase.", labels=["phase"])
    counted = Counter(report.phase for report in reports.values())
    for phase in ProcessPhase:
        phases.add_metric([phase.value], counted[phase])
    ready = _gauge("ready", "1 while the process serves.")
    restarts = CounterMetricFamily(
        "herdsman_agent_process_restarts", "Starts after a crash or a failed health check.", labels=_LABELS
    )
    each = GaugeMetricFamily(
        "herdsman_agent_process_phase", "1 for the phase that the process is in.", labels=[*_LABELS, "phase"]
    )
    done = _gauge("downloaded_bytes", "Downloaded bytes of a download in progress.")
    total = _gauge("download_bytes", "Total bytes of a download in progress.")
    for key, report in reports.items():
        labels = key.split("/", 1)
        ready.add_metric(labels, 1 if report.ready else 0)
        restarts.add_metric(labels, report.restarts)
        each.add_metric([*labels, report.phase.value], 1)
        if report.downloaded_bytes is not None:
            done.add_metric(labels, report.downloaded_bytes)
        if report.total_bytes is not None:
            total.add_metric(labels, report.total_bytes)
    yield from (phases, ready, restarts, each, done, total)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"herdsman_agent_process_{name}", text, labels=_LABELS)


class _Host(_Scraped):
    def __init__(self, host: str, space: StoreSpace | None) -> None:
        self._host = host
        self._space = space
        self._own = psutil.Process()

    def collect(self) -> Iterator[Metric]:
        told = GaugeMetricFamily(
            "herdsman_agent_info",
            "1, with the host and the version of the agent as labels.",
            labels=["host", "version"],
        )
        told.add_metric([self._host, agent_version()], 1)
        yield told
        with self._own.oneshot():
            rss, times = self._own.memory_info().rss, self._own.cpu_times()
        yield GaugeMetricFamily("herdsman_agent_resident_memory_bytes", "The agent's own memory.", rss)
        yield CounterMetricFamily(
            "herdsman_agent_cpu_seconds", "The agent's own processor time.", times.user + times.system
        )
        memory = psutil.virtual_memory()
        yield GaugeMetricFamily("herdsman_host_memory_bytes", "All memory of the host.", memory.total)
        yield GaugeMetricFamily(
            "herdsman_host_memory_available_bytes", "Memory that is available without swapping.", memory.available
        )
        with contextlib.suppress(OSError):
            yield GaugeMetricFamily("herdsman_host_load1", "Load average of one minute.", os.getloadavg()[0])
        if self._space is not None:
            yield from self._of_store(self._space)

    @staticmethod
    def _of_store(space: StoreSpace) -> Iterator[Metric]:
        try:
            usage = space.usage()
        except FileError:
            return
        yield GaugeMetricFamily(
            "herdsman_host_store_bytes", "Disk space that models use in the store.", usage.used_bytes
        )
        if usage.limit_bytes is not None:
            yield GaugeMetricFamily(
                "herdsman_host_store_limit_bytes", "Disk space that models may use in the store.", usage.limit_bytes
            )
        yield GaugeMetricFamily("herdsman_host_store_disk_bytes", "Size of the store's disk.", usage.disk_bytes)
        yield GaugeMetricFamily(
            "herdsman_host_store_disk_free_bytes", "Free space of the store's disk.", usage.free_bytes
        )


class AgentMetrics:
    """The registry of one agent, separate from the global one."""

    def __init__(
        self,
        reports: Callable[[], Mapping[str, ProcessReport]],
        sampler: UsageSampler,
        *,
        host: str = "",
        space: StoreSpace | None = None,
        collectors: Iterable[Collector] = (),
    ) -> None:
        """`collectors` are those of the agent's other parts."""
        self.registry = CollectorRegistry()
        for collector in (_Host(host, space), *collectors, _Processes(reports, sampler)):
            self.registry.register(collector)

    def text(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        return generate_latest(self.registry)
