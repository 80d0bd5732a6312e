"""The Pulumi components that group the objects of a service, and the component of the shared model cache.

Installations and other programs of the SDK use them, static fleets for processes on hosts of their config. Each kind of
component has a type token, which is part of every URN. `components.registrations` lists their resources;
`program.monitor_registrar` registers the same ones without the SDK.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pulumi

from components import naming, registrations
from components.kubernetes_object import sdk_registered
from components.registrations import Place
from components.rendered import RenderedObject
from program.desired.keys import ServiceKey


@dataclass(frozen=True)
class FleetTarget(Place):
    """The target of a fleet's objects and the settings of their registration by the SDK."""

    provider: pulumi.ProviderResource | None = None
    """The provider of the objects; None: the default provider of the `kubernetes` package."""

    @property
    def options(self) -> pulumi.ResourceOptions | None:
        """Return the resource options of each component; None for the default provider."""
        return pulumi.ResourceOptions(providers=[self.provider]) if self.provider else None


class ServiceComponent(pulumi.ComponentResource):
    """A component with some objects of one service as children. No child depends on another."""

    TOKEN: ClassVar[str]
    BY_SDK: ClassVar[bool] = False
    """Whether the children are resources of the SDK's classes (Deployment, Service, …), or plain ones (ADR 48)."""

    children: dict[str, pulumi.CustomResource]
    """The registered objects by `RenderedObject.part`."""

    def __init__(self, key: ServiceKey, objects: Sequence[RenderedObject], target: FleetTarget) -> None:
        what = registrations.component(self.TOKEN, key, target)
        super().__init__(what.type, what.name, None, target.options)
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
        what = registrations.child(self.TOKEN, self._key, obj, self._target)
        return sdk_registered(what, parent=self, after=after, by_sdk=self.BY_SDK)


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


class Configuration(ServiceComponent):
    """A ModelRouter, ModelPool or LoRAAdapter of a static fleet, applied as it is written."""

    TOKEN = naming.TYPE_CONFIGURATION


class HostedProcess(ServiceComponent):
    """A model server on one host.

    The HostProcess carries the plan and the agent's report. The component registers it in the cluster, where the host's
    agent reads it. For a host in `transports`, the plugin `herdsman` sends the plan to the host, and the cluster gets
    no object.
    """

    TOKEN = naming.TYPE_HOST_PROCESS


class Foundation(ServiceComponent):
    """The objects that outlive the operator: CRDs, namespaces, classes, agents' roles, the claim. Never deleted."""

    TOKEN = naming.TYPE_FOUNDATION
    BY_SDK = True


class Operator(ServiceComponent):
    """The operator: its account, its roles, its Deployment and the objects around the Deployment."""

    TOKEN = naming.TYPE_OPERATOR
    BY_SDK = True


COMPONENTS: dict[str, type[ServiceComponent]] = {
    component.TOKEN: component
    for component in (
        *(InferenceDeployment, Autoscaler, Exposure, Routing, Monitoring, HostedProcess),
        *(Configuration, Foundation, Operator),
    )
}
"""The classes by type token."""


class ModelCache(pulumi.ComponentResource):
    """The claim with the model files of one namespace, which all services of the namespace share.

    Herdsman never deletes the claim: its files took hours to download, and other services may read them.
    """

    claim: pulumi.CustomResource

    def __init__(self, claim: RenderedObject, target: FleetTarget) -> None:
        what = registrations.cache(claim, target)
        super().__init__(what.type, what.name, None, target.options)
        self.claim = sdk_registered(registrations.cache_claim(claim, target), parent=self)
        self.register_outputs({})
