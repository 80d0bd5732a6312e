"""Registers manifests with Pulumi as they are. Called by `components.component_resources`.

In static fleets and installations an object is registered by the SDK's class
for its kind (`components.sdk_resources`). In the loop it is a plain custom resource under the same type token, with the
same inputs: the SDK's classes take more CPU for the same request (ADR 48).
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Sequence

import pulumi

from components import urns
from components.rendered import RenderedObject


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
    existing: frozenset[tuple[str, str]] = frozenset(),
    version: str = "",
    by_sdk: bool = False,
) -> pulumi.CustomResource:
    """Register one manifest. It is made after `after`; with `retain` it outlives its place in the program.

    An object that `existing` names by type token and id is imported where the state does not have it. `version` is
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
        import_=resource_id if (token, resource_id) in existing else None,
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
