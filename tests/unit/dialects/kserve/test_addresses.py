"""The URLs in a service's status: gateways, listeners, host names, ports and paths."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.dialects.kserve.router.addresses import Served, addresses, external_url, kind_of, service_address
from tests.conformance.environment import FileLookup

SERVED = Served(published=("publishers/ns/models/m", "publishers/ns/models/l"), plain=("m", "l"))
HTTP = {"name": "web", "port": 80, "protocol": "HTTP"}
HTTPS = {"name": "tls", "port": 443, "protocol": "HTTPS"}


def _gateway(*listeners: Json, name: str = "gw", values: tuple[str, ...] = ("203.0.113.10",), **spec: Any) -> Json:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": name, "namespace": "infra"},
        "spec": {"listeners": list(listeners), **spec},
        "status": {"addresses": [{"value": value} for value in values]},
    }


def _route(*paths: str, parent: Json | None = None, hostnames: tuple[str, ...] = (), **match: Any) -> Json:
    matches = [{"path": {"type": "PathPrefix", "value": path}, **match} for path in paths]
    parents = [{"name": "gw", "namespace": "infra", **(parent or {})}]
    return {
        "metadata": {"name": "r", "namespace": "ns"},
        "spec": {"parentRefs": parents, "hostnames": list(hostnames), "rules": [{"matches": matches}]},
    }


def _urls(route: Json, *things: Json) -> list[str]:
    return [address["url"] for address in addresses([route], SERVED, FileLookup(things))]


@pytest.mark.parametrize(
    ("listeners", "parent", "expected"),
    [
        ([HTTP], {}, ["http://203.0.113.10/ns/a"]),
        ([HTTPS], {}, ["https://203.0.113.10/ns/a"]),
        ([{**HTTP, "port": 8080}], {}, ["http://203.0.113.10:8080/ns/a"]),
        ([{**HTTPS, "port": 8443}], {}, ["https://203.0.113.10:8443/ns/a"]),
        ([{**HTTP, "port": 443}], {}, ["http://203.0.113.10:443/ns/a"]),
        ([HTTP, HTTPS], {}, ["http://203.0.113.10/ns/a", "https://203.0.113.10/ns/a"]),
        ([HTTP, HTTPS], {"sectionName": "tls"}, ["https://203.0.113.10/ns/a"]),
        ([HTTP, HTTPS], {"port": 80}, ["http://203.0.113.10/ns/a"]),
        ([HTTP], {"sectionName": "absent"}, []),
        ([{**HTTP, "protocol": "TCP"}], {}, []),
        ([{**HTTP, "hostname": "llm.example.com"}], {}, ["http://llm.example.com/ns/a"]),
        ([{**HTTP, "hostname": "*.example.com"}], {}, ["http://inference.example.com/ns/a"]),
    ],
)
def test_listeners(listeners: list[Json], parent: Json, expected: list[str]) -> None:
    assert _urls(_route("/ns/a", parent=parent), _gateway(*listeners)) == expected


@pytest.mark.parametrize(
    ("listening", "hostnames", "expected"),
    [
        ("", ("chat.example.com",), ["http://chat.example.com/x"]),
        ("", ("b.example.com", "a.example.com"), ["http://a.example.com/x", "http://b.example.com/x"]),
        ("*.example.com", ("chat.example.com",), ["http://chat.example.com/x"]),
        ("chat.example.com", ("*.example.com",), ["http://chat.example.com/x"]),
        ("*.example.com", ("*.example.com",), ["http://inference.example.com/x"]),
        ("*.example.com", ("*.eu.example.com",), ["http://inference.eu.example.com/x"]),
        ("other.example.com", ("chat.example.com",), []),
        ("*.example.com", ("example.com",), []),
        # The route alone names all hosts of a domain; no single host name is known.
        ("", ("*.foreign.example",), []),
        ("", ("*.foreign.example", "chat.example.com"), ["http://chat.example.com/x"]),
    ],
)
def test_host_names_of_route_and_listener_narrow_each_other(
    listening: str, hostnames: tuple[str, ...], expected: list[str]
) -> None:
    listener = {**HTTP, **({"hostname": listening} if listening else {})}
    assert _urls(_route("/x", hostnames=hostnames), _gateway(listener)) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("203.0.113.10", "203.0.113.11"), ["http://203.0.113.10/x", "http://203.0.113.11/x"]),
        (("2001:db8::1",), ["http://[2001:db8::1]/x"]),
        (("lb.example.com",), ["http://lb.example.com/x"]),
        ((), []),
    ],
)
def test_addresses_of_gateways(values: tuple[str, ...], expected: list[str]) -> None:
    assert _urls(_route("/x"), _gateway(HTTP, values=values)) == expected


def _said(truth: str, **reference: str) -> Json:
    reference = {"name": "gw", "namespace": "infra", **reference}
    return {"parentRef": reference, "conditions": [{"type": "Accepted", "status": truth}]}


@pytest.mark.parametrize(
    ("parents", "expected"),
    [
        ([], ["http://foreign.example/x"]),  # its controller has not reconciled it yet
        ([_said("True")], ["http://foreign.example/x"]),
        ([_said("False")], []),
        ([_said("False", name="other")], ["http://foreign.example/x"]),
        ([_said("False", sectionName="web")], ["http://foreign.example/x"]),
        ([_said("False"), _said("True")], ["http://foreign.example/x"]),  # one of two controllers accepts it
    ],
)
def test_a_host_name_that_the_gateway_refused_is_not_told(parents: list[Json], expected: list[str]) -> None:
    route = {**_route("/x", hostnames=("foreign.example",)), "status": {"parents": parents}}
    assert _urls(route, _gateway(HTTP)) == expected


def test_what_stands_for_the_asterisk_may_be_chosen() -> None:
    look = FileLookup([_gateway({**HTTP, "hostname": "*.example.com"})])
    [found] = addresses([_route("/x")], SERVED, look, wildcard="models")
    assert found["url"] == "http://models.example.com/x"


def test_a_host_name_alone_is_no_address() -> None:
    # The gateway is not programmed yet.
    assert _urls(_route("/x", hostnames=("chat.example.com",)), _gateway(HTTP, values=())) == []


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/ns/a/v1/chat/completions", "/ns/a"),
        ("/ns/a/v1/completions/", "/ns/a"),
        ("/ns/a", "/ns/a"),
        ("/ns/a/", "/ns/a"),
        ("/ns/v1full/v1/messages", "/ns/v1full"),
        ("/ns/v1", "/ns/v1"),
        ("/ns/v1/v1/responses", "/ns/v1"),
        ("/v1/models", "/"),
        ("/", "/"),
        ("", "/"),
    ],
)
def test_the_path_that_clients_are_told_ends_before_the_endpoint(path: str, told: str) -> None:
    assert _urls(_route(path), _gateway(HTTP)) == [f"http://203.0.113.10{told}"]


def test_a_path_is_told_once_and_patterns_are_not() -> None:
    route = _route("/ns/a/v1/completions", "/ns/a/v1/messages", "/ns/a")
    route["spec"]["rules"].append({"matches": [{"path": {"type": "RegularExpression", "value": "/.*"}}]})
    assert _urls(route, _gateway(HTTP)) == ["http://203.0.113.10/ns/a"]


def test_a_rule_without_a_match_takes_everything() -> None:
    route = _route()
    route["spec"]["rules"] = [{"backendRefs": []}]
    (found,) = addresses([route], SERVED, FileLookup([_gateway(HTTP)]))
    assert (found["url"], found["name"]) == ("http://203.0.113.10/", "gateway-external-model-routing")


def test_only_the_path_tells_plain_names_apart() -> None:
    by_header = _route("/v1/completions", headers=[{"name": "X-Gateway-Model-Name", "value": "publishers/ns/models/m"}])
    found = addresses([_route("/ns/a"), by_header], SERVED, FileLookup([_gateway(HTTP)]))
    models = {address["url"]: [model["name"] for model in address["models"]] for address in found}
    assert models == {
        "http://203.0.113.10/": ["publishers/ns/models/m", "publishers/ns/models/l"],
        "http://203.0.113.10/ns/a": ["publishers/ns/models/m", "m", "publishers/ns/models/l", "l"],
    }
    assert external_url(found) == "http://203.0.113.10/ns/a"
    origin = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw", "namespace": "infra"}
    assert found[0]["origin"] == origin


def test_a_gateway_that_is_not_there_and_parents_of_other_kinds_lead_nowhere() -> None:
    assert _urls(_route("/x")) == []
    assert _urls(_route("/x", parent={"kind": "Service"}), _gateway(HTTP)) == []
    assert _urls(_route("/x", parent={"group": "example.com"}), _gateway(HTTP)) == []


def test_the_service_behind_a_gateway_is_reached_from_the_cluster() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "gw-istio", "namespace": "infra"}}
    found = addresses([_route("/x")], SERVED, FileLookup([_gateway(HTTP, gatewayClassName="istio"), service]))
    assert [(address["name"], address["url"]) for address in found] == [
        ("gateway-external", "http://203.0.113.10/x"),
        ("gateway-internal", "http://gw-istio.infra.svc.cluster.local/x"),
    ]
    assert external_url(found) == "http://203.0.113.10/x"


@pytest.mark.parametrize(
    ("base", "kind"),
    [
        ("http://203.0.113.10", "gateway-external"),
        ("http://10.1.2.3:8080", "internal"),
        ("http://172.16.0.1", "internal"),
        ("http://172.32.0.1", "gateway-external"),
        ("http://192.168.1.1", "internal"),
        ("http://127.0.0.1", "internal"),
        ("http://[fd00::1]:8080", "internal"),
        ("http://[2001:db8::1]", "gateway-external"),
        ("http://node.local", "internal"),
        ("http://localhost:8080", "internal"),
        ("http://x.internal", "internal"),
        ("https://llm.example.com", "gateway-external"),
        ("http://gw.infra.svc.cluster.local", "gateway-internal"),
        ("http://gw.infra.svc", "gateway-internal"),
    ],
)
def test_from_where_a_host_is_reached(base: str, kind: str) -> None:
    assert kind_of(base) == kind


def test_only_what_is_reached_from_outside_is_the_url() -> None:
    found = addresses([_route("/x")], SERVED, FileLookup([_gateway(HTTP, values=("10.0.0.1",))]))
    assert [address["name"] for address in found] == ["internal"]
    assert external_url(found) == ""
    header_only = addresses([_route("/")], SERVED, FileLookup([_gateway(HTTP)]))
    assert external_url(header_only) == "http://203.0.113.10/"


def test_the_address_of_a_service_without_a_route_has_its_port() -> None:
    assert service_address("a-svc", "ns", port=8000, tls=False) == {"url": "http://a-svc.ns.svc.cluster.local:8000"}
    assert service_address("a-svc", "ns", port=8000, tls=True) == {"url": "https://a-svc.ns.svc.cluster.local:8000"}
