"""Has an autoscaler that scales a custom resource scale the pods instead: a fleet has no custom resource. Pure."""

from __future__ import annotations

from program.desired.service import DesiredService


def scaled_without_loop(desired: DesiredService) -> DesiredService:
    """Point the autoscalers of a service at its own sets of pods, and leave the number of those to them."""
    workloads = desired.workloads
    if workloads is None or all(pods.scaler is None or pods.scaler.target is None for pods in workloads.pods):
        return desired
    pods = tuple(
        each
        if each.scaler is None or each.scaler.target is None
        else each.model_copy(update={"scaler": each.scaler.model_copy(update={"target": None})})
        for each in workloads.pods
    )
    return desired.model_copy(update={"workloads": workloads.model_copy(update={"pods": pods})})
