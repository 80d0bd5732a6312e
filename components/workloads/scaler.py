"""What scales a set of pods: a HorizontalPodAutoscaler or KEDA's ScaledObject. Called by `render` of this package."""

from __future__ import annotations

from components import naming
from components.rendered import RenderedObject
from components.workloads.parts import manifest, settled
from components.workloads.pod_sets import kind_of
from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.service import DesiredService
from program.desired.workloads import PodSet, Scaler


def scaler_kind(scaler: Scaler) -> Kind:
    """Say which kind an autoscaler is of."""
    return kinds.SCALED_OBJECTS if scaler.kind == kinds.SCALED_OBJECTS.kind else kinds.AUTOSCALERS


def autoscaler(desired: DesiredService, pods: PodSet, scaler: Scaler) -> RenderedObject:
    """Build the autoscaler of a set of pods."""
    kind = kind_of(pods)
    target: Json = {"apiVersion": kind.api_version, "kind": kind.kind, "name": pods.name}
    if scaler.target is not None:
        target = {
            "apiVersion": scaler.target.api_version,
            "kind": scaler.target.kind,
            "name": scaler.target.name,
        }
    said = settled(scaler.spec)
    assert isinstance(said, dict)
    made = manifest(
        desired,
        scaler_kind(scaler),
        scaler.name,
        labels=scaler.labels,
        annotations=scaler.annotations,
        spec={"scaleTargetRef": target, **said},
    )
    return RenderedObject(f"scaler/{scaler.part}", naming.TYPE_AUTOSCALER, made)
