"""The resource classes of Pulumi's Kubernetes SDK for the kinds that Herdsman makes.

Used by `components.kubernetes_object` for installations and the providers of clusters. The import takes 1.2 s of CPU
and 30 MB, and each resource 4 ms more than a plain `pulumi.CustomResource`, so the loop never imports this module
(ADR 48).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pulumi
from pulumi_kubernetes import Provider
from pulumi_kubernetes.admissionregistration.v1 import ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding
from pulumi_kubernetes.apiextensions.v1 import CustomResourceDefinition
from pulumi_kubernetes.apps.v1 import Deployment
from pulumi_kubernetes.autoscaling.v2 import HorizontalPodAutoscaler
from pulumi_kubernetes.core.v1 import ConfigMap, Namespace, PersistentVolumeClaim, Service, ServiceAccount
from pulumi_kubernetes.networking.v1 import Ingress, NetworkPolicy
from pulumi_kubernetes.policy.v1 import PodDisruptionBudget
from pulumi_kubernetes.rbac.v1 import ClusterRole, ClusterRoleBinding, Role, RoleBinding
from pulumi_kubernetes.scheduling.v1 import PriorityClass

_CLASSES: dict[str, Callable[..., pulumi.CustomResource]] = {
    made.pulumi_type: made
    for made in (
        *(Deployment, Service, PersistentVolumeClaim, HorizontalPodAutoscaler, PodDisruptionBudget),
        *(Ingress, NetworkPolicy, ConfigMap, ServiceAccount, Role, RoleBinding),
        *(Namespace, ClusterRole, ClusterRoleBinding, PriorityClass, CustomResourceDefinition),
        *(ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding),
    )
}
_SET_BY_CLASS = ("apiVersion", "kind")
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def sdk_resource(
    token: str, name: str, manifest: Mapping[str, Any], options: pulumi.ResourceOptions
) -> pulumi.CustomResource:
    """Register a manifest with the SDK's class for its type token, or, if there is none, as a plain resource.

    Inputs and state are those of a plain resource with the same token: below the first level the SDK keeps the names of
    fields as they are in the manifest.
    """
    made = _CLASSES.get(token)
    if made is None:
        # The SDK's CustomResource class would replace the plugin version of the options.
        return pulumi.CustomResource(token, name, manifest, options)
    fields = {_WORDS.sub("_", key).lower(): value for key, value in manifest.items() if key not in _SET_BY_CLASS}
    return made(name, opts=options, **fields)


def sdk_provider(
    name: str, *, context: str, kubeconfig: str, options: pulumi.ResourceOptions
) -> pulumi.ProviderResource:
    """Register the SDK's provider for a cluster; see `kubernetes_object.cluster_provider`."""
    provider: pulumi.ProviderResource = Provider(
        name,
        context=context or None,
        # For None the SDK writes $KUBECONFIG, which differs between machines, into the state.
        kubeconfig=pulumi.Output.from_input(kubeconfig or None),
        opts=options,
    )
    return provider
