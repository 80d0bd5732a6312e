"""Remembers the last outcome of the engine for each service, and delays the retries of failures.

The controller reads it before it submits, and records outcomes. They are in memory only: after a restart the applied
hash on the live objects shows what was applied. `automation.engine.batches` has the requests without an outcome.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from automation.engine.port import AccessoriesRefused, EngineFailed
from automation.engine.submissions import Asked, Submission
from automation.reconcile.plan import LastRun
from automation.workqueue.backoff import backoff_s
from program.desired.facts import Problem, RefusedObject
from program.desired.keys import ServiceKey

# A status that only reports "applying" is not worth a write for each service: the engine needs half a second for one
# service and some seconds for a hundred.
QUIET_S = 10.0
BULK = 50
"""A bulk begins when this number of services wait for the engine, and ends when none does. In a bulk, the objects of
all services are made before the first statuses, revisions and Events of new ones are written."""
QUIET_IN_BULK_S = 30.0
"""The longest time in a bulk from a request until the status of the service reports that it is being applied."""
FIRST_STATUS_IN_BULK_S = 120.0
"""The longest time in a bulk from the request for a new service until its first status is written."""
# A cache shows a write within milliseconds. A difference that lasts longer is real.
CACHE_LAG_S = 3.0
# After this many failures in a row the service is Stalled: Herdsman continues to try, and a person should look.
STALLED_AFTER = 5
RETRY_BASE_S = 1.0
RETRY_CAP_S = 300.0


@dataclass(frozen=True)
class EngineRun:
    """The last outcome of the engine for one service."""

    fingerprint: str
    at: datetime
    problem: Problem | None = None
    refused: tuple[RefusedObject, ...] = ()
    """The accessories that the API server refused in a run that succeeded otherwise; then there is no `problem`."""
    failures: int = 0
    retry_at: datetime | None = None

    def as_last(self) -> LastRun:
        """Return the last run in the form that the plan compares."""
        return LastRun(self.fingerprint, self.problem is None and not self.refused)


def problem_of_run(run: EngineRun | None, fingerprint: str) -> Problem | None:
    """Return the problem of the last run if it applied this fingerprint; None when it succeeded. Pure."""
    return run.problem if run is not None and run.fingerprint == fingerprint else None


def refused_by(run: EngineRun | None, fingerprint: str) -> tuple[RefusedObject, ...]:
    """Return the accessories that the API server refused when this fingerprint was applied. Pure."""
    return run.refused if run is not None and run.fingerprint == fingerprint else ()


def hold_off_s(
    run: EngineRun | None,
    fingerprint: str,
    *,
    now: datetime,
    certain: bool = False,
    only_accessories: bool = False,
) -> float:
    """Return the seconds until this may be submitted again: the back-off of a failure, or the lag of the caches. Pure.

    `certain` is whether the change is known from another source than a cache. With `only_accessories`, only accessories
    changed: they wait for the back-off of a refusal, and objects that a service needs do not.
    """
    if run is None or run.fingerprint != fingerprint:
        return 0.0
    waits = run.problem is not None or only_accessories
    if waits and run.retry_at is not None and now < run.retry_at:
        return (run.retry_at - now).total_seconds()
    if run.problem is None and not certain and now < run.at + timedelta(seconds=CACHE_LAG_S):
        # Applied a moment ago. The caches will show it, and their event enqueues the key again.
        return CACHE_LAG_S
    return 0.0


@dataclass(frozen=True)
class EngineState:
    """The engine's work for one service at one moment."""

    pending: Submission | None = None
    """The newest request without an outcome."""
    last_run: EngineRun | None = None
    """The last run in this process."""
    quiet_s: float = QUIET_S
    """How long a request may take until the status reports that it is being applied."""
    withheld: Submission | None = None
    """The last request, if it succeeded in a bulk and the status does not report it yet."""

    @property
    def pending_fingerprint(self) -> str:
        """The fingerprint of the request without an outcome; empty when there is none."""
        return self.pending.fingerprint if self.pending is not None else ""

    def quiet_for_s(self, asked: Asked | None = None, *, now: datetime) -> float:
        """Return the seconds until a service on which the engine works is reported again; 0 or less for at once.

        The same for a request whose success is withheld. With `asked`, only for that request.
        """
        pending = self.pending or self.withheld
        if pending is None or pending.rendered is None or (asked is not None and pending.asked != asked):
            return 0.0
        quiet_s = self.quiet_s if self.pending is not None else FIRST_STATUS_IN_BULK_S
        return quiet_s - (now - pending.at).total_seconds()


