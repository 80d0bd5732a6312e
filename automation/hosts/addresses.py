"""Decides which address the Services of a host use.

Used by `endpoints`. Without I/O, except for `ClusterAddressReader`. An agent reports its address, and its token may be
stolen. So if the owner of a host has set `spec.address`, only that address counts. Otherwise the reported address is
checked: it must not be special, such as loopback, and it must not belong to the cluster.
"""

from __future__ import annotations

import functools
import ipaddress
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import structlog

from agent.contract import ProcessReason
from automation.hosts.registration import Refused
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError
from kubeapi.json_types import JsonView
from kubeapi.kinds import ENDPOINT_SLICES, SERVICES

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Range = ipaddress.IPv4Network | ipaddress.IPv6Network

LEAST_PORT = 1024
"""Engines listen on unprivileged ports. The ports below belong to services of the operating system."""


@dataclass(frozen=True)
class HostAddress:
    """The addresses in a Host object."""

    pinned: str = ""
    """`spec.address`, set by the host's owner."""
    named: str = ""
    """`status.address`, reported by the host."""
    by_ssh: bool = False


@dataclass(frozen=True)
class ClusterAddresses:
    """Addresses of the cluster, which no Service of a host may use."""

    api_servers: frozenset[tuple[str, int]] = frozenset()
    """Address and port of each API server, as clients reach it."""
    pod_ranges: tuple[Range, ...] = ()


def host_address(host: JsonView) -> HostAddress:
    """Read the addresses of a Host object."""
    spec, status = host.get("spec") or {}, host.get("status") or {}
    by_ssh = spec.get("transport") == "ssh"
    return HostAddress(str(spec.get("address") or ""), str(status.get("address") or ""), by_ssh)


def published_address(
    name: str,
    host: HostAddress | None,
    port: int | None,
    *,
    pinned_by: Mapping[str, Collection[str]],
    cluster: ClusterAddresses,
) -> str:
    """Return the address for the Services of a host. Raises Refused, which names the field.

    `pinned_by` contains the names of Hosts with a `spec.address`, by address.
    """
    if host is None:
        raise _refused(
            f"there is no Host `{name}`, so its address is unknown; restart its agent, which creates the Host"
        )
    if port is not None and not LEAST_PORT <= port <= 65535:
        raise _refused(f"host `{name}` reported port {port}; Services may use only ports from {LEAST_PORT} on")
    pinned = _ip(host.pinned)
    if host.pinned and pinned is None and not host.by_ssh:
        raise _refused(f"Host `{name}`: spec.address `{host.pinned}` is not an IP address; Services need IP addresses")
    field, address = ("spec.address", pinned) if pinned is not None else ("status.address", _ip(host.named))
    if address is None:
        raise _refused(f"Host `{name}`: status.address `{host.named}` is not an IP address; restart its agent")
    if why := _never_a_hosts(address):
        raise _refused(f"Host `{name}`: {field} {address} is {why}, which other machines cannot reach")
    if pinned is None:
        if why := _the_clusters(address, port, cluster):
            raise _refused(f"Host `{name}`: status.address {address} {why}; if it is right, set spec.address to it")
        others = sorted(set(pinned_by.get(str(address), ())) - {name})
        if others:
            raise _refused(f"Host `{name}`: status.address {address} is spec.address of Host `{others[0]}`")
    return str(address)


def _refused(message: str) -> Refused:
    return Refused(ProcessReason.ADDRESS_REFUSED, message)


def _ip(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _never_a_hosts(address: Address) -> str:
    inner = getattr(address, "ipv4_mapped", None)
    if inner is not None:
        return "an IPv4 address in IPv6"
    for is_so, words in (
        (address.is_unspecified, "no address"),
        (address.is_loopback, "loopback"),
        (address.is_link_local, "link-local"),
        (address.is_multicast, "multicast"),
        (address.is_reserved, "reserved"),
    ):
        if is_so:
            return words
    return ""


def _the_clusters(address: Address, port: int | None, cluster: ClusterAddresses) -> str:
    if (str(address), port) in cluster.api_servers:
        return f"with port {port} is the API server"
    if any(address.version == each.version and address in each for each in cluster.pod_ranges):
        return "is an address of pods"
    return ""


READ_EVERY_S = 600.0
_OF_API_SERVER = "kubernetes.io/service-name=kubernetes"

_log = structlog.get_logger(__name__)


class ClusterAddressReader:
    """Reads the addresses of the cluster, which no Service of a host may use. Thread-safe."""

    def __init__(
        self,
        client: KubeClient,
        pod_ranges: Callable[[], Iterable[str]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pod_ranges` returns the current pod CIDRs of the Nodes."""
        self._client = client
        self._pod_ranges = pod_ranges
        self._clock = clock
        self._lock = threading.Lock()
        self._known = ClusterAddresses()
        self._read_at = float("-inf")

    def current(self) -> ClusterAddresses:
        """Return the addresses. Those of the API servers are read again every ten minutes."""
        with self._lock:
            if self._clock() - self._read_at >= READ_EVERY_S:
                self._read_at = self._clock()
                self._known = ClusterAddresses(self._api_servers())
            known = self._known
        return replace(known, pod_ranges=_ranges(tuple(self._pod_ranges())))

    def _api_servers(self) -> frozenset[tuple[str, int]]:
        """Return the addresses of the API server: the loop's, the pods', and those of its endpoints."""
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
            _log.warning("Could not read the addresses of the API server", error=str(error))
        return frozenset(found)


@functools.lru_cache(maxsize=2)
def _ranges(texts: tuple[str, ...]) -> tuple[Range, ...]:
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)
