"""The Kubernetes Service in front of a service's pods. Called by `components.render`."""

from __future__ import annotations

from components import naming
from components.object_metadata import object_metadata, selector_labels
from components.pod_template import container_port
from components.rendered import RenderedObject
from kubeapi.json_types import Json
from program.desired.service import DesiredService

DEFAULT_PORT = 8080
"""The port in LLMKube's URLs, whatever port the engine listens on."""


def service_port(desired: DesiredService) -> int:
    """Return the port that clients use."""
    return DEFAULT_PORT if desired.endpoint.port is None else desired.endpoint.port


def service(desired: DesiredService) -> RenderedObject:
    """Build the Service: the clients' port in front, the container's real port behind."""
    labels = selector_labels(desired)
    port: Json = {
        "name": "http",
        "protocol": "TCP",
        "port": service_port(desired),
        "targetPort": container_port(desired),
    }
    if desired.endpoint.type == "NodePort" and desired.endpoint.node_port is not None:
        port["nodePort"] = desired.endpoint.node_port
    manifest: Json = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": object_metadata(desired, naming.service_name(desired.key.name), labels),
        "spec": {"type": desired.endpoint.type, "selector": labels, "ports": [port]},
    }
    return RenderedObject("service", naming.TYPE_SERVICE, manifest)
