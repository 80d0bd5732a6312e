"""One service behind the proxy: whether an engine runs, and the requests that wait for it.

Made by `server`, whose methods set the address of the engine; `client` calls it for every request. Runs in the event
loop's thread. It requests one wake for all waiting requests, and detects when the service has been idle for long
enough.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from agent.proxy.answers import ErrorCode
from agent.proxy.framing import MAX_HEAD
from agent.proxy.limits import Limits
from agent.proxy.upstream import Pool, Target

WAKE_BUCKETS_S = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
USED_EVERY_S = 1.0
REMIND_S = 1.0

Refused = tuple[int, ErrorCode, str]
"""Why the proxy refuses a request: the status, and the code and message for the client."""


@dataclass(frozen=True)
class Callbacks:
    """Calls from the proxy to its owner, in the event loop's thread. None of these may block or raise."""

    wake: Callable[[str], None]
    """A request waits and no engine runs. Called once until the service has run or is set to sleep again."""
    idle: Callable[[str], None] = lambda _name: None
    """No request was running for the idle timeout. From now on requests are held."""
    waiting: Callable[[str], None] = lambda _name: None
    """Requests wait. Called with the first of them, then every second while there are any."""
    admit: Callable[[str, str, Callable[[bool], None]], None] | None = None
    """Called for each new connection with the peer's address. The third argument receives the answer, in any thread and
    at any time. The connection is not read before that. None: every client may connect."""
    used: Callable[[str], None] = lambda _name: None
    """A request arrived (reported at most once a second), or the last running request ended."""


@dataclass
class Counts:
    """The counters of one service since its listener was opened, read by `collector`."""

    requests: int = 0
    wakes: int = 0
    """Wakes after which the service ran."""
    wake_s: float = 0.0
    """Seconds from the first waiting request until the service ran, summed over all wakes."""
    wake_buckets: list[int] = field(default_factory=lambda: [0] * (len(WAKE_BUCKETS_S) + 1))
    sleeps: int = 0
    refused: dict[ErrorCode, int] = field(default_factory=dict)
    """Requests that the proxy answered with an error."""


class Connection(Protocol):
    """A client's connection, with or without a request, as the service uses it."""

    kept_bytes: int
    """How many bytes of a waiting request are kept."""

    def dispatch(self) -> None:
        """Send the request to an engine. Requires that the service runs."""

    def refuse(self, status: int, code: ErrorCode, message: str) -> None:
        """Answer the request with an error of the proxy."""

    def close_if_idle(self) -> None:
        """Close the connection if it has no request."""

    def close_if_late(self, now: float) -> None:
        """Close the connection if it has had no complete request for too long."""

    def end(self) -> None:
        """Close the connection and cancel its current request."""


