"""The ReplicaSets of a service: they keep the pod templates that its Deployment had before.

Asked for when they are needed, which is seldom; no cache holds them.
"""

from __future__ import annotations

import structlog

from automation.cache.owners import selector_of
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey

log = structlog.get_logger(__name__)


def replica_sets_of(client: KubeClient, key: ServiceKey) -> list[Json]:
    """Read them; none where the loop may not. Raises any other ApiError."""
    selector = selector_of(key.dialect, (key.name,))
    try:
        found: list[Json] = client.list(kinds.REPLICA_SETS, key.namespace, label_selector=selector)["items"]
    except Forbidden as error:
        log.warning("May not look for older templates; grant docs/install/rbac.yaml", error=str(error))
        return []
    return found
