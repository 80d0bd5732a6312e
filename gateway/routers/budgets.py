"""The budgets of a router as limits of a request, which the ledger reserves and settles with those of the key. Pure.

All gateways of one store count a budget together. A rule's budget counts the requests of the rule. A team's budget
counts each team by itself: the team of the client's key, else the one in the budget's header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.accounting.limits import Limit, Unit
from gateway.errors import GatewayError
from gateway.price import NANO_USD_PER_USD
from program.desired.router import Budget, Router

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


def _limits(router: Router, budget: Budget, team: str) -> Iterator[Limit]:
    counter = f"router/{router.namespace}/{router.name}/{budget.name}"
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
