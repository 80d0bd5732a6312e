"""The component that lets clients outside the cluster in. Used by `program.fleet`."""

from __future__ import annotations

import pulumi

from components import naming
from components.kubernetes_object import ServiceObjects, ServiceObjectsArgs


class Exposure(ServiceObjects):
    """Lead requests from a Gateway or an Ingress to a service."""

    def __init__(self, args: ServiceObjectsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(naming.TYPE_EXPOSURE, args, opts)

    @property
    def route(self) -> pulumi.CustomResource | None:
        """The HTTPRoute or the Ingress."""
        return self.objects.get("route") or self.objects.get("ingress")
