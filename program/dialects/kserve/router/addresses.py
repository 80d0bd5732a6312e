"""The URLs of a service behind gateways, and the requests that each accepts. Pure.

A URL is a host of a gateway (its address, or a host name of listener or route) with a path of the route. Routes match
single endpoints of the OpenAI API; the status has the path before `/v1`, which clients' SDKs expect.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kubeapi import kinds
from kubeapi.json_types import Json
from program.dialects.dialect import Lookup
from program.dialects.kserve.settings import WILDCARD_LABEL

CLUSTER_DOMAIN = "cluster.local"
_PORTS = {"HTTP": ("http", 80), "HTTPS": ("https", 443)}
_ENDPOINT = re.compile(r"(?P<before>.*)/v1/.+")
_HEADER_ROUTED = "-model-routing"
_LOCAL_SUFFIXES = (".local", ".localhost", ".internal")
_PRIVATE = tuple(
    ipaddress.ip_network(block)
    for block in (
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "169.254.0.0/16"),
        *("fc00::/7", "fe80::/10", "::1/128"),
    )
)


@dataclass(frozen=True)
class Served:
    """The model names that a service accepts."""

    published: tuple[str, ...]
    """Names with the publisher: of the model, then of its adapters."""
    plain: tuple[str, ...]
    """The same names without the publisher. Accepted only if the path contains the publisher."""

    def models(self, path: str) -> list[Json]:
        """Return the models that can be requested under a path."""
        if path == "/":
            return [{"name": name} for name in self.published]
        return [{"name": name} for pair in zip(self.published, self.plain, strict=True) for name in pair]


def addresses(routes: Sequence[Json], served: Served, look: Lookup, *, wildcard: str = WILDCARD_LABEL) -> list[Json]:
    """Return all addresses for `status.addresses`, sorted by URL. `wildcard` replaces the `*` of a host name."""
    found: dict[str, Json] = {}
    for route in routes:
        paths = sorted(set(_paths(route)))
        for gateway, base in _bases(route, look, wildcard):
            for path in paths:
                url = f"{base}{path}"
                name = kind_of(base) + (_HEADER_ROUTED if path == "/" else "")
                found.setdefault(
                    url, {"name": name, "url": url, "origin": _origin(gateway), "models": served.models(path)}
                )
    return [found[url] for url in sorted(found)]


def external_url(found: Iterable[Json]) -> str:
    """Return a service's main URL: the first external one with a path, else the first external one.

    Empty if there is no external URL.
    """
    outside = [address for address in found if str(address.get("name", "")).startswith("gateway-external")]
    with_path = [address for address in outside if not str(address["name"]).endswith(_HEADER_ROUTED)]
    return next((str(address["url"]) for address in (*with_path, *outside)), "")


def service_address(service: str, namespace: str, *, port: int, tls: bool) -> Json:
    """Return the address of a service without a route: that of its Service, with the Service's port."""
    scheme = "https" if tls else "http"
    return {"url": f"{scheme}://{service}.{namespace}.svc.{CLUSTER_DOMAIN}:{port}"}


def kind_of(base: str) -> str:
    """Return from where a host is reachable: `gateway-internal`, `internal` or `gateway-external`."""
    host = _host(base)
    if host.endswith((f".svc.{CLUSTER_DOMAIN}", ".svc")):
        return "gateway-internal"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "internal" if host == "localhost" or host.endswith(_LOCAL_SUFFIXES) else "gateway-external"
    private = any(address.version == block.version and address in block for block in _PRIVATE)
    return "internal" if private else "gateway-external"


def parent_gateways(route: Json) -> Iterator[tuple[str, str, Json]]:
    """Yield namespace, name and reference of each gateway that a route names."""
    spec, own = route.get("spec") or {}, str(route["metadata"].get("namespace") or "")
    for parent in spec.get("parentRefs") or ():
        if parent.get("kind", "Gateway") == "Gateway" and parent.get("group", kinds.GATEWAYS.group) == _GROUP:
            yield str(parent.get("namespace") or own), str(parent.get("name") or ""), parent


_GROUP = kinds.GATEWAYS.group


