"""Budgets of routers, rules and teams are reserved before a request is sent, and settled by what it did cost."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gateway.accounting.limits import Unit
from gateway.accounting.stores import SqliteStore
from gateway.routers.budgets import limits_of
from gateway.routers.runtime import RouterState
from gateway.server import GatewayServer
from program.desired.router import Budget, Match, Router, RouterBackend, Rule
from tests.support.gateways import CHAT, Engine, Front, says
from tests.support.loop import eventually

AT_ROUTER = f"/routers/prod/r{CHAT}"
USED = says("200 OK", json.dumps({"usage": {"prompt_tokens": 10, "completion_tokens": 30}}).encode())
PRICED = RouterBackend("a", "a", prompt_usd=Decimal(1), completion_usd=Decimal(2))


def router(*budgets: Budget) -> Router:
    rule = Rule("code", ("a",), Match(models=("code",)))
    return Router("prod", "r", (PRICED,), (rule,), default="a", budgets=budgets)


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    """A gateway with a store."""
    server = GatewayServer(store=SqliteStore(str(tmp_path / "usage.sqlite")))
    yield Front(server)
    server.stop()


def route(front: Front, engine: Engine, *budgets: Budget) -> None:
    front.serve(a=[engine])
    state = RouterState(router(*budgets))
    front.server.set_routers([state])
    eventually(lambda: front.server.backends.routers.states() == (state,), what="the router")


def asked(front: Front, model: str = "x", **headers: str) -> tuple[int, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30}
    status, _, answer = front.ask(body, AT_ROUTER, **headers)
    return status, answer.get("error", {}).get("message", "")


def test_the_limits_of_a_request_are_those_of_its_router_rule_and_team() -> None:
    budgets = (
        Budget("all", "router", window_s=60, max_tokens=100, max_usd=Decimal("0.5")),
        Budget("code", "rule", "code", max_tokens=10),
        Budget("team", "team", max_tokens=20),
    )
    found = limits_of(router(*budgets), "", "", {"x-llmkube-team": "blue"})
    assert [(each.scope, each.unit, each.maximum) for each in found] == [
        ("router/prod/r/all/tokens", Unit.TOKENS, 100),
        ("router/prod/r/all/usd", Unit.NANO_USD, 500_000_000),
        ("router/prod/r/team/blue/tokens", Unit.TOKENS, 20),
    ]
    [*_, of_rule, of_team] = limits_of(router(*budgets), "code", "red", {"x-llmkube-team": "blue"})
    assert of_rule.scope == "router/prod/r/code/tokens"
    assert of_team.scope == "router/prod/r/team/red/tokens", "the team of a key wins over a header"


def test_a_budget_that_is_used_up_refuses_the_next_request(front: Front, make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(USED)
    route(front, engine, Budget("all", "router", max_tokens=75, window_s=10**9))
    assert asked(front)[0] == 200
    eventually(lambda: asked(front)[0] == 429, what="the end of the budget")
    assert "the budget of router `prod/r`, 75 tokens" in asked(front)[1]
    assert len(engine.seen) <= 2


def test_a_budget_in_dollars_counts_by_the_price_of_the_backend(
    front: Front, make_engine: Callable[..., Engine]
) -> None:
    # A request costs 10 * 1 + 30 * 2 dollars for a million.
    route(front, make_engine(USED), Budget("usd", "router", max_usd=Decimal("0.000100"), window_s=10**9))
    assert asked(front)[0] == 200
    eventually(lambda: asked(front)[0] == 429, what="the end of the budget")
    assert "0.0001 USD" in asked(front)[1]


def test_a_rules_budget_counts_only_its_requests_and_a_teams_only_the_team(
    front: Front, make_engine: Callable[..., Engine]
) -> None:
    rule, team = Budget("code", "rule", "code", max_tokens=1, window_s=10**9), Budget("t", "team", max_tokens=60)
    route(front, make_engine(USED), rule, team)
    assert asked(front, "code")[0] == 429
    assert asked(front, "x", x_llmkube_team="blue")[0] == 200
    eventually(lambda: asked(front, "x", x_llmkube_team="blue")[0] == 429, what="the end of the team's budget")
    assert asked(front, "x", x_llmkube_team="red")[0] == 200


def test_a_gateway_without_a_store_refuses_requests_with_budgets(
    make_front: Callable[..., Front], make_engine: Callable[..., Engine]
) -> None:
    front, engine = make_front(), make_engine(USED)
    route(front, engine, Budget("all", "router", max_tokens=75))
    assert asked(front)[0] == 503
    assert not engine.seen


def hangs(connection: socket.socket, _head: bytes, _body: bytes) -> None:
    connection.settimeout(10)
    connection.recv(1)


def test_a_client_that_leaves_before_the_answer_pays_for_its_prompt(
    front: Front, make_engine: Callable[..., Engine]
) -> None:
    engine = make_engine(hangs)
    route(front, engine, Budget("all", "router", max_tokens=1100, window_s=10**9))
    client = http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)
    text = json.dumps({"model": "x", "messages": [{"role": "user", "content": "x" * 4000}], "max_tokens": 30})
    client.request("POST", AT_ROUTER, text)
    eventually(lambda: engine.seen, what="the request")
    client.close()
    engine.answer = USED
    eventually(lambda: asked(front)[0] == 200, what="the release of what was reserved")
    [of_all] = limits_of(router(Budget("all", "router", max_tokens=1100, window_s=10**9)), "", "", {})
    eventually(lambda: spent(front, of_all.scope) >= 1000, what="the charge")


def spent(front: Front, scope: str) -> int:
    ledger = front.server.book.ledger
    assert ledger is not None
    return sum(amount for counter, amount in ledger._known.items() if counter.scope == scope)


def test_a_backend_that_is_given_up_is_paid_and_one_that_cannot_be_reached_is_not(
    front: Front, make_engine: Callable[..., Engine]
) -> None:
    slow, gone, good = make_engine(hangs), make_engine(), make_engine(USED)
    gone.close()
    front.serve(slow=[slow], gone=[gone], good=[good])
    limits_s = {"gone": None, "slow": 0.3, "good": None}
    backends = tuple(
        RouterBackend(name, name, prompt_usd=Decimal(1), timeout_s=limit_s) for name, limit_s in limits_s.items()
    )
    budget = Budget("usd", "router", max_usd=Decimal(1), window_s=10**9)
    rule = Rule("all", tuple(limits_s))
    state = RouterState(Router("prod", "r", backends, (rule,), budgets=(budget,)))
    front.server.set_routers([state])
    eventually(lambda: front.server.backends.routers.states() == (state,), what="the router")
    assert asked(front)[0] == 200
    # The prompt `Hi` is one token at the slow backend, and ten as reported by the good one.
    eventually(lambda: spent(front, "router/prod/r/usd/usd") == 11_000, what="the charge")
