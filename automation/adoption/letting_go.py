"""Lets go of services that another controller looks after: nothing that was made for them is touched any more.

The controller hands over each service that is not the loop's, on every pass; mostly there is nothing to do. One that
was ours until now is let go of in an order that can be begun again at any point: what the engine does for it ends
first, then the status is left, and last the engine's state forgets its objects, which stay.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from automation.admission.quota_controller import running_claim
from automation.cache.cluster_cache import World
from automation.engine.batches import Batcher
from automation.status.writer import StatusWriter
from components import naming
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey

log = structlog.get_logger(__name__)

BUSY_RECHECK_S = 0.5
RELEASE_RECHECK_S = 5.0
"""When a release should be over; one that failed is tried again then."""


class LettingGo:
    """The services that are not ours. One per loop; thread-safe for different services.

    `statuses` gives the writer of a service's status; `forget` makes the controller's parts forget a service, without
    doing anything to it.
    """

    def __init__(
        self,
        world: World,
        batcher: Batcher,
        statuses: Callable[[ServiceKey], StatusWriter],
        *,
        forget: Callable[[ServiceKey], object],
        requeue: Callable[[ServiceKey, float], None],
    ) -> None:
        self._world = world
        self._batcher = batcher
        self._statuses = statuses
        self._forget = forget
        self._requeue = requeue
        self._gone: set[ServiceKey] = set()

    def take(self, key: ServiceKey) -> None:
        """Note that a service is ours."""
        self._gone.discard(key)

    def let_go(self, key: ServiceKey, cr: Json) -> None:
        """Do the next step of letting go of a service, as the cache has it. Raises ApiError."""
        if key not in self._gone:
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
            self._forget(key)
            if held:
                self._batcher.release(key)
                self._requeue(key, RELEASE_RECHECK_S)
                return
            self._gone.add(key)
            log.debug("Left a service to another controller")
        self._count(key, cr)

    def _count(self, key: ServiceKey, cr: Json) -> None:
        """What it runs with counts against quotas, which it was never asked about."""
        deployment = self._world.deployments.get(key.namespace, naming.deployment_name(key.name))
        if deployment is None or deployment["metadata"]["owner"] != cr["metadata"]["uid"]:
            self._world.quotas.release(key)
            return
        self._world.quotas.hold(key, running_claim(self._world, cr, deployment))
