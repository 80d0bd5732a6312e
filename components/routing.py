"""The component that brings requests to the right pods: a route, a pool, who picks in it. Used by `program.fleet`."""

from __future__ import annotations

import pulumi

from components import naming
from components.kubernetes_object import ServiceObjects, ServiceObjectsArgs


class Routing(ServiceObjects):
    """Lead requests from gateways to a pool of pods, with the pods that pick among them for each request."""

    def __init__(self, args: ServiceObjectsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(naming.TYPE_ROUTING, args, opts)

    @property
    def pool(self) -> pulumi.CustomResource | None:
        """The InferencePool."""
        return self.objects.get("pool")

    @property
    def route(self) -> pulumi.CustomResource | None:
        """The HTTPRoute."""
        return self.objects.get("route")
