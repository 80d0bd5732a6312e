"""How clients reach the proxy of a sleeping service: the EndpointSlice, and which clients may connect.

Called by `sleep`. The slice exists beside the slices that Kubernetes makes of the service's pods. The loop applies it,
and not the engine, because it depends on whether the service sleeps, and not on its spec.

Clients are checked by the rule of the pods' NetworkPolicy. A NetworkPolicy protects pods, and a sleeping service has
none: without the check every pod of the cluster could wake it. A client is admitted when the API server lists a running
pod with its address in an admitted namespace.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import structlog

from automation.serving.engine_start import HTTP_PORT
from automation.settings import SERVICE_ACCOUNT_NAMESPACE
from components import naming
from components.engine_workloads import other_namespaces
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError
from kubeapi.json_types import Json
from program.desired.service import DesiredService

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
    """Build the slice. It is deleted with the custom resource."""
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
    """Return the ports to try for a service, always in the same order, so that it keeps its port."""
    start = zlib.crc32(name.encode()) % PORTS
    return (FIRST_PORT + (start + step) % PORTS for step in range(PORTS))


def own_address(server: str) -> str:
    """Return the address at which the cluster reaches this loop's pod; empty when it is not known.

    It is that of the downward API (`POD_IP`), else the address from which the pod connects to the API server. Outside
    of a pod it is not known.
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


KEPT_S = 5.0
"""How long an answer is valid for the same address. Another pod may get the address of a deleted one."""
MOST_KEPT = 4096
THREADS = 2
WAITING_MAX = 256
"""Connections that may wait for the API server at once; more are not admitted."""

_log = structlog.get_logger(__name__)


def admitted_namespaces(desired: DesiredService) -> tuple[str, ...] | None:
    """Name the namespaces whose pods the service's NetworkPolicy admits; None where it has none."""
    if desired.network is None:
        return None
    if desired.network.gateway:
        return (desired.network.gateway,)
    return (desired.key.namespace, *other_namespaces(desired, desired.network))


class WakeSources:
    """Checks which clients may connect. Thread-safe; `close` ends its threads."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[float, bool]] = {}
        """By namespace and address: the end of the answer's validity, and whether a pod there has the address."""
        self._waiting = 0
        self._pool: ThreadPoolExecutor | None = None

    def check(self, namespaces: tuple[str, ...], address: str, decided: Callable[[bool], None]) -> None:
        """Decide whether a pod of these namespaces has the address. Never blocks; `decided` may be called later."""
        plain = _plain(address)
        with self._lock:
            known = [self._answer(namespace, plain) for namespace in namespaces]
            waits = plain and True not in known and None in known and self._waiting < WAITING_MAX
            if waits:
                self._waiting += 1
                self._pool = self._pool or ThreadPoolExecutor(THREADS, thread_name_prefix="wake-sources")
                self._pool.submit(self._find_pods, namespaces, plain, decided)
        if not waits:
            decided(True in known)

    def close(self) -> None:
        """End the threads; connections that still wait get no answer, since the proxy has ended."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _answer(self, namespace: str, address: str) -> bool | None:
        until, admitted = self._known.get((namespace, address), (float("-inf"), False))
        return admitted if self._clock() < until else None

    def _find_pods(self, namespaces: tuple[str, ...], address: str, decided: Callable[[bool], None]) -> None:
        admitted = False
        try:
            admitted = any(self._has_pod(namespace, address) for namespace in namespaces)
        except KubeError as error:
            _log.warning("Could not look up a client of a sleeping service", address=address, error=str(error))
        finally:
            with self._lock:
                self._waiting -= 1
            decided(admitted)

    def _has_pod(self, namespace: str, address: str) -> bool:
        with self._lock:
            known = self._answer(namespace, address)
        if known is not None:
            return known
        selector = f"status.podIP={address},status.phase=Running"
        pods = self._client.list(kinds.PODS, namespace, field_selector=selector)["items"]
        # A pod in the node's network has the node's address, as everything else on that node.
        found = any(not (pod.get("spec") or {}).get("hostNetwork") for pod in pods)
        with self._lock:
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            self._known[namespace, address] = (self._clock() + KEPT_S, found)
        return found


def _plain(address: str) -> str:
    """Format an address as in the status of pods; empty for an invalid one."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
