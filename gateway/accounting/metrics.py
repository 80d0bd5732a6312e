"""The Prometheus metrics of the gateway.

Labels are the services of the cluster and words of this project, and never a client's text, so that clients cannot add
series.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.accounting.account import Account
from gateway.accounting.ledger import Ledger
from gateway.engines.backends import Backends

FIRST_BYTE_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
DURATION_BUCKETS_S = (0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
KINDS = ("prompt", "cached", "completion")


class _Times:
    """A histogram of durations."""

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative buckets of Prometheus."""
        bounds = [*(f"{bound:g}" for bound in self.bounds_s), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


class _Sums:
    """What is counted for one model."""

    __slots__ = ("active", "durations", "first_bytes", "incomplete", "statuses", "tokens")

    def __init__(self) -> None:
        self.active = 0
        self.incomplete = 0
        self.statuses: Counter[int] = Counter()
        self.tokens = dict.fromkeys(KINDS, 0)
        self.first_bytes = _Times(FIRST_BYTE_BUCKETS_S)
        self.durations = _Times(DURATION_BUCKETS_S)


class Metrics(Collector):
    """The metrics of one gateway, in a registry of their own.

    The event loop's thread counts in plain numbers, because the counters of prometheus_client take a tenth of the time
    of a request. The thread of the metrics' listener reads them when Prometheus asks.
    """

    def __init__(self, backends: Backends, ledger: Ledger | None) -> None:
        self.registry = CollectorRegistry()
        self._backends = backends
        self._ledger = ledger
        self._models: dict[str, _Sums] = {}
        self._gone: set[str] = set()
        """Services that no longer exist, but have requests in progress."""
        self._refused: Counter[str] = Counter()
        self.registry.register(self)

    def started(self, account: Account) -> None:
        """Count a request in progress."""
        self._of(account.model).active += 1

    def finished(self, account: Account) -> None:
        """Record a request that has ended."""
        sums = self._of(account.model)
        sums.active -= 1
        if not sums.active and account.model in self._gone:
            self.forget((account.model,))
        assert account.ended_s is not None
        sums.statuses[account.status] += 1
        sums.durations.add(account.ended_s - account.started_s)
        if account.first_byte_s is None:
            return
        sums.first_bytes.add(account.first_byte_s - account.started_s)
        if not account.completed:
            sums.incomplete += 1
        tokens = account.tokens
        sums.tokens["prompt"] += tokens.prompt or 0
        sums.tokens["cached"] += tokens.cached or 0
        sums.tokens["completion"] += tokens.completion or 0

    def refused(self, code: str) -> None:
        """Count an error of the gateway."""
        self._refused[code] += 1

    def forget(self, models: Iterable[str]) -> None:
        """Drop the series of services that no longer exist, once they have no request in progress."""
        for model in models:
            sums = self._models.get(model)
            if sums is not None and sums.active:
                self._gone.add(model)
            else:
                self._models.pop(model, None)
                self._gone.discard(model)

    def _of(self, model: str) -> _Sums:
        sums = self._models.get(model)
        if sums is None:
            sums = self._models[model] = _Sums()
        return sums

    # --- called by the registry -----------------------------------------------------------------------------------

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        # The event loop may change the numbers meanwhile, so each dictionary is copied first.
        models = list(self._models.items())
        yield from _requests(models)
        yield from _times(models)
        refused = CounterMetricFamily(
            "herdsman_gateway_refused_requests", "Errors of the gateway itself, by their code", labels=["reason"]
        )
        for code, number in list(self._refused.items()):
            refused.add_metric([code], number)
        yield refused
        yield from self._of_replicas()
        yield from self._of_ledger()

    def _of_replicas(self) -> Iterable[Metric]:
        replicas = GaugeMetricFamily("herdsman_gateway_replicas", "Known replicas of a model", labels=["model"])
        ejected = GaugeMetricFamily(
            "herdsman_gateway_ejected_replicas", "Replicas that are left out after failures", labels=["model"]
        )
        waiting = GaugeMetricFamily(
            "herdsman_gateway_waiting_requests", "Requests that wait for the start of a replica", labels=["model"]
        )
        for backend in self._backends.all():
            model, endpoints = str(backend.route.model.service), backend.balancer.endpoints
            replicas.add_metric([model], len(endpoints))
            ejected.add_metric([model], sum(1 for each in endpoints if each.ejected_until))
            if backend.route.holding is not None:
                waiting.add_metric([model], backend.waiting.counts.held)
        return (replicas, ejected, waiting)

    def _of_ledger(self) -> Iterable[Metric]:
        if self._ledger is None:
            return
        up = "herdsman_gateway_store_up"
        yield GaugeMetricFamily(up, "1 while the store of the accounts answers", value=int(not self._ledger.away))
        lost = "herdsman_gateway_lost_usage"
        yield CounterMetricFamily(lost, "Sums that the store did not take", value=self._ledger.lost)


def _requests(models: Sequence[tuple[str, _Sums]]) -> Iterable[Metric]:
    active = GaugeMetricFamily("herdsman_gateway_active_requests", "Requests for a model in progress", labels=["model"])
    ended = CounterMetricFamily(
        "herdsman_gateway_requests",
        "Requests for a model that have ended, by the status of the answer; 0: the client left before an answer",
        labels=["model", "status"],
    )
    incomplete = CounterMetricFamily(
        "herdsman_gateway_incomplete_answers", "Answers that broke off or whose client left", labels=["model"]
    )
    tokens = CounterMetricFamily(
        "herdsman_gateway_tokens",
        "Tokens of answered requests: of prompts, of these from a prefix cache, and of completions",
        labels=["model", "kind"],
    )
    for model, sums in models:
        active.add_metric([model], sums.active)
        incomplete.add_metric([model], sums.incomplete)
        for status, number in list(sums.statuses.items()):
            ended.add_metric([model, str(status)], number)
        for kind in KINDS:
            tokens.add_metric([model, kind], sums.tokens[kind])
    return (active, ended, incomplete, tokens)


def _times(models: Sequence[tuple[str, _Sums]]) -> Iterable[Metric]:
    first_byte = HistogramMetricFamily(
        "herdsman_gateway_first_byte_seconds",
        "Time from the whole request to the first byte of the answer",
        labels=["model"],
    )
    duration = HistogramMetricFamily(
        "herdsman_gateway_request_duration_seconds",
        "Time from the whole request to the end of its answer",
        labels=["model"],
    )
    for model, sums in models:
        first_byte.add_metric([model], sums.first_bytes.buckets(), sums.first_bytes.sum_s)
        duration.add_metric([model], sums.durations.buckets(), sums.durations.sum_s)
    return (first_byte, duration)
