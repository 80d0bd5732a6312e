"""Releases services that another controller owns: the loop stops touching the objects that it made for them.

The controller passes each service of another controller here, on every pass. A service that was released before needs
nothing more. A service that the loop owned until now is released in three steps: wait until the engine does not work
on it, remove Herdsman's fields from the status, and remove its objects from the engine's state. The objects themselves
stay. Every step can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from automation.admission.quota_controller import running_claim
from automation.cache.cluster_cache import ClusterCache
from automation.engine.batches import Batcher
from automation.status.writer import StatusWriter
from components import naming
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey

log = structlog.get_logger(__name__)

BUSY_RECHECK_S = 0.5
RELEASE_RECHECK_S = 5.0
"""Seconds until the next pass checks whether a release succeeded."""


class Release:
    """Releases services of other controllers. One per loop; thread-safe for different services.

    `statuses` returns the writer of a service's status. `drop_service` drops what the controller's parts remember of a
    service; it changes no object.
    """

    def __init__(
        self,
        cluster: ClusterCache,
        batcher: Batcher,
        statuses: Callable[[ServiceKey], StatusWriter],
        *,
        drop_service: Callable[[ServiceKey], object],
        requeue: Callable[[ServiceKey, float], None],
    ) -> None:
        self._cluster = cluster
        self._batcher = batcher
        self._statuses = statuses
        self._drop_service = drop_service
        self._requeue = requeue
        self._released: set[ServiceKey] = set()

    def note_owned(self, key: ServiceKey) -> None:
        """Note that the loop owns a service."""
        self._released.discard(key)

    def release_service(self, key: ServiceKey, cr: Json) -> None:
        """Do the next step of the release of a service; `cr` is its custom resource in the cache. Raises ApiError."""
        if key not in self._released:
            if self._batcher.busy(key):
                self._requeue(key, BUSY_RECHECK_S)
                return
            held = self._batcher.holds(key)
            if held is None:
                self._requeue(key, BUSY_RECHECK_S)
                return
            statuses = self._statuses(key)
            if held or statuses.has_written(key.namespace, key.name):
                statuses.leave(cr)
            self._drop_service(key)
            if held:
                self._batcher.release(key)
                self._requeue(key, RELEASE_RECHECK_S)
                return
            self._released.add(key)
            log.debug("Left a service to another controller")
        self._count(key, cr)

    def _count(self, key: ServiceKey, cr: Json) -> None:
        """Count the resources of its Deployment against the quotas; no quota is checked."""
        deployment = self._cluster.llmkube.get(kinds.DEPLOYMENTS, key.namespace, naming.deployment_name(key.name))
        if deployment is None or deployment["metadata"]["owner"] != cr["metadata"]["uid"]:
            self._cluster.quotas.release(key)
            return
        self._cluster.quotas.hold(key, running_claim(self._cluster, cr, deployment))
