"""Deletes the objects of deleted services, or leaves them in place, as the propagation policy of the deletion asks.

The controller calls it. The engine deletes the objects that its state holds; this module deletes the others. The
garbage collector of Kubernetes runs at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from automation.drift.drift_watch import KINDS
from automation.engine.batches import Batcher
from automation.reconcile.deletion import Cascade, cascade_of, has_controller
from automation.reconcile.plan import LiveObject
from automation.reconcile.services import Services
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey

log = structlog.get_logger(__name__)


class Remover:
    """One per loop; thread-safe for different services. `drop_service` drops what other parts remember of a service."""

    def __init__(
        self,
        client: KubeClient,
        batcher: Batcher,
        services: Mapping[str, Services],
        *,
        drop_service: Callable[[ServiceKey], object],
    ) -> None:
        self._client = client
        self._batcher = batcher
        self._services = services
        self._drop_service = drop_service
        self._uids: dict[ServiceKey, str] = {}
        """The uid of each custom resource at its last pass."""

    def drop_earlier(self, key: ServiceKey, cr: Json) -> None:
        """Drop the records of an earlier custom resource of the same name that was deleted between two passes."""
        uid = cr["metadata"]["uid"]
        if self._uids.get(key, uid) != uid:
            self._drop_service(key)
        self._uids[key] = uid

    def end(self, key: ServiceKey, cr: Json | None) -> None:
        """Carry out the deletion of a custom resource: delete its objects, leave them, or release them."""
        self._uids.pop(key, None)
        cascade = cascade_of(cr) if cr is not None else Cascade.BACKGROUND
        if cascade is Cascade.BACKGROUND:
            self._remove(key)
            return
        self._drop_service(key)
        # With Foreground the garbage collector deletes the objects. The engine deletes with Background, which would not
        # wait for the pods of a Deployment.
        if cascade is Cascade.ORPHAN and self._may_hold(key):
            self._batcher.release(key)

    def _remove(self, key: ServiceKey) -> None:
        """Have the engine delete the objects of a service that is gone. The garbage collector runs at the same time.

        Objects that are not in the engine's state, because the state was lost, are deleted here.
        """
        self._drop_service(key)
        if self._may_hold(key):
            self._batcher.remove(key)
            return
        leftovers = self._services[key.dialect].observe(key, owner=None).live
        if leftovers and self._is_gone(key):
            self.sweep(key, leftovers)

    def sweep(self, key: ServiceKey, leftovers: tuple[LiveObject, ...]) -> None:
        """Delete objects that the engine's state does not have. Raises ApiError."""
        for leftover in leftovers:
            kind, name = KINDS[leftover.name.kind], leftover.name.name
            try:
                live = self._client.get(kind, key.namespace, name)
                if not has_controller(live):
                    # The cache is behind: the service was deleted with the policy Orphan.
                    log.info("Kept an orphaned object", kind=leftover.name.kind, name=name)
                    continue
                version = live["metadata"]["resourceVersion"]
                self._client.delete(kind, key.namespace, name, uid=leftover.uid, resource_version=version)
            except NotFound:
                continue
            log.info("Deleted a leftover", kind=leftover.name.kind, name=name)

    def _may_hold(self, key: ServiceKey) -> bool:
        """Return whether the engine's state holds a service, or is not read yet; then the engine's run finds out."""
        return self._batcher.holds(key) is not False

    def _is_gone(self, key: ServiceKey) -> bool:
        """Return whether the custom resource is gone by the API server: a new one may not be in the cache yet."""
        try:
            self._client.get(self._services[key.dialect].info.kind, key.namespace, key.name)
        except NotFound:
            return True
        return False
