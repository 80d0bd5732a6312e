"""One exchange of a gateway with the store of the accounts, as one transaction of a database that takes SQL.

`ledger` makes jobs in the event loop's thread and runs them in another one; `stores` opens the databases. A job writes
what requests have cost, and reserves what others may cost.

Each gateway has rows of its own for its reservations, which only it writes, as absolute values. So a row that an
interrupted job left is correct after the next job. A gateway that does not write for `ALIVE_S` has ended, and its
reservations no longer count. A batch of costs has a number, and is applied once, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, NamedTuple, Protocol

from gateway.accounting.limits import Cost, Limit, Standing, Unit
from gateway.price import MOST_SUM

ALIVE_S = 60
"""A gateway that has written nothing for this time has ended."""
MOST_READ = 10_000
"""How many counters are read at a time. Clients without keys choose the teams of budgets."""
KEPT_S = 86400
"""How long ended windows and gateways are kept."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS herdsman_gateway_spent (
    scope TEXT NOT NULL, window_start BIGINT NOT NULL, window_end BIGINT NOT NULL, spent BIGINT NOT NULL,
    PRIMARY KEY (scope, window_start));
CREATE TABLE IF NOT EXISTS herdsman_gateway_reserved (
    gateway TEXT NOT NULL, scope TEXT NOT NULL, window_start BIGINT NOT NULL, amount BIGINT NOT NULL,
    PRIMARY KEY (scope, window_start, gateway));
