"""Kubernetes Services before sets of pods. Called by `render` of this package."""

from __future__ import annotations

from components.rendered import RenderedObject
from components.workloads.parts import component_of, manifest, settled
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.service import DesiredService
from program.desired.workloads import FrontService


def front(desired: DesiredService, service: FrontService) -> RenderedObject:
    """Build one Service."""
    spec: Json = {"selector": service.selector, "ports": settled(service.ports)}
    made = manifest(
        desired, kinds.SERVICES, service.name, labels=service.labels, annotations=service.annotations, spec=spec
    )
    return RenderedObject(f"services/{service.part}", component_of(service.part), made)
