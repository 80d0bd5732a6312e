"""Registers manifests with Pulumi as they are, and the base of the components that group them.

Called by the components of this package. In static fleets and installations an object is registered by the SDK's class
for its kind (`components.sdk_resources`). In the loop it is a plain custom resource under the same type token, with the
same inputs: the SDK's classes take more CPU for the same request (ADR 48).
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pulumi

from components import urns
from components.rendered import RenderedObject
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey


@functools.cache
def provider_version() -> str:
    """The version of the `kubernetes` package that the program is written for, as the locked SDK tells it."""
    return importlib.metadata.version("pulumi-kubernetes")


@functools.cache
def sdk_is_installed() -> bool:
    """Tell whether the classes of Pulumi's Kubernetes SDK can be imported. The operator's image lacks them."""
    return importlib.util.find_spec("pulumi_kubernetes") is not None


def kubernetes_object(
    name: str,
    obj: RenderedObject,
    *,
    parent: pulumi.Resource,
    after: Sequence[pulumi.Resource] = (),
    retain: bool = False,
    standing: frozenset[tuple[str, str]] = frozenset(),
    version: str = "",
    by_sdk: bool = False,
) -> pulumi.CustomResource:
    """Register one manifest. It is made after `after`; with `retain` it outlives its place in the program.

    An object that `standing` names by type token and id is imported where the state does not have it. `version` is
    that of the plugin, `provider_version` if not given. With `by_sdk` the class is that of Pulumi's Kubernetes SDK, if
    the SDK is installed.
    """
    token, resource_id = urns.type_of(obj), urns.id_of(obj)
    options = pulumi.ResourceOptions(
        parent=parent,
        version=version or provider_version(),
        depends_on=list(after) if after else None,
        retain_on_delete=True if retain else None,
        ignore_changes=list(obj.ignore) if obj.ignore else None,
        import_=resource_id if (token, resource_id) in standing else None,
    )
    if by_sdk and sdk_is_installed():
        from components.sdk_resources import sdk_resource  # the loop does not pay for this import

        return sdk_resource(token, name, obj.manifest, options)
    return pulumi.CustomResource(token, name, obj.manifest, options)


def cluster_provider(name: str, *, context: str, kubeconfig: str, version: str) -> pulumi.ProviderResource:
    """Register the provider of one cluster of a static fleet. `kubeconfig` is a path; both may be empty.

    Only the path of a kubeconfig comes into the state, never its content.
    """
    options = pulumi.ResourceOptions(version=version)
    if sdk_is_installed():
        from components.sdk_resources import sdk_provider

        return sdk_provider(name, context=context, kubeconfig=kubeconfig, options=options)
    inputs = {"context": context, "kubeconfig": kubeconfig}
    return pulumi.ProviderResource("kubernetes", name, {key: value for key, value in inputs.items() if value}, options)


@dataclass(frozen=True)
class ServiceObjectsArgs:
    """Some objects of one service, to be registered under one component. None of them waits for another."""

    key: ServiceKey
    objects: tuple[RenderedObject, ...]
    at: str = ""
    """Where the service is, as `naming.place_suffix` says it, in a stack of several namespaces or clusters."""
    ways: Mapping[str, Json] = field(default_factory=dict)
    """How hosts are reached without a cluster, by name: inputs of a HostProcess of package `herdsman`."""
    standing: frozenset[tuple[str, str]] = frozenset()
    """Type token and id of the objects that exist, which an engine without a state of them imports."""
    version: str = ""
    """The plugin's version, if it is not the SDK's."""
    by_sdk: bool = False
    """Whether the resources are of the SDK's classes (Deployment, Service, …), or plain ones."""


class ServiceObjects(pulumi.ComponentResource):
    """The base of the components: children by part, none of them changed by the component."""

    objects: dict[str, pulumi.CustomResource]
    """The children, by the part of the service that they are."""

    def __init__(self, token: str, args: ServiceObjectsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(token, urns.component_name(args.key, at=args.at), None, opts)
        self._args = args
        self.objects = {}
        for obj in args.objects:
            self.objects[obj.part] = self._made(obj)
        self.register_outputs({})

    def complete(self, obj: RenderedObject, *, after: Sequence[pulumi.Resource]) -> pulumi.CustomResource:
        """Register the last object of the service, which carries the applied hash, after all others.

        The hash is the fingerprint only when everything else stands.
        """
        last = self._made(obj, after=after)
        self.objects[obj.part] = last
        return last

    def _made(self, obj: RenderedObject, *, after: Sequence[pulumi.Resource] = ()) -> pulumi.CustomResource:
        name = urns.object_name(self._args.key, obj, at=self._args.at)
        args = self._args
        return kubernetes_object(
            name, obj, parent=self, after=after, standing=args.standing, version=args.version, by_sdk=args.by_sdk
        )


ServiceComponent = Callable[[ServiceObjectsArgs, pulumi.ResourceOptions | None], ServiceObjects]
