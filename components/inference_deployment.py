"""The component that serves a model from pods: a Service, a Deployment, what guards them. Used by `program.fleet`."""

from __future__ import annotations

import pulumi

from components import naming
from components.kubernetes_object import ServiceObjects, ServiceObjectsArgs


class InferenceDeployment(ServiceObjects):
    """Run one model server's pods, give them a stable address, and guard them where that is asked for.

    A service that runs on a host brings only the Service, and one that is paused or scaled to nothing keeps both.
    """

    def __init__(self, args: ServiceObjectsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(naming.TYPE_SERVICE, args, opts)

    @property
    def service(self) -> pulumi.CustomResource | None:
        """The Kubernetes Service."""
        return self.objects.get("service")

    @property
    def deployment(self) -> pulumi.CustomResource | None:
        """The Deployment; None for a service whose processes run on hosts."""
        return self.objects.get("deployment")
