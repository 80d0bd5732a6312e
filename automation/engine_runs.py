"""What the engine was asked for each service, and what came of it: quiet while it works, back-off when it fails.

The controller asks before it submits and records outcomes; both in memory only, since the applied hash on the live
objects says after a restart what was done.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime, timedelta

from automation.approval.modes import Mode
from automation.backoff import backoff_s
from automation.engine.port import EngineFailed
from automation.plan import LastRun
from program.desired.facts import Problem
from program.desired.keys import ServiceKey

# The engine needs half a second for one service and some seconds for a hundred; a status that only says "applying" for
# that long is a write for nothing, times the number of services.
QUIET_S = 10.0
# A cache follows its own write within milliseconds; past this it is a real difference.
CACHE_LAG_S = 3.0
# After this many failures in a row the service is Stalled: Herdsman goes on trying, a person should look.
STALLED_AFTER = 5
RETRY_BASE_S = 1.0
RETRY_CAP_S = 300.0

Asked = tuple[object, ...]
"""What a user asks for, as versions that are cheap to compare."""


@dataclass(frozen=True)
class EngineRun:
    """The last outcome of the engine for one service."""

    fingerprint: str
    at: datetime
    problem: Problem | None = None
    failures: int = 0
    retry_at: datetime | None = None


@dataclass(frozen=True)
class Submission:
    """What was handed to the batcher and has no outcome yet."""

    fingerprint: str
    at: datetime
    asked: Asked
    mode: Mode = "Apply"
    """In which mode the pass knew the service to be."""


class EngineRuns:
    """Submissions and outcomes by service. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[ServiceKey, EngineRun] = {}
        self._submitted: dict[ServiceKey, Submission] = {}
        self._removals: dict[ServiceKey, int] = {}
        """Failures in a row, of services whose objects are to go."""

    def submit(self, key: ServiceKey, fingerprint: str, asked: Asked, *, now: datetime, mode: Mode = "Apply") -> None:
        """Note that a service was handed to the batcher."""
        with self._lock:
            self._submitted[key] = Submission(fingerprint, now, asked, mode)

    def submitted_in(self, key: ServiceKey) -> Mode | None:
        """In which mode a service was handed over; None when no outcome is awaited."""
        with self._lock:
            submitted = self._submitted.get(key)
        return submitted.mode if submitted is not None else None

    def withdraw(self, key: ServiceKey) -> None:
        """Note that what was handed over is not made after all; what earlier runs did is remembered."""
        with self._lock:
            self._submitted.pop(key, None)

    def awaited(self, key: ServiceKey) -> str:
        """Give the fingerprint that has no outcome yet; empty when none is awaited."""
        with self._lock:
            submitted = self._submitted.get(key)
        return submitted.fingerprint if submitted is not None else ""

    def quiet_for_s(self, key: ServiceKey, asked: Asked | None = None, *, now: datetime) -> float:
        """Seconds for which there is nothing to say of a service, because the engine is at work; 0 or less otherwise.

        With `asked`, only while the engine is at work on just that.
        """
        with self._lock:
            submitted = self._submitted.get(key)
        if submitted is None or (asked is not None and submitted.asked != asked):
            return 0.0
        return QUIET_S - (now - submitted.at).total_seconds()

    def hold_off_s(self, key: ServiceKey, fingerprint: str, *, now: datetime, certain: bool = False) -> float:
        """Seconds to wait before this may be submitted again: a failure's back-off, or the caches are behind.

        `certain`: that there is something to do was not read in a cache.
        """
        run = self._runs.get(key)
        if run is None or run.fingerprint != fingerprint:
            return 0.0
        if run.retry_at is not None and now < run.retry_at:
            return (run.retry_at - now).total_seconds()
        if run.problem is None and not certain and now < run.at + timedelta(seconds=CACHE_LAG_S):
            # Applied a moment ago; the caches will show it, and their event brings the key back.
            return CACHE_LAG_S
        return 0.0

    def last(self, key: ServiceKey) -> LastRun | None:
        """What the engine last did for a service in this process, for the plan."""
        run = self._runs.get(key)
        return LastRun(run.fingerprint, run.problem is None) if run is not None else None

    def problem(self, key: ServiceKey, fingerprint: str) -> Problem | None:
        """What went wrong with just this; None when it went well or was not tried."""
        run = self._runs.get(key)
        return run.problem if run is not None and run.fingerprint == fingerprint else None

    def finished(self, key: ServiceKey, error: EngineFailed | None, *, now: datetime) -> Submission | None:
        """Record an outcome and give the submission that it is of; None when none was awaited."""
        with self._lock:
            submitted = self._submitted.pop(key, None)
            before = self._runs.get(key)
            if submitted is None:
                return None
            fingerprint = submitted.fingerprint
            if error is None:
                self._runs[key] = EngineRun(fingerprint, now)
                return submitted
            failures = 1
            if before is not None and before.fingerprint == fingerprint and before.problem is not None:
                failures = before.failures + 1
            delay_s = _retry_after_s(failures, error)
            problem = Problem(reason=error.reason, message=error.message, terminal=failures >= STALLED_AFTER)
            retry_at = now + timedelta(seconds=delay_s)
            self._runs[key] = EngineRun(fingerprint, now, problem=problem, failures=failures, retry_at=retry_at)
            return submitted

    def removed(self, key: ServiceKey, error: EngineFailed | None) -> float:
        """Record how the removal of a service went, and give the seconds until it is to be tried again; 0 if it went
        well. Nothing else brings such a key back: its custom resource, which could change, is gone."""
        with self._lock:
            if error is None:
                self._removals.pop(key, None)
                return 0.0
            failures = self._removals[key] = self._removals.get(key, 0) + 1
        return _retry_after_s(failures, error)

    def forget(self, key: ServiceKey) -> bool:
        """Let go of a service; True when an outcome was still awaited."""
        with self._lock:
            self._runs.pop(key, None)
            return self._submitted.pop(key, None) is not None


def _retry_after_s(failures: int, error: EngineFailed) -> float:
    return backoff_s(failures, base_s=RETRY_BASE_S, cap_s=min(RETRY_CAP_S, error.retry_cap_s), jitter=0.2)
