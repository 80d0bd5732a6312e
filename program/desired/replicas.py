"""Sets the number of replicas of a desired service, for the loop and for previews. Pure."""

from __future__ import annotations

from program.desired.service import DesiredService
from program.desired.workloads import PodSet

_ENGINES = ("main", "prefill")
"""The parts whose pods run an engine. Others choose the pod for a request, and stay while no engine runs."""


def with_replicas(desired: DesiredService, replicas: int) -> DesiredService:
    """Return the service with this number of replicas. With 0 no engine of it runs."""
    changed: dict[str, object] = {"replicas": replicas}
    if desired.workloads is not None:
        main, *others = desired.workloads.pods
        pods = (main.model_copy(update={"replicas": replicas}), *(_following(each, replicas) for each in others))
        changed["workloads"] = desired.workloads.model_copy(update={"pods": pods})
    return desired.model_copy(update=changed)


def _following(pods: PodSet, replicas: int) -> PodSet:
    """Return other pods of a service whose serving pods have this number."""
    if replicas == 0 and pods.part in _ENGINES:
        return pods.model_copy(update={"replicas": 0})
    return pods if pods.follows is None else pods.model_copy(update={"replicas": pods.follows.of(replicas)})
