"""The component that has a service measured. Used by `program.fleet`."""

from __future__ import annotations

import pulumi

from components import naming
from components.kubernetes_object import ServiceObjects, ServiceObjectsArgs


class Monitoring(ServiceObjects):
    """Tell Prometheus what to scrape of a service, and Pyrra what to promise of it."""

    def __init__(self, args: ServiceObjectsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(naming.TYPE_MONITORING, args, opts)

    @property
    def monitor(self) -> pulumi.CustomResource | None:
        """The PodMonitor."""
        return self.objects.get("monitor")

    @property
    def objective(self) -> pulumi.CustomResource | None:
        """The ServiceLevelObjective."""
        return self.objects.get("objective")
