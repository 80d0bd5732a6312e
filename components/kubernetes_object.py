"""Registers resources by Pulumi's SDK. Called by `components.component_resources`.

Installations register an object by the SDK's class for its kind (`components.sdk_resources`, ADR 48). The loop and
static fleets register the objects of services without the SDK (`program.monitor_registrar`, ADR 52 and 60).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence

import pulumi

from components.registrations import Registration


@functools.cache
def sdk_is_installed() -> bool:
    """Return whether Pulumi's Kubernetes SDK is installed. The operator's image does not contain it."""
    return importlib.util.find_spec("pulumi_kubernetes") is not None


def sdk_registered(
    what: Registration, *, parent: pulumi.Resource, after: Sequence[pulumi.Resource] = (), by_sdk: bool = False
) -> pulumi.CustomResource:
    """Register a custom resource, to be made after `after`.

    With `by_sdk` a Kubernetes object has the SDK's class, if the SDK is installed.
    """
    options = pulumi.ResourceOptions(
        parent=parent,
        version=what.version or None,
        depends_on=list(after) if after else None,
        retain_on_delete=True if what.retain_on_delete else None,
        ignore_changes=list(what.ignore_changes) if what.ignore_changes else None,
        import_=what.import_id or None,
    )
    if by_sdk and what.type.startswith("kubernetes:") and sdk_is_installed():
        from components.sdk_resources import sdk_resource  # an import at the top would cost the loop CPU and memory

        return sdk_resource(what.type, what.name, what.inputs, options)
    return pulumi.CustomResource(what.type, what.name, what.inputs, options)


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
