"""Decides who sets the number of replicas: the service, or another client of the Deployment. Pure.

Called by `observe` for the loop and by previews.
"""

from __future__ import annotations

from components import naming
from components.engine_workloads import is_stopped
from kubeapi.json_types import Json
from program.desired.service import DesiredService

AUTOSCALING_MANAGERS = frozenset({"kube-controller-manager", "keda"})
"""Field managers by which HorizontalPodAutoscalers and KEDA set replicas."""


def scaled_elsewhere(desired: DesiredService, deployment: Json | None) -> bool:
    """Return whether another client set the replicas on the Deployment (`kubectl scale`, an autoscaler).

    `deployment` is as `trim.deployment` leaves it. That number stays until the service's `replicas` are edited: the
    latest change wins.
    """
    scaled_by = str(((deployment or {}).get("spec") or {}).get("scaled_by", ""))
    if deployment is None or desired.autoscaling is not None or not scaled_by or is_stopped(desired):
        return False
    if desired.by_requests is not None:
        return False
    asked = deployment["metadata"]["annotations"].get(naming.ANNOTATION_ASKED_REPLICAS)
    if asked is None:
        # Until now the service had an autoscaler, whose number does not count any more; or a development version
        # without this annotation made the Deployment.
        return scaled_by not in AUTOSCALING_MANAGERS
    return bool(asked == str(desired.replicas))


def pool_mark(deployment: Json | None) -> str:
    """Return the pool in which a sleeping service waits for its turn, by the mark on its Deployment; empty for none."""
    return str(deployment["metadata"]["annotations"].get(naming.ANNOTATION_POOL, "")) if deployment is not None else ""
