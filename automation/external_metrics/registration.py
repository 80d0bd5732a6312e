"""The objects by which the API server finds the external metrics API: its APIService, and the endpoint of its Service.

An installation makes the APIService and the Service. The loop writes the authority of its certificate, and its address.
A cluster has one APIService for all external metrics. One of another adapter, such as KEDA's, is left alone.
"""

from __future__ import annotations

import base64
import ipaddress

from automation.external_metrics.answers import GROUP, VERSION
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict
from kubeapi.json_types import Json

API_SERVICE = f"{VERSION}.{GROUP}"
PORT_NAME = "https"
_FIELD_MANAGER = "herdsman"


def find(client: KubeClient) -> Json | None:
    """Return the APIService; None if no adapter is installed. Raises ApiError."""
    return client.find(kinds.API_SERVICES, None, API_SERVICE)


def service_of(api_service: Json) -> tuple[str, str]:
    """Return namespace and name of the Service that answers; both empty if the API server itself does."""
    service = (api_service.get("spec") or {}).get("service") or {}
    return str(service.get("namespace", "")), str(service.get("name", ""))


def register(client: KubeClient, service: tuple[str, str], authority: bytes) -> bool:
    """Write the authority of the certificate into the APIService. Return whether it has it.

    False: it does not exist, or leads to another Service. Raises KubeError.
    """
    found = find(client)
    if found is None or service_of(found) != service:
        return False
    bundle = base64.b64encode(authority).decode()
    if found["spec"].get("caBundle") == bundle:
        return True
    version = found["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "spec": {"caBundle": bundle, "insecureSkipTLSVerify": None}}
    try:
        client.patch(kinds.API_SERVICES, None, API_SERVICE, patch)
    except Conflict:
        return False  # another client changed it at the same moment; the next attempt follows soon
    return True


def publish(client: KubeClient, service: tuple[str, str], address: str, port: int) -> None:
    """Make the Service lead to this loop, unless it does. Raises KubeError.

    The Service has no selector: several loops may run, and only the leader knows the requests.
    """
    namespace, name = service
    version = ipaddress.ip_address(address).version
    endpoint_slice = {
        "apiVersion": kinds.ENDPOINT_SLICES.api_version,
        "kind": kinds.ENDPOINT_SLICES.kind,
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/service-name": name,
                "endpointslice.kubernetes.io/managed-by": "herdsman",
                "app.kubernetes.io/part-of": "herdsman",
            },
        },
        "addressType": f"IPv{version}",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": PORT_NAME, "port": port, "protocol": "TCP"}],
    }
    found = client.find(kinds.ENDPOINT_SLICES, namespace, name) or {}
    if not _has(found, endpoint_slice):
        client.apply(kinds.ENDPOINT_SLICES, namespace, endpoint_slice, field_manager=_FIELD_MANAGER, force=True)


def _has(found: object, wanted: object) -> bool:
    """Return whether an object has all wanted fields. Lists must be as long as the wanted ones."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_has(found.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_has, found, wanted))
    return found == wanted