class Service:
    """The state of one service and the requests that wait for it."""

    def __init__(self, name: str, limits: Limits, callbacks: Callbacks, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.limits = limits
        self.loop = loop
        self.counts = Counts()
        self.clients: set[Connection] = set()
        self.pool = Pool(loop, limits)
        self.leaving = False
        """Connections close after their responses, so that clients connect to another address."""
        self.in_flight = 0
        self.held_bytes = 0
        self._callbacks = callbacks
        self._targets: tuple[Target, ...] = ()
        self._turn = itertools.count()
        self._refusal = ""
        self._held: dict[Connection, float] = {}
        """Waiting requests, oldest first, with the time of their timeout."""
        self._deadline: asyncio.TimerHandle | None = None
        self._reminder: asyncio.TimerHandle | None = None
        self._awaited = False
        """The owner has been asked to start the engine."""
        self._asked_at: float | None = None
        """When the first request began to wait."""
        self._last_used = loop.time()
        self._used_reported_at = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def held(self) -> int:
        return len(self._held)

    def admit(self, address: str, decided: Callable[[bool], None]) -> bool:
        """Ask the owner whether this peer may connect. Returns True if every peer may.

        Otherwise `decided` is called with the answer, in the loop's thread.
        """
        ask = self._callbacks.admit
        if ask is None:
            return True
        ask(self.name, address, lambda admitted: self._report_decision(decided, admitted))
        return False

    def _report_decision(self, decided: Callable[[bool], None], admitted: bool) -> None:
        with suppress(RuntimeError):  # the proxy has ended in the meantime
            self.loop.call_soon_threadsafe(decided, admitted)

    # --- called by the owner ------------------------------------------------------------------------------------

    def set_targets(self, targets: tuple[Target, ...]) -> None:
        """Send requests to these engines. Waiting requests go first, in the order of their arrival."""
        was = self._targets
        self._targets, self._refusal, self.leaving = targets, "", False
        self.pool.keep_only(targets)
        if not was:
            self._last_used = self.loop.time()
            if self._asked_at is not None:
                self._count_wake(self.loop.time() - self._asked_at)
        self._awaited, self._asked_at = False, None
        self._arm_idle_timer()
        while self._held and self._targets:
            client = next(iter(self._held))
            self.release_request(client)
            client.dispatch()

    def set_asleep(self) -> None:
        """Hold requests until an engine runs again; the first one wakes it."""
        self._stop_serving()
        self._refusal = ""
        self._awaited = False
        if self._held:
            self._request_wake()
        else:
            self._asked_at = None

    def put_to_sleep(self) -> None:
        """Hold requests because none came for long enough. Counts as a sleep."""
        self.counts.sleeps += 1
        self.set_asleep()

    def set_starting(self) -> None:
        """Hold requests while the engine starts. The owner is not asked to start it."""
        self._stop_serving()
        self._refusal = ""
        self._awaited = True

    def set_failed(self, reason: str) -> None:
        """Answer all requests, including waiting ones, with 503 and this reason."""
        self._stop_serving()
        self._refusal = reason
        self._awaited, self._asked_at = False, None
        self._refuse_all(list(self._held), ErrorCode.START_FAILED, f"the service could not be started: {reason}")

    def close_after_answers(self) -> None:
        """Close each connection after its response."""
        self.leaving = True
        for client in list(self.clients):
            client.close_if_idle()

    def set_limits(self, limits: Limits) -> None:
        self.limits = self.pool.limits = limits
        self._arm_idle_timer()

    def close(self) -> None:
        """Refuse waiting requests, cut off running requests and close all connections."""
        self._stop_serving()
        self._refuse_all(list(self._held), ErrorCode.SHUTTING_DOWN, "the proxy is being stopped")
        for client in list(self.clients):
            client.end()
        self.pool.keep_only(())

    def _stop_serving(self) -> None:
        self._targets = ()
        self.pool.keep_only(())
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    # --- called by clients ------------------------------------------------------------------------------------

    @property
    def runs(self) -> bool:
        return bool(self._targets)

    def next_target(self) -> Target:
        """Return the engine for the next request. Requires `runs`."""
        targets = self._targets
        return targets[0] if len(targets) == 1 else targets[next(self._turn) % len(targets)]

    def request_started(self) -> None:
        """Count a new request."""
        self.in_flight += 1
        self.counts.requests += 1
        now = self.loop.time()
        if now - self._used_reported_at >= USED_EVERY_S:
            self._used_reported_at = now
            self._callbacks.used(self.name)

    def request_ended(self) -> None:
        """Count a finished request, however it ended."""
        self.in_flight -= 1
        self._last_used = self.loop.time()
        if not self.in_flight:
            self._callbacks.used(self.name)

    def hold_request(self, client: Connection) -> Refused | None:
        """Let a request wait for the engine. Returns why it cannot wait, or None."""
        if self._refusal:
            return 503, ErrorCode.START_FAILED, f"the service could not be started: {self._refusal}"
        if len(self._held) >= self.limits.max_held:
            return 503, ErrorCode.TOO_MANY_HELD, f"{len(self._held)} requests already wait for the service to start"
        self._held[client] = self.loop.time() + self.limits.wake_timeout_s
        self._arm_deadline()
        self._request_wake()
        if self._reminder is None:
            self._report_waiting()
        return None

    def count_kept_bytes(self, client: Connection, more: int) -> Refused | None:
        """Count more kept bytes of a waiting request. Returns why it cannot wait any longer, or None."""
        limits = self.limits
        client.kept_bytes += more
        self.held_bytes += more
        if client.kept_bytes > limits.held_body + MAX_HEAD:
            self.release_request(client)
            message = f"the service sleeps, and no more than {limits.held_body} bytes are kept until it runs; try again"
            return 413, ErrorCode.BODY_TOO_LARGE, message
        if self.held_bytes > limits.held_bytes:
            self.release_request(client)
            message = "the requests that wait for the service to start use all the memory for waiting requests"
            return 503, ErrorCode.TOO_MANY_HELD, message
        return None

    def release_request(self, client: Connection) -> None:
        """Remove a request that no longer waits, and free its place."""
        if self._held.pop(client, None) is not None:
            self.held_bytes -= client.kept_bytes

    def count_refusal(self, code: ErrorCode) -> None:
        self.counts.refused[code] = self.counts.refused.get(code, 0) + 1

    # --- time -------------------------------------------------------------------------------------------------

    def _request_wake(self) -> None:
        if self._asked_at is None:
            self._asked_at = self.loop.time()
        if not self._awaited:
            self._awaited = True
            self._callbacks.wake(self.name)

    def _report_waiting(self) -> None:
        self._reminder = self.loop.call_later(REMIND_S, self._report_waiting) if self._held else None
        if self._held:
            self._callbacks.waiting(self.name)

    def _count_wake(self, seconds: float) -> None:
        self.counts.wakes += 1
        self.counts.wake_s += seconds
        at = next((n for n, bound in enumerate(WAKE_BUCKETS_S) if seconds <= bound), len(WAKE_BUCKETS_S))
        self.counts.wake_buckets[at] += 1

    def _arm_deadline(self) -> None:
        if self._deadline is None and self._held:
            self._deadline = self.loop.call_at(next(iter(self._held.values())), self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline = None
        now = self.loop.time()
        late = list(itertools.takewhile(lambda client: self._held[client] <= now + 0.001, self._held))
        message = f"the service did not start within {self.limits.wake_timeout_s:g} s"
        self._refuse_all(late, ErrorCode.WAKE_TIMEOUT, message)
        self._arm_deadline()

    def _refuse_all(self, clients: list[Connection], code: ErrorCode, message: str) -> None:
        for client in clients:
            self.release_request(client)
            client.refuse(503, code, message)

    def _arm_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self.limits.idle_timeout_s is not None and self._targets:
            self._idle_timer = self.loop.call_at(self._last_used + self.limits.idle_timeout_s, self._on_idle_timer)

    def _on_idle_timer(self) -> None:
        """Put the service to sleep if it was idle for long enough.

        There is one timer per service, moved only when it fires.
        """
        self._idle_timer = None
        timeout_s, now = self.limits.idle_timeout_s, self.loop.time()
        if timeout_s is None or not self._targets:
            return
        if self.in_flight:
            self._last_used = now
        if now - self._last_used < timeout_s - 0.001:
            self._arm_idle_timer()
            return
        self.put_to_sleep()
        self._callbacks.idle(self.name)
