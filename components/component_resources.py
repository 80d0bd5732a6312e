"""The Pulumi components that group the objects of a service, and the component of the shared model cache.

`program.fleet` registers them. Each kind of component has a type token, which is part of every URN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pulumi

from components import naming, urns
from components.kubernetes_object import kubernetes_object
from components.providers.host_schema import TYPE
from components.rendered import RenderedObject
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey


@dataclass(frozen=True)
class FleetTarget:
    """The target of a fleet's objects and the settings of their registration. The defaults are those of the loop."""

    at: str = ""
    """Suffix of logical names in a stack of several namespaces or clusters (`naming.place_suffix`)."""
    provider: pulumi.ProviderResource | None = None
    """The provider of the objects; None: the default provider of the `kubernetes` package."""
    transports: Mapping[str, Json] = field(default_factory=dict)
    """By host name, the inputs by which a HostProcess of package `herdsman` reaches the host without a cluster."""
    existing: frozenset[tuple[str, str]] = frozenset()
    """Type token and id of the objects that the cluster has. An object in this set is imported if the state lacks
    it."""
    version: str = ""
    """Version of the Kubernetes plugin; empty: the SDK's."""
    by_sdk: bool = False
    """True: resources of the SDK's classes (Deployment, Service, …). False: plain custom resources (ADR 48)."""

    @property
    def options(self) -> pulumi.ResourceOptions | None:
        """Return the resource options of each component; None for the default provider."""
        return pulumi.ResourceOptions(providers=[self.provider]) if self.provider else None


class ServiceComponent(pulumi.ComponentResource):
    """A component with some objects of one service as children. No child depends on another."""

    TOKEN: ClassVar[str]
    RETAIN: ClassVar[bool] = False
    """Whether the objects stay in the cluster when the program no longer contains them."""
    BY_SDK: ClassVar[bool] = False
    """Whether the children always use the SDK's classes, whatever `FleetTarget.by_sdk` is."""

    children: dict[str, pulumi.CustomResource]
    """The registered objects by `RenderedObject.part`."""

    def __init__(self, key: ServiceKey, objects: Sequence[RenderedObject], target: FleetTarget) -> None:
        super().__init__(self.TOKEN, urns.component_name(key, at=target.at), None, target.options)
        self._key, self._target = key, target
        self.children = {obj.part: self._register(obj) for obj in objects}
        self.register_outputs({})

    def complete(self, obj: RenderedObject, *, after: Sequence[pulumi.Resource]) -> pulumi.CustomResource:
        """Register the last object of the service, which carries the applied hash, after all others.

        The object is made after the objects in `after`, so that an applied hash in the cluster proves that those exist.
        """
        last = self._register(obj, after=after)
        self.children[obj.part] = last
        return last

    def _register(self, obj: RenderedObject, *, after: Sequence[pulumi.Resource] = ()) -> pulumi.CustomResource:
        target = self._target
        return kubernetes_object(
            urns.object_name(self._key, obj, at=target.at),
            obj,
            parent=self,
            after=after,
            retain=self.RETAIN,
            existing=target.existing,
            version=target.version,
            by_sdk=self.BY_SDK or target.by_sdk,
        )


class InferenceDeployment(ServiceComponent):
    """The pods of one model server and their Service, with a disruption budget and a network policy if asked for."""

    TOKEN = naming.TYPE_SERVICE


class Autoscaler(ServiceComponent):
    """The autoscaler of a service's pods. While it exists, Herdsman does not set the number of replicas."""

    TOKEN = naming.TYPE_AUTOSCALER


class Exposure(ServiceComponent):
    """The HTTPRoute or the Ingress that leads requests to a service."""

    TOKEN = naming.TYPE_EXPOSURE


class Routing(ServiceComponent):
    """The route from gateways to a pool of pods, and the pods that pick a member of the pool for each request."""

    TOKEN = naming.TYPE_ROUTING


class Monitoring(ServiceComponent):
    """The objects by which Prometheus scrapes a service and Pyrra watches its objective."""

    TOKEN = naming.TYPE_MONITORING


class HostedProcess(ServiceComponent):
    """A model server on one host.

    The HostProcess carries the plan and the agent's report. The component registers it in the cluster, where the host's
    agent reads it. For a host in `transports`, the plugin `herdsman` sends the plan to the host, and the cluster gets
    no object.
    """

    TOKEN = naming.TYPE_HOST_PROCESS

    def _register(self, obj: RenderedObject, *, after: Sequence[pulumi.Resource] = ()) -> pulumi.CustomResource:
        transport = self._target.transports.get(str(obj.manifest["spec"]["host"]))
        if transport is None:
            return super()._register(obj, after=after)
        inputs = {
            **transport,
            "namespace": self._key.namespace,
            "name": obj.name,
            "plan": obj.manifest["spec"],
            # The SDK returns outputs only to programs that name them among the inputs.
            "address": None,
            "port": None,
        }
        options = pulumi.ResourceOptions(parent=self, depends_on=list(after) if after else None)
        return pulumi.CustomResource(TYPE, urns.object_name(self._key, obj, at=self._target.at), inputs, options)


class Foundation(ServiceComponent):
    """The objects that outlive the operator: CRDs, namespaces, classes, agents' roles, the claim. Never deleted."""

    TOKEN = naming.TYPE_FOUNDATION
    RETAIN = True
    BY_SDK = True


class Operator(ServiceComponent):
    """The operator: its account, its roles, its Deployment and the objects around the Deployment."""

    TOKEN = naming.TYPE_OPERATOR
    BY_SDK = True


COMPONENTS: dict[str, type[ServiceComponent]] = {
    component.TOKEN: component
    for component in (
        *(InferenceDeployment, Autoscaler, Exposure, Routing, Monitoring, HostedProcess),
        *(Foundation, Operator),
    )
}
"""The classes by type token."""


class ModelCache(pulumi.ComponentResource):
    """The claim with the model files of one namespace, which all services of the namespace share.

    Herdsman never deletes the claim: its files took hours to download, and other services may read them.
    """

    claim: pulumi.CustomResource

    def __init__(self, claim: RenderedObject, target: FleetTarget) -> None:
        name = urns.shared_component_name(claim, at=target.at)
        super().__init__(naming.TYPE_CACHE, name, None, target.options)
        self.claim = kubernetes_object(
            urns.shared_object_name(claim, at=target.at),
            claim,
            parent=self,
            retain=True,
            existing=target.existing,
            version=target.version,
            by_sdk=target.by_sdk,
        )
        self.register_outputs({})
