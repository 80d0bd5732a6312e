"""The Prometheus metrics of the gateway. Labels are the services of the cluster and words of this project, and never a
client's text, so that clients cannot add series.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.accounting.account import Account
from gateway.accounting.ledger import Ledger
from gateway.backends import Backends

FIRST_BYTE_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
DURATION_BUCKETS_S = (0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


class Metrics:
    """The metrics of one gateway, in a registry of their own. The event loop's thread writes them."""

    def __init__(self, backends: Backends, ledger: Ledger | None) -> None:
        self.registry = registry = CollectorRegistry()
        self._active: dict[str, int] = {}
        self._requests = Counter(
            "herdsman_gateway_requests",
            "Requests for a model that have ended, by the status of the answer; 0: the client left before an answer",
            ["model", "status"],
            registry=registry,
        )
        self._broken = Counter(
            "herdsman_gateway_incomplete_answers",
            "Answers that broke off or whose client left",
            ["model"],
            registry=registry,
        )
        self._refused = Counter(
            "herdsman_gateway_refused_requests",
            "Errors of the gateway itself, by their code",
            ["reason"],
            registry=registry,
        )
        self._first_byte = Histogram(
            "herdsman_gateway_first_byte_seconds",
            "Time from the whole request to the first byte of the answer",
            ["model"],
            buckets=FIRST_BYTE_BUCKETS_S,
            registry=registry,
        )
        self._duration = Histogram(
            "herdsman_gateway_request_duration_seconds",
            "Time from the whole request to the end of its answer",
            ["model"],
            buckets=DURATION_BUCKETS_S,
            registry=registry,
        )
        self._tokens = Counter(
            "herdsman_gateway_tokens",
            "Tokens of answered requests: of prompts, of these from a prefix cache, and of completions",
            ["model", "kind"],
            registry=registry,
        )
        registry.register(_Gauges(backends, self._active, ledger))

    def started(self, account: Account) -> None:
        """Count a request in progress."""
        self._active[account.model] = self._active.get(account.model, 0) + 1

    def finished(self, account: Account) -> None:
        """Record a request that has ended."""
        model = account.model
        self._active[model] -= 1
        if not self._active[model]:
            del self._active[model]
        assert account.ended_s is not None
        self._requests.labels(model, str(account.status)).inc()
        self._duration.labels(model).observe(account.ended_s - account.started_s)
        if account.first_byte_s is None:
            return
        self._first_byte.labels(model).observe(account.first_byte_s - account.started_s)
        if not account.completed:
            self._broken.labels(model).inc()
        tokens = account.tokens
        for kind, number in (("prompt", tokens.prompt), ("cached", tokens.cached), ("completion", tokens.completion)):
            if number:
                self._tokens.labels(model, kind).inc(number)

    def refused(self, code: str) -> None:
        """Count an error of the gateway."""
        self._refused.labels(code).inc()

    def forget(self, models: Iterable[str]) -> None:
        """Drop the series of services that no longer exist."""
        for model in models:
            for metric in (self._requests, self._broken, self._first_byte, self._duration, self._tokens):
                metric.remove_by_labels({"model": model})


class _Gauges(Collector):
    """Values that are read when Prometheus asks."""

    def __init__(self, backends: Backends, active: dict[str, int], ledger: Ledger | None) -> None:
        self._backends = backends
        self._ledger = ledger
        self._active = active

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        active = GaugeMetricFamily(
            "herdsman_gateway_active_requests", "Requests for a model in progress", labels=["model"]
        )
        replicas = GaugeMetricFamily("herdsman_gateway_replicas", "Known replicas of a model", labels=["model"])
        ejected = GaugeMetricFamily(
            "herdsman_gateway_ejected_replicas", "Replicas that are left out after failures", labels=["model"]
        )
        # The event loop may change both while this thread reads.
        for model, number in list(self._active.items()):
            active.add_metric([model], number)
        for backend in self._backends.all():
            model, endpoints = str(backend.route.model.service), backend.balancer.endpoints
            replicas.add_metric([model], len(endpoints))
            ejected.add_metric([model], sum(1 for each in endpoints if each.ejected_until))
        return (active, replicas, ejected, *self._of_ledger())

    def _of_ledger(self) -> Iterable[Metric]:
        if self._ledger is None:
            return
        up = "herdsman_gateway_store_up"
        yield GaugeMetricFamily(up, "1 while the store of the accounts answers", value=int(not self._ledger.away))
        lost = "herdsman_gateway_lost_usage"
        yield CounterMetricFamily(lost, "Sums that were dropped while the store was away", value=self._ledger.lost)
