"""Gathers changes into batches: what arrives while a stack is at work waits for that stack's next run.

The controller submits and asks `busy`; the outcome of each service goes to `on_outcome`, in a thread of the batcher.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

import structlog

from automation.engine.port import (
    APPLY_FAILED,
    Batch,
    BatchOutcome,
    Engine,
    EngineCancelled,
    EngineFailed,
    ServiceOutcome,
    Stack,
)
from automation.engine.sharding import CAPACITY, Sharding
from automation.telemetry.tracing import span
from components.rendered import RenderedService
from program.desired.keys import ServiceKey

log = structlog.get_logger(__name__)

GATHER_S = 0.02
"""How long the first change of a batch waits for others: a list of objects arrives within it."""


class Parting(Enum):
    """What is to happen to a service that is not to be made."""

    REMOVE = "delete its objects"
    RELEASE = "let the state forget it; its objects stay"


Wish = RenderedService | Parting


@dataclass(frozen=True)
class BatchReport:
    """One run, for metrics."""

    stack: Stack
    services: int
    failed: int
    duration_s: float
    cli_processes: int
    error: EngineFailed | None = None
    """Set when the run as a whole failed."""

    @property
    def result(self) -> str:
        """`ok`, `partial` when some services failed, else the type of the whole run's failure."""
        if self.error is not None:
            return type(self.error).__name__
        return "partial" if self.failed else "ok"


