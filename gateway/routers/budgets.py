"""The budgets of a router as limits of a request, which the ledger reserves and settles with those of the key. Pure.

All gateways of one store count a budget together. A rule's budget counts the requests of the rule. A team's budget
counts each team by itself: the team of the client's key, else the one in the budget's header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal

from gateway.accounting.ledger_job import Counter
from gateway.accounting.limits import Limit, Unit
from gateway.errors import GatewayError
from gateway.price import NANO_USD_PER_USD
from program.desired.router import Budget, BudgetUse, Router

SCOPES = "router/"
"""The beginning of the counters of all routers."""

NO_STORE = GatewayError(
    503,
    "budgets_not_available",
    "the router has budgets, and this gateway has no store that counts them",
    retry_after_s=60.0,
)
_LONGEST_TEAM = 128


def limits_of(router: Router, rule: str, team: str, headers: Mapping[str, str]) -> tuple[Limit, ...]:
    """Return the limits of a request. `rule` is the rule that chose its backends, `team` the team of its key."""
    return tuple(
        limit
        for budget in router.budgets
        if budget.scope != "rule" or budget.rule == rule
        for limit in _limits(router, budget, team or headers.get(budget.header, "")[:_LONGEST_TEAM])
    )


def uses_of(router: Router, spent: Mapping[Counter, int], now_s: float) -> tuple[BudgetUse, ...]:
    """Return how much of a router's budgets is used. `spent` is what a store returns for counters of routers.

    Budgets of the router and its rules are always in the result, teams if they used something in the present window.
    """
    found: dict[tuple[str, str], dict[Unit, int]] = {}
    for budget in router.budgets:
        if budget.scope != "team":
            found[budget.name, ""] = {}
        beginning = f"{_counter(router, budget)}/"
        window = Limit("", Unit.TOKENS, 0, budget.window_s).window(now_s)
        for counter, amount in spent.items():
            if counter.window == window and counter.scope.startswith(beginning):
                # A team may have slashes in its name.
                team, _, unit = counter.scope.removeprefix(beginning).rpartition("/")
                if unit in _UNITS and bool(team) == (budget.scope == "team"):
                    found.setdefault((budget.name, team), {})[_UNITS[unit]] = amount
    return tuple(
        BudgetUse(name, team, amounts.get(Unit.TOKENS, 0), Decimal(amounts.get(Unit.NANO_USD, 0)) / NANO_USD_PER_USD)
        for (name, team), amounts in found.items()
    )


_UNITS = {"tokens": Unit.TOKENS, "usd": Unit.NANO_USD}
"""The ends of the counters."""


def _counter(router: Router, budget: Budget) -> str:
    return f"{SCOPES}{router.namespace}/{router.name}/{budget.name}"


def _limits(router: Router, budget: Budget, team: str) -> Iterator[Limit]:
    counter = _counter(router, budget)
    owner = f"router `{router.namespace}/{router.name}`"
    if budget.scope == "rule":
        owner = f"rule `{budget.rule}` of {owner}"
    elif budget.scope == "team":
        counter += f"/{team}"
        owner = f"team `{team}` at {owner}"
    if budget.max_tokens is not None:
        yield Limit(f"{counter}/tokens", Unit.TOKENS, budget.max_tokens, budget.window_s, is_budget=True, owner=owner)
    if budget.max_usd is not None:
        most = int(budget.max_usd * NANO_USD_PER_USD)
        yield Limit(f"{counter}/usd", Unit.NANO_USD, most, budget.window_s, is_budget=True, owner=owner)
