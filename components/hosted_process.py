"""The component that serves a model from a process on a host. Used by `program.fleet`."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi

from components import naming, urns
from components.kubernetes_object import ServiceObjects, ServiceObjectsArgs
from components.providers.host_schema import TYPE
from components.rendered import RenderedObject


class HostedProcess(ServiceObjects):
    """Run a model server on one host.

    A HostProcess object, which carries plan and report, tells the host's agent so. For a host whose way is given the
    object stays out of the cluster, if there is one: the plugin `herdsman` hands the plan to the host itself.
    """

    def __init__(self, args: ServiceObjectsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(naming.TYPE_HOST_PROCESS, args, opts)

    @property
    def process(self) -> pulumi.CustomResource | None:
        """The HostProcess."""
        return self.objects.get("process")

    def _made(self, obj: RenderedObject, *, after: Sequence[pulumi.Resource] = ()) -> pulumi.CustomResource:
        way = self._args.ways.get(str(obj.manifest["spec"]["host"]))
        if way is None:
            return super()._made(obj, after=after)
        inputs = {
            **way,
            "namespace": self._args.key.namespace,
            "name": obj.name,
            "plan": obj.manifest["spec"],
            # Outputs, which the SDK gives only those programs that name them.
            "address": None,
            "port": None,
        }
        options = pulumi.ResourceOptions(parent=self, depends_on=list(after) if after else None)
        return pulumi.CustomResource(TYPE, urns.object_name(self._args.key, obj, at=self._args.at), inputs, options)
