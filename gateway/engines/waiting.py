"""The requests of one service that wait for a replica, and the counts that the gateway reports. No I/O.

`Backend` has one of these, and `exchange` counts its requests in it. The loop starts a replica because requests wait.
When one is ready, the requests are sent in the order of their arrival. Runs in the event loop's thread; any thread may
read the counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agent.proxy.limits import DEFAULT_MAX_HELD, DEFAULT_WAKE_TIMEOUT_S
from gateway.errors import GatewayError
from program.desired.request_report import Counts

RETRY_S = 5.0


@dataclass(frozen=True)
class Holding:
    """How requests wait for a service that is scaled by requests."""

    wake_timeout_s: float = DEFAULT_WAKE_TIMEOUT_S
    """How long a request waits for a replica."""
    max_held: int = DEFAULT_MAX_HELD
    """How many requests may wait at once."""
    why: str = ""
    """The reason for the wait, for the answer to a request that has waited too long."""
    failure: str = ""
    """Why no replica starts, so that no request waits. Empty while one may."""


class Waiter(Protocol):
    """A request that waits."""

    def goes_on(self) -> None:
        """Send the request: a replica is ready."""

    def gives_up(self, error: GatewayError) -> None:
        """Answer the request with an error."""


class Waiting:
    """The requests of one service: those under way, and those that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, service: str, begins: Callable[[], None]) -> None:
        """`begins` is called when the first request begins to wait; it returns at once."""
        self.active = 0
        self.total = 0
        self._loop = loop
        self._service = service
        self._begins = begins
        self._held: dict[Waiter, float] = {}
        """Oldest first, with the time at which each gives up."""
        self._timer: asyncio.TimerHandle | None = None
        self._holding = Holding()

    @property
    def counts(self) -> Counts:
        """The requests of clients now."""
        return Counts(self.active, len(self._held), self.total)

    def add(self, waiter: Waiter, holding: Holding) -> GatewayError | None:
        """Let a request wait. Return why it cannot, or None."""
        if holding.failure:
            return self._failed(holding)
        if len(self._held) >= holding.max_held:
            message = f"{len(self._held)} requests already wait for `{self._service}` to start"
            return GatewayError(503, "too_many_held_requests", message, retry_after_s=RETRY_S)
        self._holding = holding
        self._held[waiter] = self._loop.time() + holding.wake_timeout_s
        self._arm()
        if len(self._held) == 1:
            self._begins()
        return None

    def has(self, waiter: Waiter) -> bool:
        """Return whether a request waits."""
        return waiter in self._held

    def remove(self, waiter: Waiter) -> None:
        """Free the place of a request that waits no longer."""
        self._held.pop(waiter, None)

    def update(self, holding: Holding | None, *, ready: bool) -> None:
        """Take over the state of the service: send the requests, answer them, or let them wait on."""
        if not self._held:
            return
        if ready:
            for waiter in self._taken():
                waiter.goes_on()
        elif holding is None:
            self._refuse_all(GatewayError(503, "no_replica", f"no replica of `{self._service}` runs", None, RETRY_S))
        elif holding.failure:
            self._refuse_all(self._failed(holding))
        else:
            self._holding = holding

    def close(self) -> None:
        """Answer all requests: the service is gone."""
        self._refuse_all(GatewayError(503, "no_replica", f"`{self._service}` was deleted", None, RETRY_S))

    def _taken(self) -> list[Waiter]:
        held = list(self._held)
        self._held.clear()
        return held

    def _refuse_all(self, error: GatewayError) -> None:
        for waiter in self._taken():
            waiter.gives_up(error)

    def _failed(self, holding: Holding) -> GatewayError:
        message = f"`{self._service}` could not be started: {holding.failure}"
        return GatewayError(503, "start_failed", message, retry_after_s=RETRY_S)

    def _arm(self) -> None:
        if self._timer is None and self._held:
            self._timer = self._loop.call_at(next(iter(self._held.values())), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        late = [waiter for waiter, at in self._held.items() if at <= now + 0.001]
        why = f": {self._holding.why}" if self._holding.why else ""
        message = f"`{self._service}` did not start within {self._holding.wake_timeout_s:g} s{why}"
        for waiter in late:
            del self._held[waiter]
            waiter.gives_up(GatewayError(503, "wake_timeout", message, retry_after_s=RETRY_S))
        self._arm()
