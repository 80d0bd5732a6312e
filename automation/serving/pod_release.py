"""Lets the node autoscaler move pods that serve: `do-not-disrupt` protects only the long start."""

from __future__ import annotations

from collections.abc import Iterable

from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.desired.service import DesiredService


def release_ready_pods(client: KubeClient, desired: DesiredService, pods: Iterable[Json]) -> None:
    """Take the annotation from pods that are ready. Raises ApiError.

    It goes from the pod, not from the template, where its removal would restart what just became ready.
    """
    if desired.disruption.protect_always or naming.ANNOTATION_DO_NOT_DISRUPT in desired.pod.annotations:
        return
    for pod in pods:
        metadata = pod["metadata"]
        if pod["ready"] and naming.ANNOTATION_DO_NOT_DISRUPT in metadata["annotations"]:
            body = {"metadata": {"uid": metadata["uid"], "annotations": {naming.ANNOTATION_DO_NOT_DISRUPT: None}}}
            try:
                client.patch(kinds.PODS, metadata["namespace"], metadata["name"], body)
            except NotFound:
                continue
