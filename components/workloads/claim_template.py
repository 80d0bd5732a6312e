"""A ResourceClaimTemplate for devices of a service's pods. Called by `render` of this package."""

from __future__ import annotations

from components import naming
from components.rendered import RenderedObject
from components.workloads.parts import manifest, settled
from kubeapi import kinds
from program.desired.service import DesiredService
from program.desired.workloads import ClaimTemplate


def claim_template(desired: DesiredService, template: ClaimTemplate) -> RenderedObject:
    """Build the template from which Kubernetes makes a claim for each pod."""
    made = manifest(desired, kinds.CLAIM_TEMPLATES, template.name, labels=template.labels, spec=settled(template.spec))
    return RenderedObject(f"claims/{template.name}", naming.TYPE_SERVICE, made)
