"""The component that lets Kubernetes choose a service's replica count. Used by `program.fleet`."""

from __future__ import annotations

import pulumi

from components import naming
from components.kubernetes_object import ServiceObjects, ServiceObjectsArgs


class Autoscaler(ServiceObjects):
    """Scale a service's Deployment. While it stands, the Deployment's replica count belongs to it alone."""

    def __init__(self, args: ServiceObjectsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(naming.TYPE_AUTOSCALER, args, opts)

    @property
    def autoscaler(self) -> pulumi.CustomResource | None:
        """The HorizontalPodAutoscaler, or KEDA's ScaledObject in its place."""
        return self.objects.get("hpa") or self.objects.get("scaler")
