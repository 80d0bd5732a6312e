"""The EndpointSlice that leads the clients of a sleeping service to the loop's proxy.

Called by `sleep`. It stands beside the slices that Kubernetes makes of the service's pods, which know of none then. The
loop applies it itself, not the engine: it comes and goes with a service's sleep, not with its spec.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import zlib
from collections.abc import Iterator
from urllib.parse import urlsplit

from automation.serving.engine_start import HTTP_PORT
from automation.settings import SERVICE_ACCOUNT_NAMESPACE
from components import naming
from kubeapi import kinds
from kubeapi.json_types import Json

SUFFIX = "-herdsman-wake"
LABEL_SERVICE_NAME = "kubernetes.io/service-name"
LABEL_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGED_BY = "herdsman"
SELECTOR = f"{LABEL_MANAGED_BY}={MANAGED_BY}"

FIRST_PORT = 11000
PORTS = 7000
"""Below the ports of agents' processes, and of outgoing connections."""


def slice_name(service: str) -> str:
    """Name the slice of a service."""
    return f"{naming.service_name(service)}{SUFFIX}"


def wake_slice(cr: Json, *, address: str, port: int) -> Json:
    """Build the slice; it goes with the custom resource."""
    metadata = cr["metadata"]
    service = str(metadata["name"])
    owner = {
        "apiVersion": kinds.INFERENCE_SERVICES.api_version,
        "kind": kinds.INFERENCE_SERVICES.kind,
        "name": service,
        "uid": metadata["uid"],
    }
    return {
        "apiVersion": kinds.ENDPOINT_SLICES.api_version,
        "kind": kinds.ENDPOINT_SLICES.kind,
        "metadata": {
            "name": slice_name(service),
            "namespace": metadata["namespace"],
            "labels": {LABEL_SERVICE_NAME: naming.service_name(service), LABEL_MANAGED_BY: MANAGED_BY},
            "ownerReferences": [owner],
        },
        "addressType": f"IPv{ipaddress.ip_address(address).version}",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": HTTP_PORT, "protocol": "TCP", "port": port}],
    }


def candidate_ports(name: str) -> Iterator[int]:
    """Give the ports to try for a service, the same ones in the same order each time, so that it keeps its own."""
    start = zlib.crc32(name.encode()) % PORTS
    return (FIRST_PORT + (start + step) % PORTS for step in range(PORTS))


def own_address(server: str) -> str:
    """Find the address at which the cluster reaches this loop: the pod's. Empty where that cannot be known.

    The downward API says it (`POD_IP`). Without, it is the one from which a pod talks to the API server; outside of a
    pod nobody can tell what the cluster reaches.
    """
    if told := os.environ.get("POD_IP", ""):
        return told
    host, port = urlsplit(server).hostname, urlsplit(server).port or 443
    if not SERVICE_ACCOUNT_NAMESPACE.exists() or host is None:
        return ""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # of a datagram socket: chooses an address and sends nothing
            found = str(probe.getsockname()[0])
    except OSError:
        return ""
    return "" if ipaddress.ip_address(found).is_loopback else found
