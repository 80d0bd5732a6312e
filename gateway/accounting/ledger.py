"""The gateway's side of the accounts: reserves what requests may cost, charges what they did, sums their usage.

`book` calls it, in the event loop's thread. A thread of its own exchanges jobs with the store, one at a time: all
requests that came during one job are decided by the next one. A request waits for the store for `WAIT_S` at most. While
the store is away, this gateway decides by the last figures that it knows and by its own, and keeps what it must write,
up to a bound.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from gateway.accounting.ledger_job import (
    Ask,
    Batch,
    Counter,
    Done,
    Job,
    Ledgers,
    Outcome,
    Usage,
    UsageKey,
)
from gateway.accounting.limits import Cost, Limit, Unit
from gateway.accounting.stores import Store, StoreAway, ValuesRefused

WAIT_S = 0.5
"""How long a request may wait for the store."""
FLUSH_S = 1.0
"""How often costs are written."""
CLEAN_S = 600.0
HEARTBEAT_S = 10.0
"""How often the gateway writes that it runs."""
MOST_BUFFERED = 50_000
"""How many sums are kept while the store is away."""

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Reservation:
    """What a request has reserved, or waits to reserve."""

    ask: Ask
    answered: Callable[[Outcome], None]
    windows: tuple[tuple[Limit, int], ...] = ()
    """The limits and windows that hold its cost."""
    decided: bool = False
    abandoned: bool = False
    """The request ended before the decision."""
    timer: asyncio.TimerHandle | None = None


class Ledger:
    """The accounts of one gateway. Call `start`, `close` and `finish`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: Store, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._loop = loop
        self._store = store
        self._clock = clock
        self.name = uuid.uuid4().hex
        self.away = False
        """The last exchange with the store failed or is late."""
        self.lost = 0
        """Sums that were dropped because the store was away for too long, or refused their values."""
        self._known: dict[Counter, int] = {}
        """What the store reported last, without the reservations of this gateway; used while the store is away."""
        self._held: dict[Counter, int] = {}
        self._spent: dict[Counter, tuple[int, int]] = {}
        self._usage: dict[UsageKey, Usage] = {}
        self._batch = Batch(0, {}, {})
        """The batch that is being written, until the store has it."""
        self._waiting: list[Reservation] = []
        self._asked: list[Reservation] = []
        """The reservations of the job that runs."""
        self._running = False
        self._beat_at = self._cleaned_at = float("-inf")
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to write. Runs in the event loop's thread."""
        self._timer = self._loop.call_later(FLUSH_S, self._flush)

    def close(self) -> None:
        """Begin no more exchanges. Runs in the event loop's thread, after the last request."""
        if self._timer is not None:
            self._timer.cancel()
        self._executor.shutdown(wait=False)

    def finish(self) -> None:
        """Write what is left, and close the store. Runs after the event loop has ended."""
        self._executor.shutdown(wait=True)
        try:
            # The store may have the last batch already; it applies a batch once.
            while self._has_batch() or self._spent or self._usage:
                self._next_batch()
                try:
                    self._store.exchange(Job(self.name, self._batch, (), {}))
                except ValuesRefused as error:
                    self._drop_batch(str(error))
                self._batch = Batch(self._batch.number, {}, {})
            self._store.leave(self.name)
        except StoreAway as error:
            log.warning("Could not write the last usage", store=self._store.name, why=str(error))
        self._store.close()

    # --- requests -------------------------------------------------------------------------------------------------

    def reserve(self, limits: tuple[Limit, ...], cost: Cost, answered: Callable[[Outcome], None]) -> Reservation:
        """Reserve what a request may cost. `answered` is called once, at once or within `WAIT_S`."""
        reservation = Reservation(Ask(limits, cost), answered)
        if self.away:
            self._decide_alone(reservation)
            return reservation
        reservation.timer = self._loop.call_later(WAIT_S, self._late, reservation)
        self._waiting.append(reservation)
        self._run()
        return reservation

    def settle(self, reservation: Reservation, cost: Cost) -> None:
        """Charge what a request did cost, and release what it had reserved."""
        if not reservation.decided:
            reservation.abandoned = True
            return
        for limit, window in reservation.windows:
            if limit.unit is not Unit.REQUESTS:
                counter = Counter(limit.scope, window)
                self._hold(counter, -reservation.ask.cost.of(limit.unit))
                self._spend(counter, window + limit.window_s, cost.of(limit.unit))
        reservation.windows = ()

    def add_usage(self, key: UsageKey, usage: Usage) -> None:
        """Add the usage of an ended request."""
        if key not in self._usage and self._is_full():
            self.lost += 1
            return
        self._usage[key] = self._usage.get(key, Usage()).plus(usage)

    def _late(self, reservation: Reservation) -> None:
        if reservation.decided:
            return
        if not self.away:
            self.away = True
            log.warning("The store of the accounts does not answer in time", store=self._store.name)
        waiting, self._waiting = self._waiting, []
        for each in (*waiting, *self._asked):
            self._decide_alone(each)

    def _decide_alone(self, reservation: Reservation) -> None:
        """Decide by the last figures of the store and by those of this gateway."""
        if reservation.decided:
            return
        now_s = self._clock()
        counters = [Counter(limit.scope, limit.window(now_s)) for limit in reservation.ask.limits]
        spent = {counter: self._known.get(counter, 0) for counter in counters}
        for amounts in (self._batch.spent, self._spent):
            for counter in counters:
                spent[counter] += amounts.get(counter, (0, 0))[1]
        state = Ledgers(spent, {}, {counter: self._held.get(counter, 0) for counter in counters})
        outcome = state.decide(reservation.ask, now_s)
        self._decided(reservation, outcome, charged=False)

    def _decided(self, reservation: Reservation, outcome: Outcome, *, charged: bool) -> None:
        """Take over a decision. `charged`: the store has counted the request."""
        reservation.decided = True
        if reservation.timer is not None:
            reservation.timer.cancel()
        if outcome.refused_by is None:
            reservation.windows = tuple((each.limit, each.window) for each in outcome.standings)
            for limit, window in reservation.windows:
                counter = Counter(limit.scope, window)
                if limit.unit is not Unit.REQUESTS:
                    self._hold(counter, reservation.ask.cost.of(limit.unit))
                elif not charged:
                    self._spend(counter, window + limit.window_s, 1)
            if reservation.abandoned:
                self.settle(reservation, Cost())
                return
        if not reservation.abandoned:
            try:
                reservation.answered(outcome)
            except Exception:
                # The other requests of the same exchange wait for their decisions.
                log.exception("Could not go on with a request after the decision on its limits")

    def _hold(self, counter: Counter, amount: int) -> None:
        left = self._held.get(counter, 0) + amount
        if left > 0:
            self._held[counter] = left
        else:
            self._held.pop(counter, None)

    def _spend(self, counter: Counter, end: int, amount: int) -> None:
        if counter not in self._spent and self._is_full():
            self.lost += 1
            return
        self._spent[counter] = (end, self._spent.get(counter, (end, 0))[1] + amount)

    def _is_full(self) -> bool:
        return len(self._spent) + len(self._usage) >= MOST_BUFFERED

    # --- the store ------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._timer = self._loop.call_later(FLUSH_S, self._flush)
        now = self._loop.time()
        if self._has_batch() or self._spent or self._usage or self.away or now - self._beat_at >= HEARTBEAT_S:
            self._run()

    def _has_batch(self) -> bool:
        return bool(self._batch.spent or self._batch.usage)

    def _next_batch(self) -> None:
        """Make a batch of what was collected, unless the last one is not written yet."""
        if not self._has_batch():
            self._batch = Batch(self._batch.number + 1, self._spent, self._usage)
            self._spent, self._usage = {}, {}

    def _run(self) -> None:
        """Exchange a job with the store, unless one is under way."""
        if self._running:
            return
        self._running = True
        self._asked, self._waiting = self._waiting, []
        self._next_batch()
        now = self._loop.time()
        cleans = now - self._cleaned_at >= CLEAN_S
        job = Job(self.name, self._batch, tuple(each.ask for each in self._asked), dict(self._held))
        self._beat_at = now
        if cleans:
            self._cleaned_at = now
        try:
            self._executor.submit(self._work, job, cleans)
        except RuntimeError:
            self._running = False  # it is stopping

    def _work(self, job: Job, cleans: bool) -> None:
        """Run a job in the thread of the store."""
        try:
            done = self._store.exchange(job)
        except ValuesRefused as error:
            why = str(error)
            self._call(lambda: self._refused(why))
        except StoreAway as error:
            why = str(error)
            self._call(lambda: self._failed(why))
        except Exception:
            log.exception("Could not write the accounts")
            self._call(lambda: self._failed("see the log"))
        else:
            self._call(lambda: self._done(done))
            if cleans:
                self._clean()

    def _clean(self) -> None:
        """Remove old rows. The accounts are written, so a failure leaves only more rows until the next time."""
        try:
            self._store.clean()
        except Exception:
            log.exception("Could not remove old rows from the store", store=self._store.name)

    def _call(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            log.debug("The gateway has ended")

    def _done(self, done: Done) -> None:
        self._running = False
        self._batch = Batch(self._batch.number, {}, {})
        asked, self._asked = self._asked, []
        if self.away:
            self.away = False
            log.info("The store of the accounts answers again", store=self._store.name)
        if len(self._known) > MOST_BUFFERED:
            self._known.clear()
        self._known |= done.known
        for reservation, outcome in zip(asked, done.outcomes, strict=True):
            if not reservation.decided:
                self._decided(reservation, outcome, charged=True)
            elif outcome.refused_by is None:
                self._take_back(outcome)
        if self._waiting:
            self._run()

    def _refused(self, why: str) -> None:
        """Go on without the batch, which the store would refuse again and again."""
        self._drop_batch(why)
        self._failed(why)

    def _drop_batch(self, why: str) -> None:
        dropped = len(self._batch.spent) + len(self._batch.usage)
        log.error(
            "The store refused values of the accounts; they are lost", store=self._store.name, sums=dropped, why=why
        )
        self.lost += dropped
        self._batch = Batch(self._batch.number, {}, {})

    def _failed(self, why: str) -> None:
        self._running = False
        if not self.away:
            log.warning("The store of the accounts is away", store=self._store.name, why=why)
        self.away = True
        waiting, self._waiting = self._waiting, []
        asked, self._asked = self._asked, []
        for reservation in (*asked, *waiting):
            self._decide_alone(reservation)
        for reservation in asked:
            # The store may hold the reservation although it reported none. The next batch corrects it.
            for limit in reservation.ask.limits:
                window = limit.window(self._clock())
                self._spend(Counter(limit.scope, window), window + limit.window_s, 0)

    def _take_back(self, outcome: Outcome) -> None:
        """Correct the store, which granted a request after this gateway had decided on it."""
        for each in outcome.standings:
            counter, end = Counter(each.limit.scope, each.window), each.window + each.limit.window_s
            self._spend(counter, end, -1 if each.limit.unit is Unit.REQUESTS else 0)
