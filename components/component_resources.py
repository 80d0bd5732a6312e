"""The Pulumi components that group the objects of a service, and the cache that services share.

`program.fleet` registers them. The components of services differ by type token, which is part of every URN.
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
    """Where services are made, and how their objects are registered. The default is what the loop's engine needs."""

    at: str = ""
    """Suffix of logical names in a stack of several namespaces or clusters (`naming.place_suffix`)."""
    provider: pulumi.ProviderResource | None = None
    """Instead of the default provider of the `kubernetes` package."""
    transports: Mapping[str, Json] = field(default_factory=dict)
    """How hosts are reached without a cluster, by name: inputs of a HostProcess of package `herdsman`."""
    existing: frozenset[tuple[str, str]] = frozenset()
    """Type token and id of the objects that exist there. An engine without a state of them imports them."""
    version: str = ""
    """That of the Kubernetes plugin, if it is not the SDK's."""
    by_sdk: bool = False
    """Whether the resources are of the SDK's classes (Deployment, Service, …), or plain ones (ADR 48)."""

    @property
    def options(self) -> pulumi.ResourceOptions | None:
        """The options of each component."""
        return pulumi.ResourceOptions(providers=[self.provider]) if self.provider else None


class ServiceComponent(pulumi.ComponentResource):
    """Some objects of one service: children by part. None of them waits for another."""

    TOKEN: ClassVar[str]
    RETAIN: ClassVar[bool] = False
    """Whether the children outlive their place in the program."""
    BY_SDK: ClassVar[bool] = False
    """Whether the children are of the SDK's classes wherever they are registered."""

    children: dict[str, pulumi.CustomResource]
    """By the part of the service that they are."""

    def __init__(self, key: ServiceKey, objects: Sequence[RenderedObject], target: FleetTarget) -> None:
        super().__init__(self.TOKEN, urns.component_name(key, at=target.at), None, target.options)
        self._key, self._target = key, target
        self.children = {obj.part: self._register(obj) for obj in objects}
        self.register_outputs({})

    def complete(self, obj: RenderedObject, *, after: Sequence[pulumi.Resource]) -> pulumi.CustomResource:
        """Register the last object of the service, which carries the applied hash, after all others.

        The hash is the fingerprint only when everything else stands.
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
    """Run one model server's pods, give them a stable address, and guard them where that is asked for."""

    TOKEN = naming.TYPE_SERVICE


class Autoscaler(ServiceComponent):
    """Scale a service's pods. While it exists, it alone sets their number."""

    TOKEN = naming.TYPE_AUTOSCALER


class Exposure(ServiceComponent):
    """Lead requests from a Gateway or an Ingress to a service."""

    TOKEN = naming.TYPE_EXPOSURE


class Routing(ServiceComponent):
    """Lead requests from gateways to a pool of pods, with the pods that pick among them for each request."""

    TOKEN = naming.TYPE_ROUTING


class Monitoring(ServiceComponent):
    """Have Prometheus scrape a service, and Pyrra watch its objective."""

    TOKEN = naming.TYPE_MONITORING


class HostedProcess(ServiceComponent):
    """Run a model server on one host.

    The HostProcess, which carries plan and report, goes to the cluster, where the host's agent reads it. For a host in
    `transports` the plugin `herdsman` hands the plan to the host itself, and no object is made in a cluster.
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
            # Outputs, which the SDK gives only those programs that name them.
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
    """The operator: its account and roles, its Deployment and what belongs to it."""

    TOKEN = naming.TYPE_OPERATOR
    BY_SDK = True


COMPONENTS: dict[str, type[ServiceComponent]] = {
    component.TOKEN: component
    for component in (
        *(InferenceDeployment, Autoscaler, Exposure, Routing, Monitoring, HostedProcess),
        *(Foundation, Operator),
    )
}
"""By type token."""


class ModelCache(pulumi.ComponentResource):
    """Keep one namespace's model files on a claim that all its services share.

    Herdsman never deletes the claim: what it holds took hours to download, and other services may read it.
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
