"""The NetworkPolicy of a service that says who may connect. Called by `components.render`."""

from __future__ import annotations

from components import naming
from components.object_metadata import object_metadata, selector_labels
from components.pod_template import container_port
from components.rendered import RenderedObject
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.service import DesiredService, NetworkAccess

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""The API server puts it on every namespace."""


def other_namespaces(desired: DesiredService, access: NetworkAccess) -> tuple[str, ...]:
    """Name the namespaces whose pods may connect beside those of the service's own namespace."""
    gateway = desired.expose.gateway_namespace if desired.expose else ""
    return tuple(dict.fromkeys((*access.namespaces, *([gateway] if gateway else []))))


def network_policy(desired: DesiredService, access: NetworkAccess) -> RenderedObject:
    """Build the policy: pods of the service's own namespace and of those named, to the engine's port and no other.

    The kubelet's probes come from the node, which network plugins let through. What a pod itself asks for is free.
    """
    labels = selector_labels(desired)
    sources: list[Json] = [{"podSelector": {}}]
    sources += [
        {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: name}}} for name in other_namespaces(desired, access)
    ]
    manifest: Json = {
        "apiVersion": kinds.NETWORK_POLICIES.api_version,
        "kind": kinds.NETWORK_POLICIES.kind,
        "metadata": object_metadata(desired, naming.deployment_name(desired.key.name), labels),
        "spec": {
            "podSelector": {"matchLabels": labels},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": sources, "ports": [{"protocol": "TCP", "port": container_port(desired)}]}],
        },
    }
    return RenderedObject("network", naming.TYPE_SERVICE, manifest)
