"""A router with an audit writes one line of JSON for each request, also for a refused one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.routers.runtime import RouterState
from program.desired.router import Audit, Match, Router, RouterBackend, Rule
from tests.support.gateways import CHAT, OK, Engine, Front
from tests.support.loop import eventually

AT_ROUTER = f"/routers/prod/r{CHAT}"
BODY: dict[str, Any] = {"model": "x", "messages": [{"role": "user", "content": "My name is Ümit"}]}


def route(front: Front, engine: Engine, audit: Audit, *, models: str = "x") -> None:
    front.serve(a=[engine])
    rule = Rule("all", ("a",), Match(models=(models,)))
    state = RouterState(Router("prod", "r", (RouterBackend("a", "a"),), (rule,), audit=audit))
    front.server.set_routers([state])
    eventually(lambda: front.server.backends.routers.states() == (state,), what="the router")


def test_each_request_is_a_line_of_the_file(front: Front, make_engine: Callable[..., Engine], tmp_path: Path) -> None:
    front.server.backends.routers.audit.directory = tmp_path
    route(front, make_engine(OK), Audit("file", "log/audit.jsonl"))
    file = tmp_path / "prod/log/audit.jsonl"
    assert front.ask(BODY, AT_ROUTER, x_request_id="one", x_llmkube_team="blue")[0] == 200
    assert front.ask({**BODY, "model": "y"}, AT_ROUTER)[0] == 404
    assert front.ask({**BODY, "model": "y"}, AT_ROUTER, x_llmkube_classification="pii")[0] == 403
    eventually(lambda: file.exists() and len(file.read_text().splitlines()) == 3, what="three lines")
    answered, unrouted, refused = (json.loads(line) for line in file.read_text().splitlines())
    assert answered["latencyMs"] >= 0
    assert {
        "event": "router.dispatch",
        "router": "prod/r",
        "requestId": "one",
        "team": "blue",
    }.items() <= answered.items()
    assert [answered[key] for key in ("rule", "backend", "backendTier", "status", "outcome")] == [
        *("all", "a", "local", 200, "ok")
    ]
    assert (unrouted["outcome"], unrouted["status"]) == ("no_route", 404)
    assert (refused["outcome"], refused["classification"]) == ("fail_closed", ["pii"])
    assert "Ümit" not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_body_is_written_only_on_request(
    front: Front, make_engine: Callable[..., Engine], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    route(front, make_engine(OK), Audit("stdout", with_body=True))
    assert front.ask(BODY, AT_ROUTER)[0] == 200
    written = b""

    def look() -> bool:
        nonlocal written
        written += capfdbinary.readouterr().out
        return written.endswith(b"\n")

    eventually(look, what="the line")
    assert json.loads(json.loads(written)["requestBody"]) == BODY


def test_a_router_whose_audit_cannot_be_written_gets_no_requests(
    front: Front, make_engine: Callable[..., Engine]
) -> None:
    engine = make_engine(OK)
    route(front, engine, Audit("file", "audit.jsonl"))
    status, _, answer = front.ask(BODY, AT_ROUTER)
    assert (status, answer["error"]["code"]) == (503, "audit_not_available")
    assert not engine.seen


def test_half_of_a_character_is_written_as_json_writes_it(
    front: Front, make_engine: Callable[..., Engine], tmp_path: Path
) -> None:
    """Clients that cut texts send lone surrogates. Neither the audit nor the connection fails for them."""
    front.server.backends.routers.audit.directory = tmp_path
    route(front, make_engine(OK), Audit("file", "audit.jsonl"), models="*")
    assert front.ask({**BODY, "model": "\ud800"}, AT_ROUTER)[0] == 200
    file = tmp_path / "prod/audit.jsonl"
    eventually(lambda: file.exists() and file.read_text().endswith("\n"), what="the line")
    assert json.loads(file.read_text())["model"] == "\ud800"