class Batcher:
    """Feeds the engine. Never two runs of one stack at once, never more than `max_parallel` of all."""

    def __init__(
        self,
        engine: Engine,
        *,
        on_outcome: Callable[[ServiceKey, ServiceOutcome], None],
        max_parallel: int = 2,
        timeout_s: float = 600.0,
        capacity: int = CAPACITY,
        gather_s: float = GATHER_S,
        on_batch: Callable[[BatchReport], None] | None = None,
        withdrawn: Callable[[str, tuple[ServiceKey, ...]], frozenset[ServiceKey]] | None = None,
    ) -> None:
        """Start the threads. `timeout_s` is for one run, `capacity` the resources of one stack (see `sharding`).

        `withdrawn` is asked right before a run, with a namespace and the services to make there, which of them are not
        to be made after all: for those there is no outcome. It may raise EngineFailed.
        """
        self._engine = engine
        self._on_outcome = on_outcome
        self._on_batch = on_batch
        self._withdrawn = withdrawn
        self._timeout_s = timeout_s
        self._gather_s = gather_s
        self._sharding = Sharding(engine, capacity=capacity)
        self._changed = threading.Condition()
        self._pending: dict[Stack, dict[ServiceKey, Wish]] = {}
        self._running: dict[Stack, frozenset[ServiceKey]] = {}
        self._stopping = False
        self._cancel = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"batch-{number}", daemon=True) for number in range(max_parallel)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, rendered: RenderedService) -> None:
        """Have a service made as rendered; of several submissions of one key the latest counts.

        Raises EngineFailed when the state, which tells where the service is, cannot be read.
        """
        self._add(rendered.key, rendered)

    def remove(self, key: ServiceKey) -> None:
        """Have all objects of a service deleted."""
        self._add(key, Parting.REMOVE)

    def release(self, key: ServiceKey) -> None:
        """Have a service forgotten that somebody else looks after from now on: its objects stay as they are."""
        self._add(key, Parting.RELEASE)

    def busy(self, key: ServiceKey) -> bool:
        """Whether a change of this service waits or is being made."""
        with self._changed:
            return any(key in waiting for waiting in self._pending.values()) or any(
                key in running for running in self._running.values()
            )

    def idle(self) -> bool:
        """Whether nothing waits, nothing runs, and every outcome was told."""
        with self._changed:
            return not self._pending and not self._running

    def holds(self, key: ServiceKey) -> bool:
        """Whether the state still has objects of this service, or soon may."""
        stack = self._sharding.find(key)
        return stack is not None and (self.busy(key) or key in self._engine.services(stack))

    def drain(self, timeout_s: float) -> bool:
        """Wait until idle. Returns whether it came to that."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending and not self._running, timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Start no further run, give those under way `timeout_s`, then cancel them. What waits is dropped."""
        with self._changed:
            self._stopping = True
            self._pending.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._running, timeout_s)
        self._cancel.set()
        for thread in self._threads:
            thread.join()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _add(self, key: ServiceKey, wish: Wish) -> None:
        self._sharding.find(key)  # may read the state, which must not happen under the lock
        with self._changed:
            if self._stopping:
                return
            stack = self._sharding.stack_of(key, wish if isinstance(wish, RenderedService) else None)
            self._pending.setdefault(stack, {})[key] = wish
            self._changed.notify()

    def _work(self) -> None:
        while (stack := self._take()) is not None:
            if self._gather_s:
                time.sleep(self._gather_s)
            with self._changed:
                waiting = self._pending.pop(stack, {})
                self._running[stack] = frozenset(waiting)
            try:
                if waiting:
                    self._run(stack, waiting)
            finally:
                with self._changed:
                    del self._running[stack]
                    self._changed.notify_all()

    def _take(self) -> Stack | None:
        """Wait for a stack that has changes and is not at work; None when stopping."""
        with self._changed:
            while True:
                if self._stopping:
                    return None
                for stack in self._pending:
                    if stack not in self._running:
                        self._running[stack] = frozenset(self._pending[stack])
                        return stack
                self._changed.wait()

    def _run(self, stack: Stack, waiting: Mapping[ServiceKey, Wish]) -> None:
        batch = Batch(
            stack,
            apply=tuple(wish for wish in waiting.values() if isinstance(wish, RenderedService)),
            remove=tuple(key for key, wish in waiting.items() if wish is Parting.REMOVE),
        )
        released = tuple(key for key, wish in waiting.items() if wish is Parting.RELEASE)
        started = time.monotonic()
        error: EngineFailed | None = None
        try:
            with span("engine batch", stack=stack.name, services=len(waiting)):
                batch = self._still_wanted(batch)
                outcome = self._make(batch, released)
        except EngineFailed as failure:
            error = failure
        except Exception as failure:
            log.exception("The engine failed by a defect of Herdsman", stack_name=stack.name)
            error = EngineFailed(APPLY_FAILED, f"{type(failure).__name__}: {failure}")
        if error is not None:
            failed = {key: ServiceOutcome(key, ok=False, error=error) for key in (*batch.keys, *released)}
            outcome = BatchOutcome(failed, time.monotonic() - started, 0)
        with self._changed:
            for key in (*batch.remove, *released):
                if outcome.services[key].ok and key not in self._pending.get(stack, {}):
                    self._sharding.release(key)
            self._running[stack] = frozenset()
        if outcome.services:
            self._report(stack, outcome, error)

    def _still_wanted(self, batch: Batch) -> Batch:
        if self._withdrawn is None or not batch.apply:
            return batch
        withdrawn = self._withdrawn(batch.stack.namespace, tuple(service.key for service in batch.apply))
        return replace(batch, apply=tuple(each for each in batch.apply if each.key not in withdrawn))

    def _make(self, batch: Batch, released: tuple[ServiceKey, ...]) -> BatchOutcome:
        outcome = BatchOutcome({}, 0.0, 0)
        started, processes = time.monotonic(), 0
        if released:
            processes = self._engine.release(batch.stack, released, timeout_s=self._timeout_s, cancel=self._cancel)
        if batch.keys:
            outcome = self._engine.up(batch, timeout_s=self._timeout_s, cancel=self._cancel)
        return replace(
            outcome,
            services={**outcome.services, **{key: ServiceOutcome(key, ok=True) for key in released}},
            duration_s=time.monotonic() - started,
            cli_processes=outcome.cli_processes + processes,
        )

    def _report(self, stack: Stack, outcome: BatchOutcome, error: EngineFailed | None) -> None:
        failed = sum(not service.ok for service in outcome.services.values())
        report = BatchReport(stack, len(outcome.services), failed, outcome.duration_s, outcome.cli_processes, error)
        if not isinstance(error, EngineCancelled):
            log.info(
                "Ran a batch",
                stack_name=stack.name,
                services=report.services,
                failed=failed,
                duration_s=round(report.duration_s, 3),
                result=report.result,
            )
        if self._on_batch is not None:
            self._on_batch(report)
        for key, service in outcome.services.items():
            try:
                self._on_outcome(key, service)
            except Exception:
                log.exception("An outcome could not be told", service=str(key))