class EngineRuns:
    """Outcomes by service. Thread-safe. `newest` returns the newest request for a service without an outcome.

    `unsettled` returns the number of services with such a request.
    """

    def __init__(
        self, newest: Callable[[ServiceKey], Submission | None], unsettled: Callable[[], int] = lambda: 0
    ) -> None:
        self._newest = newest
        self._unsettled = unsettled
        self._lock = threading.Lock()
        self._runs: dict[ServiceKey, EngineRun] = {}
        self._removals: dict[ServiceKey, int] = {}
        """Failures in a row of removals, by service."""
        self._in_bulk = False
        self._withheld: dict[ServiceKey, Submission] = {}
        """The last request of services whose success is not reported yet."""

    def in_bulk(self) -> bool:
        """Return whether the engine has so many requests that bookkeeping should wait; see `BULK`."""
        unsettled = self._unsettled()
        with self._lock:
            self._in_bulk = unsettled >= BULK or (self._in_bulk and unsettled > 0)
            return self._in_bulk

    def withhold(self, submission: Submission) -> None:
        """Report the success of this request after the bulk, or after `FIRST_STATUS_IN_BULK_S`."""
        with self._lock:
            self._withheld[submission.key] = submission

    def take_withheld(self) -> tuple[ServiceKey, ...]:
        """Return the services whose success may be reported now, each once; none in a bulk."""
        if self.in_bulk():
            return ()
        with self._lock:
            keys = tuple(self._withheld)
            self._withheld.clear()
        return keys

    def state(self, key: ServiceKey, *, is_new: bool = False) -> EngineState:
        """Return what the engine did, and does, for a service. `is_new`: it has no status yet."""
        # The newest request is read first. One that ends in between still counts as pending, and its outcome enqueues
        # the service.
        pending = self._newest(key)
        quiet_s = QUIET_S
        if self.in_bulk():
            quiet_s = FIRST_STATUS_IN_BULK_S if is_new else QUIET_IN_BULK_S
        return EngineState(pending, self._runs.get(key), quiet_s, self._withheld.get(key))

    def record_outcome(self, submission: Submission, error: EngineFailed | None, *, now: datetime) -> None:
        """Record the outcome of a request to apply a service."""
        key, fingerprint = submission.key, submission.fingerprint
        with self._lock:
            before = self._runs.get(key)
            self._removals.pop(key, None)
            self._withheld.pop(key, None)
            if error is None:
                self._runs[key] = EngineRun(fingerprint, now)
                return
            failures = 1
            if before is not None and before.fingerprint == fingerprint:
                failures = before.failures + 1
            delay_s = _retry_after_s(failures, error)
            retry_at = now + timedelta(seconds=delay_s)
            if isinstance(error, AccessoriesRefused):
                self._runs[key] = EngineRun(
                    fingerprint, now, refused=error.refused, failures=failures, retry_at=retry_at
                )
                return
            problem = Problem(reason=error.reason, message=error.message, terminal=failures >= STALLED_AFTER)
            self._runs[key] = EngineRun(fingerprint, now, problem=problem, failures=failures, retry_at=retry_at)

    def clear_failure(self, key: ServiceKey, fingerprint: str) -> None:
        """Drop the failure of the last run for this fingerprint: what it was to apply exists."""
        with self._lock:
            run = self._runs.get(key)
            if run is not None and problem_of_run(run, fingerprint) is not None:
                self._runs[key] = EngineRun(fingerprint, run.at)

    def record_removal(self, key: ServiceKey, error: EngineFailed | None) -> float:
        """Record the outcome of a removal, and return the seconds until its retry; 0 when it succeeded.

        The caller must enqueue the key again: its custom resource is deleted, so no watch event does."""
        with self._lock:
            if error is None:
                self._removals.pop(key, None)
                return 0.0
            failures = self._removals[key] = self._removals.get(key, 0) + 1
        return _retry_after_s(failures, error)

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service."""
        with self._lock:
            self._runs.pop(key, None)
            self._withheld.pop(key, None)


def _retry_after_s(failures: int, error: EngineFailed) -> float:
    return backoff_s(failures, base_s=RETRY_BASE_S, cap_s=min(RETRY_CAP_S, error.retry_cap_s), jitter=0.2)
