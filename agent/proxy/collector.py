"""The Prometheus metrics of a proxy. Registered by the agent and by the loop; reads the proxy at each scrape.

Each service with an open listener has one set of series.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.proxy.server import Proxy
from agent.proxy.service import WAKE_BUCKETS_S, Counts

LABELS = ("namespace", "name")


class ProxyCollector(Collector):
    """The metrics of one proxy; services are named `namespace/name`."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def describe(self) -> Iterator[Metric]:
        # The registration alone must not read the proxy.
        return iter(())

    def collect(self) -> Iterator[Metric]:
        held = GaugeMetricFamily("herdsman_proxy_held_requests", "Requests that wait for their service.", labels=LABELS)
        under_way = GaugeMetricFamily(
            "herdsman_proxy_requests_in_flight", "Requests in progress, including those that wait.", labels=LABELS
        )
        requests = CounterMetricFamily("herdsman_proxy_requests", "Received requests.", labels=LABELS)
        sleeps = CounterMetricFamily("herdsman_proxy_sleeps", "Times a service was put to sleep.", labels=LABELS)
        refused = CounterMetricFamily(
            "herdsman_proxy_refused_requests", "Requests answered with an error by the proxy.", labels=(*LABELS, "code")
        )
        wakes = HistogramMetricFamily(
            "herdsman_proxy_wake_seconds", "Time from the first waiting request until the service ran.", labels=LABELS
        )
        for state in self._proxy.states():
            labels, counts = state.name.split("/", 1), state.counts
            held.add_metric(labels, state.held)
            under_way.add_metric(labels, state.in_flight)
            requests.add_metric(labels, counts.requests)
            sleeps.add_metric(labels, counts.sleeps)
            for code, number in sorted(counts.refused.items()):
                refused.add_metric([*labels, code.value], number)
            wakes.add_metric(labels, buckets=_buckets(counts), sum_value=counts.wake_s)
        yield from (held, under_way, requests, sleeps, refused, wakes)


def _buckets(counts: Counts) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in WAKE_BUCKETS_S), "+Inf"]
    return list(zip(bounds, itertools.accumulate(counts.wake_buckets), strict=True))
