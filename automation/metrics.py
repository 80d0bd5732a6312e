"""Every metric of the loop, on a registry that is passed in.

Made once by `automation.cli`, counted up by the loop's parts, served by `automation.health`.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from kubeapi.client import KubeClient
from kubeapi.kinds import Kind

_RECONCILE_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_BATCH_BUCKETS_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_SIZE_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Metrics:
    """The collectors, named `herdsman_…` in the exposition. Thread-safe as prometheus_client is."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.queue_depth = Gauge("herdsman_queue_depth", "Services that wait for a worker now", registry=self.registry)
        self.reconciles = Counter(
            "herdsman_reconciles", "Passes over one service, by result", ["result"], registry=self.registry
        )
        self.reconcile_seconds = Histogram(
            "herdsman_reconcile_seconds",
            "Duration of one pass over one service, engine included",
            buckets=_RECONCILE_BUCKETS_S,
            registry=self.registry,
        )
        self.engine_batches = Counter(
            "herdsman_engine_batches", "Engine runs, by result", ["result"], registry=self.registry
        )
        self.engine_batch_seconds = Histogram(
            "herdsman_engine_batch_seconds",
            "Duration of one engine run",
            buckets=_BATCH_BUCKETS_S,
            registry=self.registry,
        )
        self.engine_batch_size = Histogram(
            "herdsman_engine_batch_size", "Services in one engine run", buckets=_SIZE_BUCKETS, registry=self.registry
        )
        self.engine_cli_processes = Counter(
            "herdsman_engine_cli_processes", "Pulumi CLI processes started", registry=self.registry
        )
        self.api_requests = Counter(
            "herdsman_api_requests",
            "Requests to the Kubernetes API, by verb and status (0: no answer)",
            ["verb", "status"],
            registry=self.registry,
        )
        self.services = Gauge("herdsman_services", "Services, by phase", ["phase"], registry=self.registry)
        self.informer_relists = Counter(
            "herdsman_informer_relists", "Whole collections listed, by kind", ["kind"], registry=self.registry
        )
        self.events_dropped = Counter(
            "herdsman_events_dropped", "Kubernetes Events that were not written", registry=self.registry
        )
        self.leader = Gauge("herdsman_leader", "1 while this process holds the lease", registry=self.registry)

    def count_requests(self, client: KubeClient) -> None:
        """Count every request that `client` makes from now on."""
        client.on_request = self.on_api_request

    def on_api_request(self, verb: str, status: int) -> None:
        """Count one request; fits `KubeClient.on_request`."""
        self.api_requests.labels(verb, str(status)).inc()

    def on_reconcile(self, result: str, seconds: float) -> None:
        """Count one pass over one service."""
        self.reconciles.labels(result).inc()
        self.reconcile_seconds.observe(seconds)

    def on_batch(self, result: str, size: int, seconds: float) -> None:
        """Count one engine run over `size` services."""
        self.engine_batches.labels(result).inc()
        self.engine_batch_size.observe(size)
        self.engine_batch_seconds.observe(seconds)

    def on_relist(self, kind: Kind) -> None:
        """Count one relist; fits `Informer(on_relist=…)`."""
        self.informer_relists.labels(kind.kind).inc()

    def set_phases(self, counts: dict[str, int]) -> None:
        """Set the number of services in each phase; phases that are not named become 0."""
        known = {sample.labels["phase"] for metric in self.services.collect() for sample in metric.samples}
        for phase in known | counts.keys():
            self.services.labels(phase).set(counts.get(phase, 0))
