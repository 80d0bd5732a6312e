"""The gateway's side of the accounts, with a store that can be slow or away."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.accounting import ledger as ledgers
from gateway.accounting.ledger import Ledger
from gateway.accounting.ledger_job import Outcome, Transaction, Usage, UsageKey
from gateway.accounting.limits import Cost, Limit, Unit
from gateway.accounting.stores import SqliteStore, StoreAway
from gateway.price import Price
from tests.support import event_loop

REQUESTS = Limit("key/a/requests", Unit.REQUESTS, 5, 10**9)
TOKENS = Limit("key/a/tokens", Unit.TOKENS, 100, 10**9, is_budget=True)
KEY = UsageKey(7200, "a", "ci", "ml", "prod/chat")


class FaultyStore(SqliteStore):
    """SQLite that refuses, waits, or loses its answer after the commit."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.refuses = False
        self.loses_answers = False
        self.may_go = threading.Event()
        self.may_go.set()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self.may_go.wait(10)
        if self.refuses:
            raise StoreAway("the connection was refused")
        with super().transaction() as transaction:
            yield transaction
        if self.loses_answers:
            raise StoreAway("the connection was lost")

    def sums(self) -> dict[str, int]:
        with SqliteStore(self._path).transaction() as transaction:
            rows = transaction.execute("SELECT scope, SUM(spent) FROM herdsman_gateway_spent GROUP BY scope")
            return {str(scope): int(spent) for scope, spent in rows}

    def reserved(self) -> int:
        with SqliteStore(self._path).transaction() as transaction:
            ((amount,),) = transaction.execute("SELECT COALESCE(SUM(amount), 0) FROM herdsman_gateway_reserved")
            return int(amount)

    def requests(self) -> int:
        with SqliteStore(self._path).transaction() as transaction:
            ((number,),) = transaction.execute("SELECT COALESCE(SUM(requests), 0) FROM herdsman_gateway_usage")
            return int(number)


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    return FaultyStore(tmp_path / "gateway.db")


def with_ledger(store: FaultyStore, use: Callable[[Ledger], Coroutine[Any, Any, None]]) -> Ledger:
    """Run `use` with a ledger, and end the ledger as a gateway does."""
    made: list[Ledger] = []

    async def main() -> None:
        made.append(Ledger(asyncio.get_running_loop(), store))
        made[0].start()
        await use(made[0])
        made[0].close()

    event_loop.run(main())
    made[0].finish()
    return made[0]


async def reserved(ledger: Ledger, tokens: int, *limits: Limit) -> tuple[ledgers.Reservation, bool]:
    answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    reservation = ledger.reserve(limits or (TOKENS,), Cost(tokens), answered.set_result)
    outcome = await asyncio.wait_for(answered, 5)
    return reservation, outcome.refused_by is None


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come")


