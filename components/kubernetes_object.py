"""Registers rendered manifests with Pulumi without changes. Called by `components.component_resources`.

Static fleets and installations register an object by the SDK's class for its kind (`components.sdk_resources`). The
loop registers a plain custom resource with the same type token and inputs, because the SDK's classes take more CPU for
the same request (ADR 48).
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
    """Return the version of the `kubernetes` package that the program is written for: that of the installed SDK."""
    return importlib.metadata.version("pulumi-kubernetes")


@functools.cache
def sdk_is_installed() -> bool:
    """Return whether Pulumi's Kubernetes SDK is installed. The operator's image does not contain it."""
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
    """Register one manifest, to be made after `after`.

    With `retain`, Pulumi keeps the object in the cluster when the program no longer contains it. An object in
    `existing`, by type token and id, is imported if the state lacks it. `version` is that of the plugin; empty means
    `provider_version()`. With `by_sdk` the resource has the SDK's class, if the SDK is installed.
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
        from components.sdk_resources import sdk_resource  # an import at the top would cost the loop CPU and memory

        return sdk_resource(token, name, obj.manifest, options)
    return pulumi.CustomResource(token, name, obj.manifest, options)


def cluster_provider(name: str, *, context: str, kubeconfig: str, version: str) -> pulumi.ProviderResource:
    """Register the provider of one cluster of a static fleet. `kubeconfig` is a path; both arguments may be empty.

    The state holds only the path of the kubeconfig, never its content.
    """
    options = pulumi.ResourceOptions(version=version)
    if sdk_is_installed():
        from components.sdk_resources import sdk_provider

        return sdk_provider(name, context=context, kubeconfig=kubeconfig, options=options)
    inputs = {"context": context, "kubeconfig": kubeconfig}
    return pulumi.ProviderResource("kubernetes", name, {key: value for key, value in inputs.items() if value}, options)
