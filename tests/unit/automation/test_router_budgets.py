"""The use of routers' budgets is read from the store in which gateways count, here SQLite."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from automation.status.router_budgets import RouterBudgets
from gateway.accounting import stores
from gateway.accounting.ledger_job import Ask, Batch, Counter, Job
from gateway.accounting.limits import Cost
from gateway.accounting.stores import SqliteStore
from gateway.routers.budgets import limits_of
from program.desired.router import Budget, BudgetUse, Router
from tests.support.loop import eventually

ROUTER = Router(
    "prod",
    "r",
    (),
    budgets=(
        Budget("all", "router", max_tokens=1000, max_usd=Decimal(2), window_s=10**9),
        Budget("code", "rule", rule="code", max_tokens=1000, window_s=10**9),
        Budget("teams", "team", max_tokens=1000, window_s=10**9),
    ),
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqliteStore:
    monkeypatch.delenv("HERDSMAN_GATEWAY_STORE", raising=False)
    monkeypatch.delenv("HERDSMAN_GATEWAY_STORE_FILE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return SqliteStore(str(tmp_path / "herdsman" / "gateway.db"))


class Watched:
    """The budgets as a loop reads them, and how often it was told of a change."""

    def __init__(self) -> None:
        self.changes = 0
        self.budgets = RouterBudgets(self._changed, read_every_s=0.05)

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.budgets.stop()


def charge(store: SqliteStore, number: int, team: str, *, tokens: int, usd: str, rule: str = "") -> None:
    """Charge a request of a team as a gateway does."""
    now = time.time()
    cost = Cost(tokens, int(Decimal(usd) * 10**9))
    limits = limits_of(ROUTER, rule, team, {})
    spent = {
        Counter(each.scope, each.window(now)): (each.window(now) + each.window_s, cost.of(each.unit)) for each in limits
    }
    store.exchange(Job("g", Batch(number, spent, {}), (Ask(limits, Cost()),), {}))


def test_what_gateways_charge_is_known_by_budget_and_team(store: SqliteStore, watched: Watched) -> None:
    assert watched.budgets.uses(replace(ROUTER, budgets=())) is None
    assert watched.budgets.uses(ROUTER) is None, "there is no store yet"
    charge(store, 1, "blue/green", tokens=40, usd="0.25", rule="code")
    charge(store, 2, "red", tokens=2, usd="0.01")
    expected = (
        BudgetUse("all", "", 42, Decimal("0.26")),
        BudgetUse("code", "", 40, Decimal(0)),
        BudgetUse("teams", "blue/green", 40, Decimal(0)),
        BudgetUse("teams", "red", 2, Decimal(0)),
    )
    eventually(lambda: watched.budgets.uses(ROUTER) == expected, what="the figures")
    other = watched.budgets.uses(replace(ROUTER, name="r2"))
    assert other == (BudgetUse("all", "", 0, Decimal(0)), BudgetUse("code", "", 0, Decimal(0)))
    told = watched.changes
    charge(store, 3, "red", tokens=1, usd="0")
    eventually(lambda: watched.changes > told, what="the change")


def test_the_last_figures_stay_while_the_store_is_away(
    store: SqliteStore, watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "STATEMENT_TIMEOUT_S", 0.1)
    charge(store, 1, "red", tokens=5, usd="0")
    eventually(lambda: watched.budgets.uses(ROUTER) is not None, what="the figures")
    known = watched.budgets.uses(ROUTER)
    other = sqlite3.connect(tmp_path / "herdsman" / "gateway.db", isolation_level=None)
    try:
        # The reader has mapped a file of the database, so a change of the files could end this process.
        other.execute("BEGIN EXCLUSIVE")
        eventually(lambda: watched.budgets._failed, what="a failed read")
        assert watched.budgets.uses(ROUTER) == known
        other.execute("ROLLBACK")
    finally:
        other.close()
    eventually(lambda: not watched.budgets._failed, what="a read")


def test_no_thread_runs_without_a_router_with_budgets(watched: Watched) -> None:
    watched.budgets.uses(replace(ROUTER, budgets=()))
    assert not [each for each in threading.enumerate() if each.name == "router-budgets"]