def _host(base: str) -> str:
    authority = base.partition("://")[2]
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def _bases(route: Json, look: Lookup, wildcard: str) -> Iterator[tuple[Json, str]]:
    """Yield each gateway of a route with each base URL (scheme, host, port) that reaches the route."""
    hostnames = [str(name) for name in (route.get("spec") or {}).get("hostnames") or ()]
    for namespace, name, parent in parent_gateways(route):
        gateway = look(kinds.GATEWAYS, namespace, name)
        if gateway is None or _is_refused(route, namespace, name, parent):
            continue
        public = [
            str(entry["value"]) for entry in (gateway.get("status") or {}).get("addresses") or () if entry.get("value")
        ]
        hosts = [*public, *_cluster_hosts(gateway, look)]
        for listener in _listeners(gateway, parent) if hosts else ():
            scheme, usual = _PORTS[listener["protocol"]]
            port = listener.get("port", usual)
            for written in _hosts(hostnames, str(listener.get("hostname") or ""), hosts):
                host = _concrete(written, wildcard)
                yield gateway, f"{scheme}://{_in_url(host)}{'' if port == usual else f':{port}'}"


def _is_refused(route: Json, namespace: str, name: str, parent: Json) -> bool:
    """Return whether a gateway's controller refused the route, for example for its host names, and none accepted it."""
    own = str(route["metadata"].get("namespace") or "")
    told = [
        str(condition.get("status"))
        for said in (route.get("status") or {}).get("parents") or ()
        if (reference := said.get("parentRef") or {}).get("name") == name
        and (reference.get("namespace") or own) == namespace
        and all(reference.get(field) == parent.get(field) for field in ("sectionName", "port"))
        for condition in said.get("conditions") or ()
        if condition.get("type") == "Accepted"
    ]
    return bool(told) and all(status == "False" for status in told)


def _cluster_hosts(gateway: Json, look: Lookup) -> list[str]:
    """Return the host of the Service behind a gateway, for clients in the cluster; an empty list if there is none."""
    metadata, spec = gateway["metadata"], gateway.get("spec") or {}
    namespace, name = str(metadata.get("namespace") or ""), str(metadata["name"])
    for candidate in (name, f"{name}-{spec.get('gatewayClassName', '')}"):
        if look(kinds.SERVICES, namespace, candidate) is not None:
            return [f"{candidate}.{namespace}.svc.{CLUSTER_DOMAIN}"]
    return []


def _listeners(gateway: Json, parent: Json) -> Iterator[Json]:
    """Yield the listeners that a route attaches to."""
    section, port = parent.get("sectionName"), parent.get("port")
    for listener in (gateway.get("spec") or {}).get("listeners") or ():
        fits = (not section or listener.get("name") == section) and (not port or listener.get("port") == port)
        if fits and listener.get("protocol") in _PORTS:
            yield listener


def _hosts(hostnames: list[str], listening: str, otherwise: list[str]) -> list[str]:
    """Return the hosts of one listener: the intersection of route and listener, else the gateway's own."""
    if not hostnames:
        return [listening] if listening else otherwise
    if not listening:
        # A wildcard means any host of a domain. If the gateway names no host, none is known to reach it.
        return [name for name in hostnames if not name.startswith("*.")]
    return [narrower for name in hostnames if (narrower := _intersection(name, listening))]


def _intersection(one: str, other: str) -> str:
    """Return the narrower of two host names, either of which may be a wildcard; empty if they exclude each other."""
    if not other or one == other or _covers(other, one):
        return one
    return other if _covers(one, other) else ""


def _covers(wide: str, narrow: str) -> bool:
    return wide.startswith("*.") and narrow.endswith(wide[1:])


def _concrete(hostname: str, wildcard: str) -> str:
    return f"{wildcard}{hostname[1:]}" if hostname.startswith("*.") else hostname


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _paths(route: Json) -> Iterator[str]:
    for rule in (route.get("spec") or {}).get("rules") or ():
        every: tuple[Json, ...] = ({},)
        for match in rule.get("matches") or every:
            path = match.get("path") or {}
            if match.get("headers"):
                # The header names the model, so every path matches.
                yield "/"
            elif path.get("type", "PathPrefix") != "RegularExpression":
                yield _before_endpoint(str(path.get("value") or "/"))


def _before_endpoint(path: str) -> str:
    """Remove the endpoint: the base URL of an SDK ends before `/v1`."""
    found = _ENDPOINT.fullmatch(path)
    if found is not None:
        path = found["before"]
    return path.rstrip("/") or "/"


def _origin(gateway: Json) -> dict[str, Any]:
    metadata = gateway["metadata"]
    return {
        "group": _GROUP,
        "kind": "Gateway",
        "name": metadata["name"],
        "namespace": str(metadata.get("namespace") or ""),
    }
