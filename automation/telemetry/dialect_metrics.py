"""Metrics of the services of other dialects than LLMKube's, read from the loop's caches at the moment of a scrape.

Registered beside `service_metrics`, whose families have LLMKube's phases. Here the conditions are all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Object = Mapping[str, Any]

_OF_SERVICE = ("dialect", "namespace", "name")


class DialectCollector(Collector):
    """A collector for a `CollectorRegistry`. Calls the function that it was given, in the thread of the scrape."""

    def __init__(self, services: Callable[[], Iterable[tuple[str, Object]]]) -> None:
        """`services` gives custom resources, each with its dialect."""
        self._services = services

    def describe(self) -> Iterable[Metric]:
        """Name the metrics without reading anything, so that a registration costs nothing."""
        return _families([])

    def collect(self) -> Iterable[Metric]:
        return _families(self._services())


def _families(services: Iterable[tuple[str, Object]]) -> tuple[Metric, Metric]:
    ready = GaugeMetricFamily(
        "herdsman_dialect_service_ready", "Whether a service of another dialect is Ready", labels=_OF_SERVICE
    )
    reason = GaugeMetricFamily(
        "herdsman_dialect_service_not_ready",
        "1 for the reason that a service of another dialect is not Ready",
        labels=(*_OF_SERVICE, "reason"),
    )
    for dialect, cr in services:
        metadata = cr["metadata"]
        key = (dialect, metadata["namespace"], metadata["name"])
        conditions = (cr.get("status") or {}).get("conditions") or ()
        found: Object = next((each for each in conditions if each.get("type") == "Ready"), {})
        is_ready = found.get("status") == "True"
        ready.add_metric(key, float(is_ready))
        if not is_ready:
            reason.add_metric((*key, str(found.get("reason") or "Unknown")), 1.0)
    return ready, reason
