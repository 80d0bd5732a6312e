"""Knows the addresses of the cluster itself: API servers and pods. Called by `endpoints`; calls `kubeapi`."""

from __future__ import annotations

import functools
import ipaddress
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from urllib.parse import urlsplit

import structlog

from automation.hosts.addresses import ClusterAddresses, Range
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError
from kubeapi.kinds import ENDPOINT_SLICES, SERVICES

READ_EVERY_S = 600.0
_OF_API_SERVER = "kubernetes.io/service-name=kubernetes"

_log = structlog.get_logger(__name__)


class ClusterAddressReader:
    """Reads the addresses of the cluster, which no Service of a host may point to. Thread-safe."""

    def __init__(
        self,
        client: KubeClient,
        pod_ranges: Callable[[], Iterable[str]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pod_ranges` gives the CIDRs of pods, as the Nodes have them now."""
        self._client = client
        self._pod_ranges = pod_ranges
        self._clock = clock
        self._lock = threading.Lock()
        self._known = ClusterAddresses()
        self._read_at = float("-inf")

    def current(self) -> ClusterAddresses:
        """Give the addresses; those of API servers are read anew every ten minutes."""
        with self._lock:
            if self._clock() - self._read_at >= READ_EVERY_S:
                self._read_at = self._clock()
                self._known = ClusterAddresses(self._api_servers())
            known = self._known
        return replace(known, pod_ranges=_ranges(tuple(self._pod_ranges())))

    def _api_servers(self) -> frozenset[tuple[str, int]]:
        """Where the API server is: as this loop reaches it, as pods do, and where that leads."""
        url = urlsplit(self._client.server)
        found = {(url.hostname or "", url.port or 443)}
        try:
            service = self._client.get(SERVICES, "default", "kubernetes")["spec"]
            addresses = service.get("clusterIPs") or (service.get("clusterIP") or "",)
            found |= {(address, port["port"]) for address in addresses for port in service["ports"]}
            for each in self._client.list(ENDPOINT_SLICES, "default", label_selector=_OF_API_SERVER)["items"]:
                ports = [port["port"] for port in each.get("ports") or () if port.get("port")]
                of_all = [a for endpoint in each.get("endpoints") or () for a in endpoint["addresses"]]
                found |= {(address, port) for address in of_all for port in ports}
        except KubeError as error:
            _log.warning("Could not ask for the addresses of the API server", error=str(error))
        return frozenset(found)


@functools.lru_cache(maxsize=2)
def _ranges(texts: tuple[str, ...]) -> tuple[Range, ...]:
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)
