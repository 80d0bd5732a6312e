"""Lets the node autoscaler move pods that serve: `do-not-disrupt` protects only the long start. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from automation.reconcile.actions import PatchPod
from components import naming
from kubeapi.json_types import Json
from program.desired.service import DesiredService


def unprotect_ready_pods(desired: DesiredService, pods: Iterable[Json]) -> tuple[PatchPod, ...]:
    """Take the annotation from pods that are ready.

    It goes from the pod, not from the template, where its removal would restart what just became ready.
    """
    if desired.disruption.protect_always or naming.ANNOTATION_DO_NOT_DISRUPT in desired.pod.annotations:
        return ()
    return tuple(
        PatchPod(pod, {naming.ANNOTATION_DO_NOT_DISRUPT: None})
        for pod in pods
        if pod["ready"] and naming.ANNOTATION_DO_NOT_DISRUPT in pod["metadata"]["annotations"]
    )
