"""Gathers changes into batches: a change that arrives during a run of its stack waits for that stack's next run.

The controller submits changes and reads `busy`. `on_outcome` gets the outcome of each service, in a thread of the
batcher.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

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
from automation.engine.runs import EngineRuns
from automation.engine.sharding import CAPACITY, Sharding, StateLoader
from automation.engine.submissions import Asked, Removal, Submission, Submissions, Upsert
from automation.telemetry.tracing import span
from components.rendered import RenderedService
from program.desired.keys import ServiceKey

log = structlog.get_logger(__name__)

CANCEL_TIMEOUT_S = 25.0
"""Seconds for the end of cancelled runs: the CLI has 15. Whatever is left is killed by the fence."""

GATHER_S = 0.02
"""How long the first change of a batch waits for others, such as the other objects of one `kubectl apply`. While others
arrive it waits again."""
GATHER_MOST_S = 0.25
"""The longest wait of the first change of a batch, while others arrive. Each run costs a process of the CLI."""


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
    """Runs the engine: one run of a stack at a time, at most `max_parallel` runs of all stacks.

    It holds the requests without an outcome. Requests wait until the state of their namespace is read; when it cannot
    be read, they fail as after a run. Methods that may wait for the engine or for the state backend are marked
    "Blocks".
    """

    def __init__(
        self,
        engine: Engine,
        *,
        on_outcome: Callable[[Submission, ServiceOutcome], None],
        max_parallel: int = 2,
        timeout_s: float = 600.0,
        capacity: int = CAPACITY,
        gather_s: float = GATHER_S,
        gather_most_s: float = GATHER_MOST_S,
        on_batch: Callable[[BatchReport], None] | None = None,
        withdrawn: Callable[[str, tuple[Submission, ...]], frozenset[ServiceKey]] | None = None,
        on_known: Callable[[str, frozenset[ServiceKey]], None] | None = None,
    ) -> None:
        """Start the threads. `timeout_s` is for one run, `capacity` the resources of one stack (see `sharding`).

        `withdrawn` is called right before a run with a namespace and the services to apply there. It returns services
        that must not be applied any more; they get no outcome. It may raise EngineFailed. `on_known` is called with a
        namespace and the services that its state holds, after the state was read.
        """
        self._engine = engine
        self._on_outcome = on_outcome
        self._on_batch = on_batch
        self._withdrawn = withdrawn
        self._on_known = on_known
        self._timeout_s = timeout_s
        self._gather_s = gather_s
        self._gather_most_s = gather_most_s
        self._sharding = Sharding(engine, capacity=capacity)
        self._loader = StateLoader(self._sharding, on_loaded=self._loaded)
        self._unread: dict[str, EngineFailed] = {}
        self._changed = threading.Condition()
        self._submissions = Submissions()
        self.runs = EngineRuns(self.newest, lambda: self._submissions.unsettled)
        """The last outcome for each service."""
        self._telling = 0
        self._stopping = False
        self._cancel = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"batch-{number}", daemon=True) for number in range(max_parallel)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self, rendered: RenderedService, *, asked: Asked = (), mode: str = "Apply", now: datetime | None = None
    ) -> Submission:
        """Request to apply a service as rendered. Of several requests for one key the latest counts."""
        return self._add(rendered.key, rendered, asked=asked, mode=mode, now=now)

    def remove(self, key: ServiceKey) -> None:
        """Request to delete all objects of a service."""
        self._add(key, Removal.REMOVE)

    def release(self, key: ServiceKey) -> None:
        """Request to drop a service that another controller owns now from the state. Its objects stay."""
        self._add(key, Removal.RELEASE)

    def newest(self, key: ServiceKey) -> Submission | None:
        """Return the newest request for a service, until its outcome is recorded (see `settle`)."""
        with self._changed:
            return self._submissions.newest(key)

    def settle(self, submission: Submission) -> bool:
        """Mark the outcome of a request as recorded. False when there is a newer request for its service.

        `on_outcome` calls it before it enqueues the service again. The Batcher calls it after `on_outcome` as well.
        """
        with self._changed:
            return self._submissions.settle(submission)

    def record(self, submission: Submission, error: EngineFailed | None, *, now: datetime) -> float:
        """Record the outcome of a request, and settle it.

        Returns the seconds until a failed removal is retried; 0 for all other requests.
        """
        retry_in_s = 0.0
        if submission.rendered is None:
            retry_in_s = self.runs.record_removal(submission.key, error)
        else:
            self.runs.record_outcome(submission, error, now=now)
        self.settle(submission)
        return retry_in_s

    def busy(self, key: ServiceKey) -> bool:
        """Return whether a change of this service waits or runs."""
        with self._changed:
            return self._submissions.busy(key)

    def idle(self) -> bool:
        """Return whether nothing waits, nothing runs, and every outcome was reported."""
        with self._changed:
            return self._is_idle()

    def holds(self, key: ServiceKey) -> bool | None:
        """Return whether the state has objects of this service, or soon may. None while the state is being read.

        Raises EngineFailed when it could not be read; the next call starts another read.
        """
        with self._changed:
            if self._sharding.is_loaded(key.namespace):
                # A service has a stack from its first submission, or by the state, until it is removed or released.
                return self._sharding.find(key) is not None
            error = self._unread.pop(key.namespace, None)
            self._loader.load(key.namespace)
        if error is not None:
            raise error
        return None

    def read_all(self, wanted: Callable[[str], bool]) -> int:
        """Read the state of all namespaces for which `wanted` is True; namespaces with requests go first. Blocks.

        `on_known` is called for each. Returns their number. Raises EngineFailed when one of them could not be read.
        """
        namespaces = sorted(filter(wanted, self._sharding.namespaces()))
        for namespace in namespaces:
            if not self._sharding.is_loaded(namespace):
                self._loader.load(namespace, awaited=False)
        self._loader.wait_idle()
        with self._changed:
            failed = [self._unread[each] for each in namespaces if each in self._unread]
        if failed:
            raise failed[0]
        return len(namespaces)

    def discard_namespace(self, namespace: str) -> bool:
        """Delete the stacks of a deleted namespace. False when its state still has resources. Blocks.

        Raises EngineFailed.
        """
        self._sharding.load(namespace)
        with self._changed:
            if self._submissions.of_namespace(namespace) or self._sharding.services(namespace):
                return False
        for stack in self._sharding.stacks(namespace):
            held = (self._engine.export(stack).get("deployment") or {}).get("resources") or ()
            if any(not str(each.get("type", "")).startswith("pulumi:") for each in held):
                return False
            self._engine.discard_stack(stack)
            self._sharding.drop_stack(stack)
            log.info("Removed the stack of a deleted namespace", stack_name=stack.name)
        return True

    def drain(self, timeout_s: float) -> bool:
        """Wait until idle, and return whether that happened in time. Blocks."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Stop: drop waiting requests, give the current runs `timeout_s`, then cancel them.

        Blocks for at most `timeout_s` plus CANCEL_TIMEOUT_S.
        """
        self._loader.stop()
        with self._changed:
            self._stopping = True
            self._submissions.drop_waiting()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._submissions.running, timeout_s)
        self._cancel.set()
        until = time.monotonic() + CANCEL_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    # --- inside ---------------------------------------------------------------------------------------------------

    def _is_idle(self) -> bool:
        return not self._submissions.waiting and not self._submissions.running and not self._telling

    def _add(
        self,
        key: ServiceKey,
        change: Upsert | Removal,
        *,
        asked: Asked = (),
        mode: str = "Apply",
        now: datetime | None = None,
    ) -> Submission:
        with self._changed:
            submission = Submission(self._submissions.next_number(), key, change, now or datetime.now(UTC), asked, mode)
            if self._stopping:
                return submission
            if self._sharding.is_loaded(key.namespace):
                self._place(submission)
            else:
                self._submissions.wait_for_namespace(submission)
                self._loader.load(key.namespace)
            return submission

    def _place(self, submission: Submission) -> None:
        stack = self._sharding.assign_stack(submission.key, submission.rendered)
        self._submissions.wait_for_stack(submission, stack)
        self._changed.notify()

    def _loaded(self, namespace: str, error: EngineFailed | None) -> None:
        """Move the requests that waited for the state of a namespace to their stacks, or fail them."""
        with self._changed:
            waited = self._submissions.take_for_namespace(namespace)
            if error is None:
                self._unread.pop(namespace, None)
                for submission in waited:
                    self._place(submission)
                waited = ()
            else:
                self._unread[namespace] = error
            self._telling += 1
        try:
            for submission in waited:
                self._tell(submission, ServiceOutcome(submission.key, ok=False, error=error))
            if error is None and self._on_known is not None:
                self._on_known(namespace, self._sharding.services(namespace))
        finally:
            with self._changed:
                self._telling -= 1
                self._changed.notify_all()

    def _work(self) -> None:
        while (stack := self._take()) is not None:
            self._gather(stack)
            with self._changed:
                waiting = self._submissions.start(stack)
            try:
                if waiting:
                    self._run(stack, waiting)
            finally:
                with self._changed:
                    self._submissions.finish(stack)
                    self._changed.notify_all()

    def _take(self) -> Stack | None:
        """Wait for a stack that has changes and does not run; None when stopping."""
        with self._changed:
            while True:
                if self._stopping:
                    return None
                if (stack := self._submissions.free_stack()) is not None:
                    return stack
                self._changed.wait()

    def _gather(self, stack: Stack) -> None:
        """Wait for further changes of a stack, until none arrives or until `gather_most_s` have passed."""
        latest = time.monotonic() + self._gather_most_s
        with self._changed:
            waiting = self._submissions.waiting_for(stack)
        while self._gather_s and not self._stopping:
            time.sleep(self._gather_s)
            before = waiting
            with self._changed:
                waiting = self._submissions.waiting_for(stack)
            if waiting <= before or time.monotonic() >= latest:
                return

    def _run(self, stack: Stack, waiting: Mapping[ServiceKey, Submission]) -> None:
        batch = Batch(
            stack,
            apply=tuple(each.rendered for each in waiting.values() if each.rendered is not None),
            remove=tuple(key for key, each in waiting.items() if each.change is Removal.REMOVE),
        )
        released = tuple(key for key, each in waiting.items() if each.change is Removal.RELEASE)
        started = time.monotonic()
        error: EngineFailed | None = None
        try:
            with span("engine batch", stack=stack.name, services=len(waiting)):
                batch = self._still_wanted(batch, waiting)
                outcome = self._make(batch, released)
        except EngineFailed as failure:
            error = failure
        except Exception as failure:
            log.exception("The engine failed because of a defect of Herdsman", stack_name=stack.name)
            error = EngineFailed(APPLY_FAILED, f"{type(failure).__name__}: {failure}")
        if error is not None:
            failed = {key: ServiceOutcome(key, ok=False, error=error) for key in (*batch.keys, *released)}
            outcome = BatchOutcome(failed, time.monotonic() - started, 0)
        with self._changed:
            for key in (*batch.remove, *released):
                if outcome.services[key].ok and not self._submissions.waits(key, stack):
                    self._sharding.release(key)
            self._submissions.run_ended(stack)
        if outcome.services:
            self._report(stack, outcome, waiting, error)

    def _still_wanted(self, batch: Batch, waiting: Mapping[ServiceKey, Submission]) -> Batch:
        if self._withdrawn is None or not batch.apply:
            return batch
        withdrawn = self._withdrawn(batch.stack.namespace, tuple(waiting[each.key] for each in batch.apply))
        for key in withdrawn & waiting.keys():
            self.settle(waiting[key])
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

    def _report(
        self,
        stack: Stack,
        outcome: BatchOutcome,
        waiting: Mapping[ServiceKey, Submission],
        error: EngineFailed | None,
    ) -> None:
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
            self._tell(waiting[key], service)

    def _tell(self, submission: Submission, outcome: ServiceOutcome) -> None:
        try:
            self._on_outcome(submission, outcome)
        except Exception:
            log.exception("Could not report an outcome", service=str(submission.key))
        finally:
            self.settle(submission)
