"""By which names a gateway without keys may be addressed: those that no page in a browser can have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.access.host_names import misdirected
from gateway.clients.cors import Cors
from tests.support.gateways import Front


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:8080", "127.0.0.1", "[::1]:8080", "localhost:8080", "LOCALHOST", "localhost.:80", "192.168.1.4:1"),
        *("chat.localhost:8080", "host.docker.internal:8080", "host.containers.internal", ""),
    ],
)
def test_a_name_of_this_machine_is_accepted(host: str) -> None:
    assert misdirected(host) is None


@pytest.mark.parametrize(
    "host",
    [
        *("attacker.example:8080", "localhost.attacker.example", "127.0.0.1.nip.io:8080", "notlocalhost", "internal"),
        *("[attacker.example]:80", "127.0.0.1@attacker.example"),
    ],
)
def test_a_name_of_public_dns_is_refused_with_421(host: str) -> None:
    error = misdirected(host)
    assert error is not None
    assert (error.status, error.code) == (421, "misdirected_request")
    assert "localhost" in error.message


def test_a_listener_on_loopback_without_keys_refuses_foreign_names(make_front: Callable[..., Front]) -> None:
    front = make_front(checks_hosts=True)
    front.serve()
    assert front.ask({"model": "chat"}, host="attacker.example")[0] == 421
    assert front.ask({"model": "chat"}, host=f"localhost:{front.port}")[0] == 404  # it looks for the model


def test_a_gateway_that_is_reached_by_other_names_does_not_check_them(front: Front) -> None:
    front.serve()
    assert front.ask({"model": "chat"}, host="models.example")[0] == 404


@pytest.mark.parametrize(
    ("origin", "status"),
    [("https://attacker.example", 403), ("null", 403), ("http://localhost:3000", 404), ("http://127.0.0.1:8080", 404)],
)
def test_pages_of_other_sites_load_no_model(make_front: Callable[..., Front], origin: str, status: int) -> None:
    front = make_front(checks_hosts=True)
    front.serve()
    assert front.ask({"model": "chat"}, origin=origin)[0] == status


def test_pages_of_allowed_origins_are_served(make_front: Callable[..., Front]) -> None:
    front = make_front(checks_hosts=True, cors=Cors(["https://chat.example"]))
    front.serve()
    assert front.ask({"model": "chat"}, origin="https://chat.example")[0] == 404
    assert front.ask({"model": "chat"}, origin="https://attacker.example")[0] == 403
