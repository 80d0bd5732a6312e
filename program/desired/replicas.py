"""Sets the number of replicas of a desired service, for the loop and for previews. Pure."""

from __future__ import annotations

from program.desired.service import DesiredService

_ENGINES = ("main", "prefill")
"""The parts whose pods run an engine. Others choose the pod for a request, and stay while no engine runs."""


def with_replicas(desired: DesiredService, replicas: int) -> DesiredService:
    """Return the service with this number of replicas. With 0 no engine of it runs."""
    changed: dict[str, object] = {"replicas": replicas}
    if desired.workloads is not None:
        main, *others = desired.workloads.pods
        if replicas == 0:
            others = [each.model_copy(update={"replicas": 0}) if each.part in _ENGINES else each for each in others]
        pods = (main.model_copy(update={"replicas": replicas}), *others)
        changed["workloads"] = desired.workloads.model_copy(update={"pods": pods})
    return desired.model_copy(update=changed)
