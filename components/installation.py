"""The components of Herdsman's own installation. Used by `program.fleet`, rendered by `automation.install`."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi

from components import naming, urns
from components.kubernetes_object import ServiceObjects, ServiceObjectsArgs, kubernetes_object
from components.rendered import RenderedObject


class Foundation(ServiceObjects):
    """What outlives the operator: CRDs, namespaces, classes, agents' roles, the claim. Never deleted from here."""

    def __init__(self, args: ServiceObjectsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(naming.TYPE_FOUNDATION, args, opts)

    def _made(self, obj: RenderedObject, *, after: Sequence[pulumi.Resource] = ()) -> pulumi.CustomResource:
        name = urns.object_name(self._args.key, obj, at=self._args.at)
        return kubernetes_object(name, obj, parent=self, after=after, retain=True)


class Operator(ServiceObjects):
    """The operator: its account and roles, its Deployment and what belongs to it."""

    def __init__(self, args: ServiceObjectsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(naming.TYPE_OPERATOR, args, opts)
