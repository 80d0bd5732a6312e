"""Which addresses of a spec the gateway sends requests to. Pure.

A dialect checks the addresses of a spec. The gateway checks the addresses that a name leads to when it connects. Both
use these functions, because the gateway reaches what its users cannot: its own machine, and pods that admit only the
gateway.
"""

from __future__ import annotations

import ipaddress

from program.desired.errors import SpecInvalid
from program.desired.web_address import AddressInvalid, WebAddress

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_CLUSTER = ".cluster.local"


def check_url(url: str, field: str, namespace: str) -> None:
    """Check an address that the gateway sends requests to, for an object of a namespace. Raises SpecInvalid.

    Requests with credentials need TLS, except to a Service of the object's own namespace.
    """
    try:
        address = WebAddress.parse(url)
    except AddressInvalid as error:
        raise SpecInvalid(field=field, why=str(error)) from None
    if address.query:
        raise SpecInvalid(field=field, why="has a query; the gateway adds paths to the address")
    try:
        own = is_own(address.host)
    except ValueError:
        _check_name(address.host, field, namespace)
        if address.scheme == "http" and not _is_service(address.host, namespace):
            why = (
                f"is not an https address; only Services of namespace `{namespace}` (NAME.{namespace}.svc) may use http"
            )
            raise SpecInvalid(field=field, why=why) from None
        return
    if own:
        raise SpecInvalid(field=field, why="is an address of the gateway's own machine or link")
    if address.scheme == "http":
        why = "is not an https address; only Services (NAME.NAMESPACE.svc) may use http"
        raise SpecInvalid(field=field, why=why)


def is_own(address: str) -> bool:
    """Return whether an IP address belongs to the gateway's own machine or link. Raises ValueError for other texts."""
    number = _unwrapped(ipaddress.ip_address(address.partition("%")[0]))
    return number.is_loopback or number.is_link_local or number.is_unspecified or number.is_multicast


def _unwrapped(
    number: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address that an IPv6 address leads to, if it leads to one."""
    if isinstance(number, ipaddress.IPv4Address):
        return number
    if number in _NAT64 or (number in _COMPATIBLE and int(number) > 1):
        return ipaddress.IPv4Address(int(number) & 0xFFFFFFFF)
    return number.ipv4_mapped or number.sixtofour or number


def _check_name(host: str, field: str, namespace: str) -> None:
    last = host.rpartition(".")[2]
    if last.isdigit() or last.startswith("0x"):
        raise SpecInvalid(field=field, why=f"has host `{host}`, which is not an IP address in its usual form")
    if last == "localhost":
        raise SpecInvalid(field=field, why="is an address of the gateway's own machine")
    if "." not in host:
        why = f"has host `{host}`, which is a Service of the gateway's namespace; write NAME.{namespace}.svc"
        raise SpecInvalid(field=field, why=why)
    if (last == "svc" or host.endswith(_CLUSTER)) and not _is_service(host, namespace):
        why = (
            f"has host `{host}`, which is no Service of namespace `{namespace}`; use inferenceServiceRef for a model "
            f"of the cluster, or a Service NAME.{namespace}.svc"
        )
        raise SpecInvalid(field=field, why=why)


def _is_service(host: str, namespace: str) -> bool:
    """Return whether a name is that of a Service of a namespace, or of a pod behind one."""
    return host.removesuffix(_CLUSTER).endswith(f".{namespace}.svc")