def test_a_request_is_decided_by_the_store_even_if_old_rows_cannot_be_removed(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[bool] = []

    def fail() -> None:
        failed.append(True)
        raise StoreAway("the connection was lost")

    monkeypatch.setattr(store, "clean", fail)

    async def use(ledger: Ledger) -> None:
        reservation, granted = await reserved(ledger, 80)
        assert granted
        await until(lambda: bool(failed))
        assert not ledger.away
        assert store.reserved() == 80
        assert not (await reserved(ledger, 30))[1]
        ledger.settle(reservation, Cost(15))

    with_ledger(store, use)
    assert store.sums() == {TOKENS.scope: 15}


def test_what_is_reserved_is_released_when_the_true_cost_is_known(store: FaultyStore) -> None:
    async def use(ledger: Ledger) -> None:
        first, granted = await reserved(ledger, 80)
        assert granted
        assert not (await reserved(ledger, 30))[1]
        ledger.settle(first, Cost(15))
        second, granted = await reserved(ledger, 85)
        assert granted
        ledger.settle(second, Cost(0))
        ledger.settle(second, Cost(50))

    with_ledger(store, use)
    assert store.sums() == {TOKENS.scope: 15}
    assert store.reserved() == 0


def test_requests_that_come_together_are_decided_together_and_exactly(store: FaultyStore) -> None:
    async def use(ledger: Ledger) -> None:
        found = await asyncio.gather(*(reserved(ledger, 1, REQUESTS, TOKENS) for _ in range(50)))
        assert sum(granted for _, granted in found) == 5

    with_ledger(store, use)
    assert store.sums()[REQUESTS.scope] == 5


def test_a_fault_in_one_request_keeps_no_other_from_its_decision(store: FaultyStore) -> None:
    def faulty(_: Outcome) -> None:
        raise TypeError("a fault")

    async def use(ledger: Ledger) -> None:
        for is_away in (False, True):
            store.refuses = is_away
            store.may_go.clear()
            ledger.reserve((TOKENS,), Cost(1), lambda _: None)
            ledger.reserve((TOKENS,), Cost(1), faulty)
            other = asyncio.create_task(reserved(ledger, 1))
            await asyncio.sleep(0)
            store.may_go.set()
            assert (await other)[1]

    with_ledger(store, use)


def test_requests_are_served_by_own_figures_while_the_store_is_away(store: FaultyStore) -> None:
    async def use(ledger: Ledger) -> None:
        first, _ = await reserved(ledger, 40)
        ledger.settle(first, Cost(40))
        await reserved(ledger, 1)
        store.refuses = True
        second, granted = await reserved(ledger, 50)
        assert granted and ledger.away
        assert not (await reserved(ledger, 20))[1], "the last figures of the store count"
        ledger.settle(second, Cost(50))
        ledger.add_usage(KEY, Usage(requests=1))
        store.refuses = False
        await until(lambda: not ledger.away)

    with_ledger(store, use)
    assert store.sums() == {TOKENS.scope: 90}
    assert store.requests() == 1


def test_a_request_does_not_wait_for_a_slow_store(store: FaultyStore) -> None:
    async def use(ledger: Ledger) -> None:
        await reserved(ledger, 1, REQUESTS)
        store.may_go.clear()
        assert (await reserved(ledger, 1, REQUESTS))[1]
        assert ledger.away
        store.may_go.set()
        await until(lambda: not ledger.away)
        # Both the store and this gateway have counted the request; the store is corrected.
        await until(lambda: store.sums() == {REQUESTS.scope: 2})

    with_ledger(store, use)
    assert store.sums() == {REQUESTS.scope: 2}


def test_an_answer_that_is_lost_after_the_commit_charges_nothing_twice(store: FaultyStore) -> None:
    async def use(ledger: Ledger) -> None:
        reservation, _ = await reserved(ledger, 60)
        ledger.settle(reservation, Cost(30))
        ledger.add_usage(KEY, Usage(requests=1))
        store.loses_answers = True
        await until(lambda: ledger.away)
        await until(lambda: store.requests() == 1)
        store.loses_answers = False
        await until(lambda: not ledger.away)

    with_ledger(store, use)
    assert (store.sums(), store.requests(), store.reserved()) == ({TOKENS.scope: 30}, 1, 0)


def test_a_reservation_that_the_store_holds_unknown_to_the_gateway_is_corrected(store: FaultyStore) -> None:
    async def use(ledger: Ledger) -> None:
        store.loses_answers = True
        reservation, granted = await reserved(ledger, 60)
        assert granted
        ledger.settle(reservation, Cost(0))
        store.loses_answers = False
        await until(lambda: not ledger.away)
        await until(lambda: store.reserved() == 0)

    with_ledger(store, use)


def test_a_client_that_leaves_while_it_waits_holds_nothing(store: FaultyStore) -> None:
    async def use(ledger: Ledger) -> None:
        answered: list[Outcome] = []
        reservation = ledger.reserve((TOKENS,), Cost(60), answered.append)
        ledger.settle(reservation, Cost())
        assert (await reserved(ledger, 100))[1] or (await reserved(ledger, 100))[1]
        assert answered == []

    with_ledger(store, use)
    assert store.sums() == {TOKENS.scope: 0}


def test_sums_beyond_the_bound_are_dropped_and_counted(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "MOST_BUFFERED", 3)

    async def use(ledger: Ledger) -> None:
        for number in range(5):
            ledger.add_usage(KEY._replace(key_id=str(number)), Usage(requests=1))
        ledger.add_usage(KEY._replace(key_id="0"), Usage(requests=1))
        assert ledger.lost == 2

    with_ledger(store, use)
    assert store.requests() == 4


def test_values_that_the_store_refuses_are_lost_and_later_ones_are_not(store: FaultyStore) -> None:
    async def use(ledger: Ledger) -> None:
        ledger.add_usage(KEY, Usage(requests=5, prompt_tokens=1 << 70))
        await until(lambda: ledger.lost == 1)
        ledger.add_usage(KEY, Usage(requests=1))
        await until(lambda: not ledger.away and store.requests() == 1)
        ledger.add_usage(KEY, Usage(prompt_tokens=1 << 70))

    assert with_ledger(store, use).lost == 2
    assert store.requests() == 1


def test_a_cost_beyond_all_bounds_is_the_largest_that_the_store_holds(store: FaultyStore) -> None:
    assert Price(10**12, 10**12).of(1 << 40, 1 << 40) == 1 << 62
    usd = Limit("key/a/usd", Unit.NANO_USD, 10**18, 10**9, is_budget=True)

    async def use(ledger: Ledger) -> None:
        found = [(await reserved(ledger, 0, usd))[0] for _ in range(3)]
        for each in found:
            ledger.settle(each, Cost(0, 1 << 62))

    assert with_ledger(store, use).lost == 0
    assert store.sums() == {usd.scope: 1 << 62}


def test_what_is_left_is_written_at_the_end(store: FaultyStore) -> None:
    async def use(ledger: Ledger) -> None:
        reservation, _ = await reserved(ledger, 60)
        ledger.settle(reservation, Cost(12))
        ledger.add_usage(KEY, Usage(requests=3))

    with_ledger(store, use)
    assert (store.sums(), store.requests(), store.reserved()) == ({TOKENS.scope: 12}, 3, 0)
