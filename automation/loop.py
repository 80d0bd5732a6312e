"""Runs the loop: leader lease, caches, workers, health server. `herdsman run` calls it; `assembly` makes its parts.

The loop starts in this order: wait for the API server, become the leader, attach the provider, fill the caches, start
the workers. It stops in the reverse order: take no new keys, wait for the current batch, release the lease last. So the
next leader never works while this loop still does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import structlog
from structlog.contextvars import bound_contextvars

from automation.cache.cluster_cache import ClusterCache
from automation.engine.port import EngineFailed
from automation.leadership.election import LeaseElector, LeaseTimes
from automation.leadership.fencing import Fence
from automation.leadership.shards import Shard
from automation.reconcile.services import Services
from automation.settings import Settings
from automation.startup.assembly import Leadership, ModelKey, Parts, assemble
from automation.startup.cluster_check import ClusterCheck, ClusterUnusable
from automation.telemetry.health import HealthServer, LoopLiveness
from automation.telemetry.metrics import Metrics
from automation.telemetry.tracing import TracingUnavailable, span, start_tracing
from automation.workqueue.backoff import Backoff
from automation.workqueue.queue import WorkQueue
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError
from program.desired.keys import ServiceKey

log = structlog.get_logger(__name__)

MODEL_WORKERS = 2
SYNC_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
"""Seconds in which all workers and batches may end in order. Then batches are cancelled."""
LOST_GRACE_S = 1.0
"""Seconds in which a loop that lost its lease may end in order. Then the process is ended."""


class LoopFailed(Exception):
    """The loop cannot start or continue. The message says what to do."""


class Loop:
    """One loop on one cluster. `run` blocks until `stop` is set or, with `--once`, until nothing is left to do."""

    def __init__(self, settings: Settings, *, metrics: Metrics | None = None) -> None:
        self._settings = settings
        self._metrics = metrics or Metrics()
        self._queue: WorkQueue[ServiceKey] = WorkQueue()
        self._model_queue: WorkQueue[ModelKey] = WorkQueue()
        self._synced = threading.Event()
        self._lost = threading.Event()
        self._standby = threading.Event()
        self._liveness = LoopLiveness()
        self._ending = threading.Event()
        self._failed_keys: set[object] = set()
        self._metrics.queue_depth.set_function(self._queue.__len__)

    def run(self, stop: threading.Event) -> int:
        """Run until `stop` is set. Return the exit code: 0 for success, 1 when `--once` left something unfinished.

        Raises LoopFailed when the cluster lacks what the loop needs, or when the lease was lost.
        """
        settings = self._settings
        with ExitStack() as stack:
            self._trace(stack)
            times = LeaseTimes.of(settings.lease_duration_s)
            client = KubeClient.default(settings.kubeconfig, give_up_s=times.give_up_s)
            stack.callback(client.close)
            self._metrics.count_requests(client)
            check = ClusterCheck(client, waits=not settings.once)
            if settings.health_port >= 0:
                health = HealthServer(
                    self._metrics.registry,
                    address=settings.health_address,
                    port=settings.health_port,
                    live={"workers": self._liveness.workers, "informers": self._liveness.informers},
                    ready={"api-server": check.answers, "caches": self._synced.is_set},
                    notes={"informers": self._liveness.notes},
                    standby=self._standby.is_set,
                    metrics_token_file=settings.metrics_token_file,
                )
                health.start()
                stack.callback(health.stop)
                log.info("Serving health and metrics", url=health.url)
            try:
                if not check.run(stop):
                    return 0
            except ClusterUnusable as error:
                raise LoopFailed(str(error)) from error
            leadership = Leadership(Fence())
            if settings.leader_elect:
                leadership = self._become_leader(stack, stop)
            if not stop.is_set():
                return self._lead(client, stack, stop, leadership)
        return 0

    def _trace(self, stack: ExitStack) -> None:
        if not self._settings.trace_endpoint:
            return
        try:
            stack.callback(start_tracing(self._settings.trace_endpoint))
        except TracingUnavailable as error:
            raise LoopFailed(str(error)) from error

    def _become_leader(self, stack: ExitStack, stop: threading.Event) -> Leadership:
        settings = self._settings
        times = LeaseTimes.of(settings.lease_duration_s)
        fence = Fence(trust_s=times.trust_s, kill_s=times.kill_s)
        # Renewals use a separate client, so that they never wait for a connection that other requests use.
        client = KubeClient.default(settings.kubeconfig, give_up_s=times.give_up_s)
        stack.callback(client.close)
        self._metrics.count_requests(client)

        def on_lost(reason: str) -> None:
            fence.lose()
            self._on_lost(reason)

        elector = LeaseElector(
            client,
            settings.lease_namespace,
            name=settings.lease_name,
            parts=settings.shards,
            lease_duration_s=times.duration_s,
            renew_deadline_s=times.deadline_s,
            retry_period_s=times.retry_s,
            nobody_led=lambda: _nobody_led(client, settings.namespaces),
            on_renewed=fence.renewed,
            on_lost=on_lost,
        )
        elector.start()
        stack.callback(elector.stop)
        waited = False
        while not stop.is_set() and not elector.wait_leading(0.2):
            if not waited:
                log.info("Waiting for the leader lease")
                self._standby.set()
                waited = True
        self._standby.clear()
        if not stop.is_set():
            self._metrics.leader.set(1)
            log.info("Became the leader", token=elector.token, shard=str(elector.shard))
        return Leadership(fence, elector.shard, elector.former)

    def _on_lost(self, reason: str) -> None:
        log.error("Lost the leader lease", reason=reason)
        self._lost.set()
        # A thread may hang in a request that the API server does not answer. The timer ends the process all the same.
        end = threading.Timer(LOST_GRACE_S, os._exit, (1,))
        end.daemon = True
        end.start()

    def _lead(self, client: KubeClient, stack: ExitStack, stop: threading.Event, leadership: Leadership) -> int:
        fence, shard = leadership.fence, leadership.shard
        fence.start()
        stack.callback(fence.close)
        client.may_write = fence.holds_lease
        self._queue.admits = lambda key: shard.contains(key.namespace)
        self._model_queue.admits = lambda key: shard.contains(key.namespace)
        parts = assemble(
            client,
            stack,
            settings=self._settings,
            metrics=self._metrics,
            services=self._queue,
            models=self._model_queue,
            leadership=leadership,
        )
        parts.cluster.start()
        stack.callback(parts.cluster.stop)
        if not self._wait_synced(parts.cluster, stop):
            return 1
        parts.start()
        self._synced.set()
        self._enqueue_orphans(parts.cluster)
        # After a failover users wait for their edits, and for none of the services that stayed as they were.
        edited = parts.cluster.edited_keys()
        self._queue.put_back(lambda key: key not in edited)
        log.info(
            "Started",
            services=len(parts.cluster.llmkube.listed(kinds.INFERENCE_SERVICES)),
            models=len(parts.cluster.models.list()),
        )
        workers = [
            threading.Thread(target=self._work, args=(self._queue, parts.controller.reconcile), name=f"service-{n}")
            for n in range(self._settings.workers)
        ]
        workers += [
            threading.Thread(
                target=self._work,
                args=(self._model_queue, lambda key: parts.models.reconcile(key.namespace, key.name)),
                name=f"model-{n}",
            )
            for n in range(MODEL_WORKERS)
        ]
        for worker in workers:
            worker.daemon = True
            worker.start()
        queues: dict[str, WorkQueue[Any]] = {"service": self._queue, "model": self._model_queue}
        self._liveness.watch(queues=queues, workers=workers, faults=parts.faults)
        try:
            self._read_state(parts, shard)
            code = self._wait(parts, stop)
        finally:
            self._liveness.stop()
            self._ending.set()
            self._queue.shutdown()
            self._model_queue.shutdown()
            until = time.monotonic() + (0.0 if self._lost.is_set() else STOP_TIMEOUT_S)
            for worker in workers:
                worker.join(max(0.0, until - time.monotonic()))
            parts.batcher.stop(max(0.0, until - time.monotonic()))
        if self._lost.is_set():
            raise LoopFailed("the leader lease was lost; another loop may lead now")
        return code

    def _wait_synced(self, cluster: ClusterCache, stop: threading.Event) -> bool:
        deadline = time.monotonic() + SYNC_TIMEOUT_S
        while not cluster.wait_synced(0.2):
            if stop.is_set() or self._lost.is_set():
                return False
            if time.monotonic() > deadline:
                waiting = [i.kind.plural for i in cluster.informers if not i.has_synced] or ["the APIs that are served"]
                raise LoopFailed(f"could not list {', '.join(waiting)} within {SYNC_TIMEOUT_S:.0f} s")
        return True

    def _enqueue_orphans(self, cluster: ClusterCache) -> None:
        """Enqueue services whose objects the caches have: a service may have been deleted while no loop ran."""
        for key in cluster.keys_with_objects():
            self._queue.add(key)

    def _read_state(self, parts: Parts, shard: Shard) -> None:
        """Read the state in a separate thread. It shows further services that were deleted while no loop ran.

        In a bucket, each namespace costs a process of the CLI, which takes long with many namespaces. Namespaces that
        workers wait for are read first. Running services are reconciled without the state; only changes wait for it.

        With `--once` the read blocks and raises LoopFailed when it fails.
        """
        if self._settings.once:
            try:
                self._read_all_states(parts, shard)
            except EngineFailed as error:
                raise LoopFailed(str(error)) from error
            return
        threading.Thread(target=self._read_state_in_turn, args=(parts, shard), name="state", daemon=True).start()

    def _read_state_in_turn(self, parts: Parts, shard: Shard) -> None:
        backoff: Backoff[str] = Backoff(base_s=1.0, cap_s=30.0)
        while True:
            try:
                self._read_all_states(parts, shard)
                return
            except EngineFailed as error:
                # The status of each service that waits for the state names the cause. So it is logged only once.
                if not backoff.failures("state"):
                    log.warning("Could not read the state; continuing without it, and trying again", error=str(error))
            if self._ending.wait(backoff.failed("state")):
                return

    def _read_all_states(self, parts: Parts, shard: Shard) -> None:
        only, began = self._settings.namespaces, time.monotonic()
        count = parts.batcher.read_all(lambda namespace: shard.contains(namespace) and (not only or namespace in only))
        if not self._ending.is_set():
            log.info("Read the state", namespaces=count, duration_s=round(time.monotonic() - began, 2))

    def _wait(self, parts: Parts, stop: threading.Event) -> int:
        quiet_since: float | None = None
        while not stop.wait(0.1 if self._settings.once else 0.5):
            if self._lost.is_set():
                return 1
            if not self._settings.once:
                continue
            idle = self._queue.idle() and self._model_queue.idle() and parts.batcher.idle() and parts.probe.idle()
            if not idle:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > 1.0:
                return self._verdict(parts.controller.services)
        return 0

    def _verdict(self, services: Mapping[str, Services]) -> int:
        """Return the exit code of a `--once` run: 0 when every service of this loop was applied and no pass failed."""
        unfinished = [
            f"{s['metadata']['namespace']}/{s['metadata']['name']}"
            for of_dialect in services.values()
            for s in of_dialect.list()
            if of_dialect.is_ours(s) and _is_stuck(s.get("status") or {})
        ]
        if unfinished:
            log.error("Left services unfinished", services=sorted(unfinished))
        return 1 if unfinished or self._failed_keys else 0

    def _work(self, queue: WorkQueue[Any], reconcile: Any) -> None:
        """Take keys until the queue is shut down. An exception of a pass stops neither the worker nor other keys."""
        while (key := queue.get()) is not None:
            started = time.monotonic()
            result = "ok"
            about = {"namespace": key.namespace, "name": key.name}
            with bound_contextvars(**about), span("reconcile", **about) as here:
                try:
                    reconcile(key)
                    queue.reset_backoff(key)
                    self._failed_keys.discard(key)
                except ApiError as error:
                    result = "api-error"
                    self._failed_keys.add(key)
                    delay_s = queue.add_failed(key)
                    log.warning("Could not finish a pass", error=str(error), reason=error.reason, retry_in_s=delay_s)
                except EngineFailed as error:
                    result = "engine-error"
                    self._failed_keys.add(key)
                    log.warning("The engine failed", error=str(error), retry_in_s=queue.add_failed(key))
                except Exception:
                    result = "bug"
                    self._failed_keys.add(key)
                    log.exception("A pass failed because of a defect of Herdsman", retry_in_s=queue.add_failed(key))
                finally:
                    queue.done(key)
                    here.note(result=result)
            self._metrics.on_reconcile(result, time.monotonic() - started)


def _nobody_led(client: KubeClient, namespaces: tuple[str, ...]) -> bool:
    """Return whether no loop can have run here yet: no service has a status.

    False when the API server does not answer.
    """
    try:
        found = [
            service
            for namespace in namespaces or (None,)
            for service in client.list(kinds.INFERENCE_SERVICES, namespace, limit=1)["items"]
        ]
    except ApiError:
        return False
    return not any(service.get("status") for service in found)


def _is_stuck(status: dict[str, Any]) -> bool:
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    stalled = (conditions.get("Stalled") or {}).get("status") == "True"
    # Statuses of llmaz have the generation in their conditions only.
    seen = status.get("observedGeneration") or (conditions.get("Reconciling") or {}).get("observedGeneration")
    return stalled or not seen
