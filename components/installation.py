"""The components of Herdsman's own installation. Used by `program.fleet`, rendered by `automation.install`.

Each object is a resource of Pulumi's Kubernetes SDK: ClusterRole, Deployment, CustomResourceDefinition (ADR 48).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pulumi

from components import naming, urns
from components.kubernetes_object import ServiceObjects, ServiceObjectsArgs, kubernetes_object
from components.rendered import RenderedObject


class Foundation(ServiceObjects):
    """What outlives the operator: CRDs, namespaces, classes, agents' roles, the claim. Never deleted from here."""

    def __init__(self, args: ServiceObjectsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(naming.TYPE_FOUNDATION, replace(args, by_sdk=True), opts)

    def _made(self, obj: RenderedObject, *, after: Sequence[pulumi.Resource] = ()) -> pulumi.CustomResource:
        name = urns.object_name(self._args.key, obj, at=self._args.at)
        return kubernetes_object(name, obj, parent=self, after=after, retain=True, by_sdk=self._args.by_sdk)


class Operator(ServiceObjects):
    """The operator: its account and roles, its Deployment and what belongs to it."""

    def __init__(self, args: ServiceObjectsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(naming.TYPE_OPERATOR, replace(args, by_sdk=True), opts)
