"""The component that serves a model from a process on a host. Used by `program.fleet`."""

from __future__ import annotations

import pulumi

from components import naming
from components.kubernetes_object import ServiceObjects, ServiceObjectsArgs


class HostedProcess(ServiceObjects):
    """Tell one host's agent to run a model server: a HostProcess object, which carries plan and report."""

    def __init__(self, args: ServiceObjectsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(naming.TYPE_HOST_PROCESS, args, opts)

    @property
    def process(self) -> pulumi.CustomResource | None:
        """The HostProcess."""
        return self.objects.get("process")
