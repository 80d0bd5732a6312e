"""The requests of the controller to the engine that wait, run, or have no outcome yet.

Owned by `batches`. Each request has a number. An outcome names its request, so it is not mistaken for the outcome of a
newer request for the same service.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from automation.engine.port import Stack
from components.rendered import RenderedService
from program.desired.keys import ServiceKey

Asked = tuple[object, ...]
"""The versions of a user's request, cheap to compare."""


class Removal(Enum):
    """How the state drops a service."""

    REMOVE = "delete its objects"
    RELEASE = "remove it from the state; its objects stay"


Upsert = RenderedService
"""A service to apply as rendered."""


@dataclass(frozen=True)
class Submission:
    """One request: a service to apply as rendered, to remove or to release."""

    number: int
    """Grows with each request of a loop."""
    key: ServiceKey
    change: Upsert | Removal
    at: datetime
    asked: Asked = ()
    mode: str = "Apply"
    """The mode of the service in the pass that submitted it."""

    @property
    def rendered(self) -> RenderedService | None:
        """The service to apply; None for one to remove or to release."""
        return self.change if isinstance(self.change, RenderedService) else None

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the service to apply; empty for one to remove or to release."""
        return self.rendered.fingerprint if self.rendered is not None else ""


class Submissions:
    """All requests. Not thread-safe: the Batcher uses it under its lock.

    A request waits until the stacks of its namespace are known, then until its stack is free, then it runs.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._unplaced: dict[str, dict[ServiceKey, Submission]] = {}
        self._pending: dict[Stack, dict[ServiceKey, Submission]] = {}
        self._running: dict[Stack, frozenset[ServiceKey]] = {}
        self._newest: dict[ServiceKey, Submission] = {}

    def next_number(self) -> int:
        return next(self._numbers)

    # --- one service ----------------------------------------------------------------------------------------------

    def newest(self, key: ServiceKey) -> Submission | None:
        """Return the newest request for a service, until its outcome is recorded."""
        return self._newest.get(key)

    def settle(self, submission: Submission) -> bool:
        """Mark the outcome of a request as recorded. False when there is a newer request for its service."""
        if self._newest.get(submission.key) is not submission:
            return False
        del self._newest[submission.key]
        return True

    def busy(self, key: ServiceKey) -> bool:
        """Return whether a request for a service waits or runs."""
        return (
            key in self._unplaced.get(key.namespace, ())
            or any(key in waiting for waiting in self._pending.values())
            or any(key in running for running in self._running.values())
        )

    # --- the way of a request -------------------------------------------------------------------------------------

    def wait_for_namespace(self, submission: Submission) -> None:
        """Keep a request until the stacks of its namespace are known; it replaces an older one for its service."""
        self._newest[submission.key] = submission
        self._unplaced.setdefault(submission.key.namespace, {})[submission.key] = submission

    def wait_for_stack(self, submission: Submission, stack: Stack) -> None:
        """Keep a request until its stack is free; it replaces an older one for its service."""
        self._newest[submission.key] = submission
        self._pending.setdefault(stack, {})[submission.key] = submission

    def take_for_namespace(self, namespace: str) -> tuple[Submission, ...]:
        """Take the requests that waited for a namespace."""
        return tuple(self._unplaced.pop(namespace, {}).values())

    def waits(self, key: ServiceKey, stack: Stack) -> bool:
        """Return whether a request for a service waits for this stack."""
        return key in self._pending.get(stack, ())

    def free_stack(self) -> Stack | None:
        """Choose a stack that has requests and does not run, and mark it as running; None when there is none."""
        for stack, waiting in self._pending.items():
            if stack not in self._running:
                self._running[stack] = frozenset(waiting)
                return stack
        return None

    def waiting_for(self, stack: Stack) -> int:
        """Return the number of requests that wait for a stack."""
        return len(self._pending.get(stack, ()))

    def start(self, stack: Stack) -> Mapping[ServiceKey, Submission]:
        """Take all requests that wait for a stack: they run now."""
        waiting = self._pending.pop(stack, {})
        self._running[stack] = frozenset(waiting)
        return waiting

    def run_ended(self, stack: Stack) -> None:
        """Record that the run of a stack has ended; its outcomes are not reported yet."""
        self._running[stack] = frozenset()

    def finish(self, stack: Stack) -> None:
        """Record that the outcomes of a run were reported: the stack is free."""
        del self._running[stack]

    def of_namespace(self, namespace: str) -> bool:
        """Return whether a request waits or runs in a namespace."""
        stacks: Iterable[Stack] = (*self._pending, *self._running)
        return namespace in self._unplaced or any(stack.namespace == namespace for stack in stacks)

    @property
    def unsettled(self) -> int:
        """The number of services with a request without a recorded outcome."""
        return len(self._newest)

    @property
    def waiting(self) -> bool:
        return bool(self._unplaced or self._pending)

    @property
    def running(self) -> bool:
        return bool(self._running)

    def drop_waiting(self) -> None:
        """Drop the waiting requests, at the end of the loop."""
        self._unplaced.clear()
        self._pending.clear()
