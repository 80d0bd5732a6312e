"""Metrics of the services of other dialects than LLMKube's, read from the loop's caches at the moment of a scrape.

Registered beside `service_metrics`, whose families have LLMKube's phases. Here the conditions are all there is: Ready,
or what an unready service waits for (Reconciling: for other objects, Stalled: for an edit), or neither for one that is
stopped. What a peer's controller looks after, and says other things of, is left to its own metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kubeapi.json_types import Json
from program.dialects.registry import is_part_of_another

MARK = "Reconciling"
"""A condition that every status of ours has, and those of the peers have not."""
_OF_SERVICE = ("dialect", "namespace", "name")


class DialectCollector(Collector):
    """A collector for a `CollectorRegistry`. Calls the function that it was given, in the thread of the scrape."""

    def __init__(self, services: Callable[[], Iterable[tuple[str, Json]]]) -> None:
        """`services` gives custom resources, each with its dialect."""
        self._services = services

    def describe(self) -> Iterable[Metric]:
        """Name the metrics without reading anything, so that a registration costs nothing."""
        return _families([])

    def collect(self) -> Iterable[Metric]:
        return _families(self._services())


def _families(services: Iterable[tuple[str, Json]]) -> tuple[Metric, ...]:
    state = GaugeMetricFamily(
        "herdsman_dialect_service_state",
        "1 for the state that a service of another dialect is in",
        labels=(*_OF_SERVICE, "state"),
    )
    ready = GaugeMetricFamily(
        "herdsman_dialect_service_ready",
        "Whether a service of another dialect is Ready; nothing for one that is stopped",
        labels=_OF_SERVICE,
    )
    reason = GaugeMetricFamily(
        "herdsman_dialect_service_not_ready",
        "1 for the reason that a service of another dialect is not Ready",
        labels=(*_OF_SERVICE, "reason"),
    )
    for dialect, cr in services:
        metadata = cr["metadata"]
        conditions = {each.get("type"): each for each in (cr.get("status") or {}).get("conditions") or ()}
        if is_part_of_another(cr) or (conditions and MARK not in conditions):
            continue
        key, now = (dialect, metadata["namespace"], metadata["name"]), _state(conditions)
        state.add_metric((*key, now), 1.0)
        if now == "Stopped":
            continue
        ready.add_metric(key, float(now == "Ready"))
        if now != "Ready":
            # KServe's Ready repeats what its conditions of parts say; these reasons are the same for all dialects.
            found = conditions.get(now) or conditions.get("Ready") or {}
            reason.add_metric((*key, str(found.get("reason") or "Unknown")), 1.0)
    return state, ready, reason


def _state(conditions: Mapping[Any, Json]) -> str:
    """Say in one word what the conditions say together."""
    true = [name for name in ("Ready", "Stalled", MARK) if conditions.get(name, {}).get("status") == "True"]
    if true:
        return true[0]
    return "Stopped" if conditions else "Unknown"
