"""Browsers that use the gateway from pages of other origins."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from gateway.clients.cors import Cors
from tests.support.gateways import Engine, Front, says
from tests.support.raw_engine import connected, read_head

PAGE = "https://chat.example.org"
Fronts = Callable[..., Front]
ENGINE_OPEN = says("200 OK", b"{}", b"Access-Control-Allow-Origin: *", b"Access-Control-Allow-Credentials: true")


def preflight(front: Front, origin: str = PAGE, requested: str = "authorization, x-stainless-os") -> tuple[bytes, str]:
    """Send a preflight; return the status and the head in lower case."""
    with connected(front.port) as client:
        lines = ["OPTIONS /v1/chat/completions HTTP/1.1", "Host: x", f"Origin: {origin}"]
        lines += ["Access-Control-Request-Method: POST", f"Access-Control-Request-Headers: {requested}"]
        client.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        head, _ = read_head(client)
    return head.split(b" ")[1], head.decode().lower()


def test_a_preflight_of_an_allowed_origin_is_answered_without_a_key(make_front: Fronts) -> None:
    status, head = preflight(make_front(cors=Cors([PAGE])))
    assert status == b"204"
    for line in (
        f"access-control-allow-origin: {PAGE}",
        "access-control-allow-headers: authorization, x-stainless-os",
        "access-control-max-age: 86400",
    ):
        assert f"\r\n{line}\r\n" in head
    assert "credentials" not in head


def test_headers_that_are_no_names_are_not_repeated(make_front: Fronts) -> None:
    front = make_front(cors=Cors(["*"]))
    assert "allow-headers" not in preflight(front, requested="a b, <c>")[1]
    assert "allow-origin: *" in preflight(front)[1]


@pytest.mark.parametrize("name", ["Origin", "Access-Control-Request-Headers"])
def test_many_blanks_take_little_time(name: str) -> None:
    lines = [f"Origin: {PAGE}", "Access-Control-Request-Method: POST", f"{name}: x{' ' * 30_000}x"]
    began = time.process_time()
    Cors(["*"]).preflight("OPTIONS", "\r\n".join(lines).encode())
    assert time.process_time() - began < 0.5


def test_blanks_around_a_value_do_not_count() -> None:
    lines = f"Origin: \t{PAGE} \r\nAccess-Control-Request-Method: POST\r\naccess-control-request-headers:  a, b\t \r\n"
    told = Cors([PAGE]).preflight("OPTIONS", lines.encode())
    assert told is not None
    assert f"Allow-Origin: {PAGE}\r\n".encode() in told
    assert b"Allow-Headers: a, b\r\n" in told


def test_another_origin_gets_no_permission(make_front: Fronts, make_engine: Callable[..., Engine]) -> None:
    front = make_front(cors=Cors([PAGE]))
    front.serve(chat=[make_engine(ENGINE_OPEN)])
    status, head = preflight(front, "https://evil.example.org")
    assert (status, "access-control" in head) == (b"405", False)
    _, headers, _ = front.ask({"model": "chat"}, Origin="https://evil.example.org")
    assert not [name for name in headers if name.startswith("access-control")]
    assert headers["vary"] == "Origin"


def test_answers_and_errors_can_be_read_by_an_allowed_page(
    make_front: Fronts, make_engine: Callable[..., Engine]
) -> None:
    front = make_front(cors=Cors([PAGE]))
    front.serve(chat=[make_engine(ENGINE_OPEN)])
    for name, status in (("chat", 200), ("nothing", 404)):
        told = front.ask({"model": name}, Origin=PAGE)
        assert (told[0], told[1]["access-control-allow-origin"]) == (status, PAGE)
        assert "access-control-allow-credentials" not in told[1]


def test_without_the_setting_no_page_gets_permission_even_if_the_engine_gives_it(
    front: Front, make_engine: Callable[..., Engine]
) -> None:
    front.serve(chat=[make_engine(ENGINE_OPEN)])
    assert preflight(front)[0] == b"405"
    _, headers, _ = front.ask({"model": "chat"}, Origin=PAGE)
    assert not [name for name in headers if name.startswith("access-control") or name == "vary"]


@pytest.mark.parametrize(
    "origin",
    ["chat.example.org", "https://chat.example.org/", "https://Chat.example.org", "https://a@b.org", "null", ""],
)
def test_a_setting_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        Cors([origin])
