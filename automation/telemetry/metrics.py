"""The counters and histograms of the loop, on a registry that the caller passes.

The loop makes them once, its parts update them, and `health` serves them. Values from the caches (phases, replicas, the
GPU queue, quotas) are not here: `service_metrics` reads them at each scrape.
docs/reference/metrics.md lists all names.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from kubeapi.client import KubeClient
from kubeapi.kinds import Kind
from program.dialects.status.conditions import Type, condition_of, ready_condition

_RECONCILE_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_BATCH_BUCKETS_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_READY_BUCKETS_S = (5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0)
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
        self.service_ready_seconds = Histogram(
            "herdsman_service_ready_seconds",
            "Time from not ready, or from creation, until a service was ready",
            buckets=_READY_BUCKETS_S,
            registry=self.registry,
        )
        self.completion_checks = Counter(
            "herdsman_completion_checks",
            "Completion checks of started engines, by result",
            ["result"],
            registry=self.registry,
        )
        self.stalled_replicas = Counter(
            "herdsman_stalled_replicas",
            "Replicas that were replaced because they accepted requests and generated no token",
            ["namespace", "name"],
            registry=self.registry,
        )
        self.download_bytes = Counter(
            "herdsman_model_download_bytes",
            "Bytes of models that pods downloaded",
            ["namespace", "model"],
            registry=self.registry,
        )
        self.pool_turns = Counter(
            "herdsman_model_pool_turns",
            "Turns that members of a ModelPool began",
            ["namespace", "pool"],
            registry=self.registry,
        )
        self.informer_relists = Counter(
            "herdsman_informer_relists", "Lists of all objects of a kind, by kind", ["kind"], registry=self.registry
        )
        self.informer_failures = Counter(
            "herdsman_informer_failures",
            "Objects that could not be parsed (transform), and changes that failed in a handler of the cache "
            "(handler), by kind",
            ["kind", "cause"],
            registry=self.registry,
        )
        self.events_dropped = Counter(
            "herdsman_events_dropped", "Kubernetes Events that were not written", registry=self.registry
        )
        self.revisions_dropped = Counter(
            "herdsman_revisions_dropped",
            "Versions of services that were not recorded, because too many were waiting to be written",
            registry=self.registry,
        )
        self.engine_key_age = Gauge(
            "herdsman_engine_key_age_seconds",
            "Age of the oldest key that the loop made for engines",
            registry=self.registry,
        )
        self.engine_key_replacements = Counter(
            "herdsman_engine_key_replacements",
            "Keys of engines that the loop replaced because of their age",
            registry=self.registry,
        )
        self.leader = Gauge("herdsman_leader", "1 while this process holds the lease", registry=self.registry)

    def count_requests(self, client: KubeClient) -> None:
        """Count every request of `client` from now on."""
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

    def on_informer_failure(self, kind: Kind, cause: str) -> None:
        """Count one object that an informer could not parse or process; fits `Informer(on_failure=…)`."""
        self.informer_failures.labels(kind.kind, cause).inc()

    def on_completion_check(self, result: str) -> None:
        """Count one completion check by its result: proved, failed, unknown or loading."""
        self.completion_checks.labels(result).inc()

    def on_stalled(self, namespace: str, name: str) -> None:
        """Count one replica that was replaced because it produced no token."""
        self.stalled_replicas.labels(namespace, name).inc()

    def drop_service(self, namespace: str, name: str) -> None:
        """Drop the series of a service, which would otherwise stay for the life of the loop."""
        with suppress(KeyError):
            self.stalled_replicas.remove(namespace, name)

    def drop_model(self, namespace: str, name: str) -> None:
        """Drop the series of a model."""
        with suppress(KeyError):
            self.download_bytes.remove(namespace, name)

    def drop_pool(self, namespace: str, name: str) -> None:
        """Drop the series of a ModelPool."""
        with suppress(KeyError):
            self.pool_turns.remove(namespace, name)

    def on_pool_status(self, cr: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Count a turn that began; fits `StatusWriter(on_written=…)`."""
        resident = status.get("residentMember")
        if resident and resident != (cr.get("status") or {}).get("residentMember"):
            self.pool_turns.labels(cr["metadata"]["namespace"], cr["metadata"]["name"]).inc()

    def on_service_status(self, cr: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Observe how long a service took to become ready; fits `StatusWriter(on_written=…)`."""
        after = ready_condition({"status": status})
        if after.get("status") != "True" or ready_condition(cr).get("status") == "True":
            return
        if (since := _not_ready_since(cr)) is not None:
            took = datetime.fromisoformat(after["lastTransitionTime"]) - since
            self.service_ready_seconds.observe(max(0.0, took.total_seconds()))

    def on_model_status(self, cr: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Count the bytes by which a download grew; fits `StatusWriter(on_written=…)`."""
        before = int(((cr.get("status") or {}).get("download") or {}).get("bytes") or 0)
        after = int((status.get("download") or {}).get("bytes") or 0)
        if after > before:
            self.download_bytes.labels(cr["metadata"]["namespace"], cr["metadata"]["name"]).inc(after - before)


def _not_ready_since(cr: Mapping[str, Any]) -> datetime | None:
    """Return since when a service was wanted and not ready; None if this is not known."""
    ready, reconciling, stalled = (condition_of(cr, kind) for kind in (Type.READY, Type.RECONCILING, Type.STALLED))
    if reconciling.get("status") == stalled.get("status") == "False":
        return None  # it was stopped on purpose, and nothing says when it was wanted again
    since = ready.get("lastTransitionTime") or cr["metadata"].get("creationTimestamp")
    times = [datetime.fromisoformat(since)] if since else []
    began = reconciling.get("lastTransitionTime") if reconciling.get("status") == "True" else None
    # Ready stays False while a service is stopped on purpose. If Stalled ended then, the service had failed instead.
    if began and began != stalled.get("lastTransitionTime"):
        times.append(datetime.fromisoformat(began))
    return max(times, default=None)
