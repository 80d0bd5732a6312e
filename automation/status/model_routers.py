"""Writes the status of ModelRouters: whether they are valid, and which of their backends can answer.

The gateway serves the routers and writes nothing. A change of a router or of an InferenceService has all routers of the
shard checked a moment later, and so has a change of the use of budgets (`router_budgets`). Only statuses that differ
are written.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from automation.approval.resource_versions import Judged, ResourceVersions, with_judgement
from automation.cache.cluster_cache import ClusterCache
from automation.leadership.shards import WHOLE, Shard
from automation.status.event_log import version_events
from automation.status.ownership import written_by_another
from automation.status.router_budgets import RouterBudgets
from automation.status.writer import StatusWriter
from automation.workqueue.debounce import Debounce
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError
from kubeapi.json_types import Json

log = structlog.get_logger(__name__)

MARK = "SpecHonoured"
"""A condition that every status of Herdsman has and no status of LLMKube's."""
WRITE_EVERY_S = 0.5
RETRY_S = 10.0


class ModelRouterStatuses:
    """Keeps the statuses of the routers that this loop manages.

    Call `start` after the caches are filled, then `stop`.
    """

    def __init__(
        self,
        client: KubeClient,
        cluster: ClusterCache,
        *,
        record: Callable[..., None],
        gateway_url: str = "",
        shard: Shard = WHOLE,
        versions: ResourceVersions | None = None,
        note: Callable[[Json, Judged], None] = lambda _cr, _judged: None,
        on_gone: Callable[[str, str, str], None] = lambda _kind, _namespace, _name: None,
    ) -> None:
        """`record` is `EventRecorder.record`, `gateway_url` the address of the gateway for clients.

        `shard` is the part that this loop leads. `versions` decides which version of a router is in use. `note` is
        called with each router and that decision, for its history, and `on_gone` with kind, namespace and name of a
        router that does not exist any more.
        """
        self._record = record
        self._versions = versions or ResourceVersions()
        self._note = note
        self._on_gone = on_gone
        self._known: set[tuple[str, str]] = set()
        """Namespace and name of the routers of the last report."""
        self._cluster = cluster
        self._gateway_url = gateway_url
        self._shard = shard
        self._writer = StatusWriter(client, kinds.MODEL_ROUTERS, mark=MARK)
        self._soon = Debounce(self.report, delay_s=WRITE_EVERY_S)
        self._retry = Debounce(self.report, delay_s=RETRY_S)
        self._budgets = RouterBudgets(self._soon.trigger)

    def start(self) -> None:
        """Write the statuses now and after each change."""
        self._cluster.on_router_input = self._soon.trigger
        self._soon.trigger()

    def stop(self) -> None:
        """Read no more budgets."""
        self._budgets.stop()

    def request_report(self) -> None:
        """Request a `report` soon."""
        self._soon.trigger()

    def report(self) -> None:
        """Write each status that differs from the live one."""
        informer = self._cluster.optional.informer(kinds.MODEL_ROUTERS)
        routers = informer.list() if informer is not None else ()
        names = {(cr["metadata"]["namespace"], cr["metadata"]["name"]) for cr in routers}
        gone, self._known = self._known - names, names
        for namespace, name in gone:
            self._writer.drop_object(namespace, name)
            self._on_gone(kinds.MODEL_ROUTERS.kind, namespace, name)
        for cr in routers:
            try:
                self._report(cr)
            except Exception as error:  # One router must not keep the others from being checked.
                name = f"{cr['metadata']['namespace']}/{cr['metadata']['name']}"
                if isinstance(error, KubeError):
                    log.warning("Could not write a router's status", router=name, error=str(error))
                else:
                    log.exception("Failed to check a router", router=name)
                self._retry.trigger()

    def _report(self, cached: Json) -> None:
        namespace, name = cached["metadata"]["namespace"], cached["metadata"]["name"]
        if not self._shard.contains(namespace) or "deletionTimestamp" in cached["metadata"]:
            return
        held = written_by_another(cached.get("status"), MARK)
        if not self._cluster.is_ours(cached, held=held):
            if self._writer.has_written(namespace, name):
                self._writer.leave(cached)
            return
        cr = self._writer.latest(cached)
        now, judged = datetime.now(UTC), self._versions.judge(cr)
        self._note(cr, judged)
        holds = judged.holds
        # Imported for the first router: its models take 1 MB.
        from program.dialects.llmkube.status.router import router_status

        status = router_status(
            cr,
            lambda service: self._cluster.llmkube.get(kinds.INFERENCE_SERVICES, namespace, service),
            gateway_url=self._gateway_url,
            uses=self._budgets.uses,
            denied=judged.denied is not None,
            in_use=judged.version(cr),
            held=holds.reason if holds is not None else "",
            now=now,
        )
        status = with_judgement(cr, status, judged, now=now)
        before = cr.get("status") or {}
        if status != before and self._writer.write(cr, status):
            for entry in version_events(before, status):
                self._record(cr, type=entry.type, reason=entry.reason, message=entry.message)