CREATE TABLE IF NOT EXISTS herdsman_gateway_instances (
    gateway TEXT PRIMARY KEY, batch BIGINT NOT NULL, seen BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS herdsman_gateway_usage (
    hour BIGINT NOT NULL, key_id TEXT NOT NULL, key_name TEXT NOT NULL, team TEXT NOT NULL, model TEXT NOT NULL,
    requests BIGINT NOT NULL, failed BIGINT NOT NULL, incomplete BIGINT NOT NULL, estimated BIGINT NOT NULL,
    prompt_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL, completion_tokens BIGINT NOT NULL,
    nano_usd BIGINT NOT NULL, PRIMARY KEY (hour, key_id, team, model));
"""


class Counter(NamedTuple):
    """One limit in one window."""

    scope: str
    window: int


class UsageKey(NamedTuple):
    """What usage is summed for."""

    hour: int
    """When the hour began, in seconds since 1970."""
    key_id: str
    key_name: str
    team: str
    model: str


class Usage(NamedTuple):
    """The sum of some requests."""

    requests: int = 0
    failed: int = 0
    """Requests without an answer, or with an error."""
    incomplete: int = 0
    """Answers that broke off, or whose client left."""
    estimated: int = 0
    """Answers whose tokens are an estimate."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    nano_usd: int = 0

    def plus(self, other: Usage) -> Usage:
        """Return the sum of both."""
        return Usage._make(map(add, self, other))


@dataclass(frozen=True)
class Batch:
    """What requests have cost since the last batch."""

    number: int
    spent: Mapping[Counter, tuple[int, int]]
    """For each counter when its window ends, and the amount."""
    usage: Mapping[UsageKey, Usage]


@dataclass(frozen=True)
class Ask:
    """What a request wants to reserve."""

    limits: tuple[Limit, ...]
    cost: Cost


@dataclass(frozen=True)
class Outcome:
    """Whether a request may be sent."""

    standings: tuple[Standing, ...]
    """With the request, if it was granted."""
    refused_by: Standing | None
    now_s: float
    """The time of the store."""


@dataclass(frozen=True)
class Job:
    """What a gateway sends to the store."""

    gateway: str
    batch: Batch
    asks: Sequence[Ask]
    held: Mapping[Counter, int]
    """All that this gateway has reserved at present."""


@dataclass(frozen=True)
class Done:
    """What the store answers to a job."""

    outcomes: list[Outcome]
    """For each ask, in their order."""
    known: dict[Counter, int]
    """What is spent, and reserved by other gateways, for the counters of the job."""


class Transaction(Protocol):
    """An open transaction of a database."""

    def now_s(self) -> float:
        """Return the time of the database, in seconds since 1970."""
        ...

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement with `?` for each value; return its rows."""
        ...

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each row of values."""
        ...

    def lock(self, counters: Sequence[tuple[Counter, int]]) -> dict[Counter, int]:
        """Lock counters, given in a fixed order with the ends of their windows; return what is spent."""
        ...


@dataclass
class Ledgers:
    """The counters that a job reads and changes."""

    spent: dict[Counter, int] = field(default_factory=dict)
    reserved_elsewhere: dict[Counter, int] = field(default_factory=dict)
    held: dict[Counter, int] = field(default_factory=dict)

    def standing(self, limit: Limit, window: int) -> Standing:
        """Return how much of a limit is used."""
        counter = Counter(limit.scope, window)
        used = self.spent.get(counter, 0) + self.reserved_elsewhere.get(counter, 0) + self.held.get(counter, 0)
        return Standing(limit, window, used)

    def decide(self, ask: Ask, now_s: float) -> Outcome:
        """Reserve what a request wants if all its limits allow it."""
        before = tuple(self.standing(limit, limit.window(now_s)) for limit in ask.limits)
        for each in before:
            if each.used + ask.cost.of(each.limit.unit) > each.limit.maximum:
                return Outcome(before, each, now_s)
        for limit in ask.limits:
            counter, amount = Counter(limit.scope, limit.window(now_s)), ask.cost.of(limit.unit)
            # A request counts when it is sent. Tokens and money are charged when they are known.
            kept = self.spent if limit.unit is Unit.REQUESTS else self.held
            kept[counter] = kept.get(counter, 0) + amount
        return Outcome(tuple(self.standing(limit, limit.window(now_s)) for limit in ask.limits), None, now_s)


def run(transaction: Transaction, job: Job) -> Done:
    """Carry a job out in a transaction."""
    now_s = transaction.now_s()
    applied = _begins_batch(transaction, job, int(now_s))
    spent = job.batch.spent if applied else {}
    ends = {counter: end for counter, (end, _) in spent.items()}
    for ask in job.asks:
        for limit in ask.limits:
            window = limit.window(now_s)
            ends[Counter(limit.scope, window)] = window + limit.window_s
    order = sorted(ends.items())
    before = transaction.lock(order) if order else {}
    state = Ledgers(dict(before), _reserved_elsewhere(transaction, job, now_s), dict(job.held))
    for counter, (_, amount) in spent.items():
        state.spent[counter] = min(state.spent.get(counter, 0) + amount, MOST_SUM)
    outcomes = [state.decide(ask, now_s) for ask in job.asks]
    changed = [(value, *counter) for counter, value in state.spent.items() if value != before.get(counter, 0)]
    transaction.execute_many(
        "UPDATE herdsman_gateway_spent SET spent = ? WHERE scope = ? AND window_start = ?", changed
    )
    _write_reserved(transaction, job.gateway, state.held, ends.keys())
    if applied:
        _add_usage(transaction, job.batch.usage)
    elsewhere = state.reserved_elsewhere
    return Done(outcomes, {counter: value + elsewhere.get(counter, 0) for counter, value in state.spent.items()})


def clean(transaction: Transaction) -> None:
    """Delete windows and gateways that ended long ago."""
    before = int(transaction.now_s()) - KEPT_S
    transaction.execute("DELETE FROM herdsman_gateway_spent WHERE window_end < ?", before)
    transaction.execute("DELETE FROM herdsman_gateway_instances WHERE seen < ?", before)
    transaction.execute(
        "DELETE FROM herdsman_gateway_reserved WHERE gateway NOT IN (SELECT gateway FROM herdsman_gateway_instances)"
    )


def spent(transaction: Transaction, beginning: str) -> dict[Counter, int]:
    """Return what is charged in windows that have not ended, for scopes with this beginning: the largest ones."""
    rows = transaction.execute(
        "SELECT scope, window_start, spent FROM herdsman_gateway_spent "
        "WHERE substr(scope, 1, ?) = ? AND window_start <= ? AND window_end > ? ORDER BY spent DESC, scope LIMIT ?",
        len(beginning),
        beginning,
        now := int(transaction.now_s()),
        now,
        MOST_READ,
    )
    return {Counter(str(scope), int(window)): int(amount) for scope, window, amount in rows}


def leave(transaction: Transaction, gateway: str) -> None:
    """Release all that a gateway has reserved, because it ends."""
    transaction.execute("DELETE FROM herdsman_gateway_reserved WHERE gateway = ?", gateway)
    transaction.execute("DELETE FROM herdsman_gateway_instances WHERE gateway = ?", gateway)


def _begins_batch(transaction: Transaction, job: Job, now_s: int) -> bool:
    """Record the batch and that the gateway runs; return False for a batch that was applied before."""
    known = transaction.execute("SELECT batch FROM herdsman_gateway_instances WHERE gateway = ?", job.gateway)
    number = job.batch.number
    if not known:
        sql = "INSERT INTO herdsman_gateway_instances (batch, seen, gateway) VALUES (?, ?, ?)"
    else:
        sql = "UPDATE herdsman_gateway_instances SET batch = ?, seen = ? WHERE gateway = ?"
    transaction.execute(sql, number, now_s, job.gateway)
    return not known or int(known[0][0]) < number


def _reserved_elsewhere(transaction: Transaction, job: Job, now_s: float) -> dict[Counter, int]:
    scopes = sorted({limit.scope for ask in job.asks for limit in ask.limits})
    if not scopes:
        return {}
    marks = ", ".join("?" for _ in scopes)
    rows = transaction.execute(
        "SELECT r.scope, r.window_start, SUM(r.amount) FROM herdsman_gateway_reserved r "  # noqa: S608 - only marks
        "JOIN herdsman_gateway_instances i ON i.gateway = r.gateway "
        f"WHERE r.scope IN ({marks}) AND r.gateway <> ? AND i.seen > ? GROUP BY r.scope, r.window_start",
        *scopes,
        job.gateway,
        int(now_s) - ALIVE_S,
    )
    return {Counter(str(scope), int(window)): int(amount) for scope, window, amount in rows}


def _write_reserved(
    transaction: Transaction, gateway: str, held: Mapping[Counter, int], touched: Iterable[Counter]
) -> None:
    known = dict(held)
    for counter in touched:
        known.setdefault(counter, 0)
    rows = [(gateway, *counter, min(amount, MOST_SUM)) for counter, amount in sorted(known.items())]
    transaction.execute_many(
        "INSERT INTO herdsman_gateway_reserved (gateway, scope, window_start, amount) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (scope, window_start, gateway) DO UPDATE SET amount = excluded.amount",
        [row for row in rows if row[3]],
    )
    transaction.execute_many(
        "DELETE FROM herdsman_gateway_reserved WHERE gateway = ? AND scope = ? AND window_start = ?",
        [row[:3] for row in rows if not row[3]],
    )


def _add_usage(transaction: Transaction, usage: Mapping[UsageKey, Usage]) -> None:
    sums = ", ".join(f"{name} = herdsman_gateway_usage.{name} + excluded.{name}" for name in Usage._fields)
    names = ", ".join((*UsageKey._fields, *Usage._fields))
    marks = ", ".join("?" for _ in (*UsageKey._fields, *Usage._fields))
    transaction.execute_many(
        f"INSERT INTO herdsman_gateway_usage ({names}) VALUES ({marks}) "  # noqa: S608 - names of this module
        f"ON CONFLICT (hour, key_id, team, model) DO UPDATE SET key_name = excluded.key_name, {sums}",
        [(*key, *sum_) for key, sum_ in sorted(usage.items())],
    )
