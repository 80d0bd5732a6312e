"""The engine over the Pulumi CLI: one process for a batch, none for an empty one.

`batches.Batcher` and the command line call it. The steps of a run: targets from the state index, the inline program
(`program_server`, `fleet_run`), the CLI as a child (`cli_process`), its events (`run_log`), an outcome for each service
(`outcomes`). `recovery` decides which failures are worth a second try.
"""

from __future__ import annotations

import contextlib
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from automation.engine import outcomes, recovery
from automation.engine.cli_process import CliResult, EngineFence, remove_records
from automation.engine.fleet_run import FleetProgram, run_fleet
from automation.engine.outcomes import Targets
from automation.engine.port import (
    Batch,
    BatchOutcome,
    Change,
    EngineCancelled,
    EngineTimeout,
    HistoryEntry,
    Stack,
    StateUnreachable,
    StateUnreadable,
)
from automation.engine.program_server import ProgramServer
from automation.engine.run_log import RunLog, read_event_log
from automation.engine.stack_cli import Run
from automation.engine.state_backend import StateBackend
from automation.engine.state_index import StateIndex
from automation.leadership.lease_observations import FormerLoop
from program.desired.keys import ServiceKey

MAX_RUNS = 16
QUERY_TIMEOUT_S = 60.0
KEPT_RUNS = 10
_QUIET = ("--color", "never", "--suppress-outputs", "--suppress-progress", "--suppress-permalink=true")


@dataclass
class _StackHandle:
    """The engine's data of one stack. Used under its lock."""

    stack: Stack
    lock: threading.Lock = field(default_factory=threading.Lock)
    index: StateIndex | None = None
    checked_leftovers: bool = False


class PulumiEngine:
    """Runs Pulumi. Thread-safe; runs of one stack wait for each other."""

    def __init__(
        self,
        *,
        provider_port: int,
        state_url: str,
        work_root: pathlib.Path,
        pulumi: pathlib.Path,
        passphrase_file: pathlib.Path | None = None,
        passphrase: str | None = None,
        read_only: bool = False,
        parallel: int = 8,
        grace_s: float = 15.0,
        sole: Callable[[], bool] = lambda: False,
        fence: EngineFence | None = None,
        former: Sequence[FormerLoop] = (),
        starts_ahead: bool = False,
        program: FleetProgram = run_fleet,
    ) -> None:
        """Prepare the directories and start the local servers. No CLI process is started, except with `starts_ahead`.

        - `passphrase`, or the one in `passphrase_file`, protects secrets in the state; with neither, one is made beside
          the state.
        - With `read_only`, a state that cannot be read is an error, and is not made again.
        - `grace_s` is the time for a stopped run to write its state.
        - `sole` returns whether no other process may run engines on this state now, because this process holds the
          leader lease; see `recovery.check_lock`.
        - `fence` is checked before each CLI process is started.
        - `former` are the loops that led before.
        - With `starts_ahead`, a CLI process waits for the next run, which then starts sooner; see `waiting_cli`.
        - `program` registers the services of a batch.

        Raises PassphraseMissing, and ValueError for an invalid URL.
        """
        self._sole = sole
        self._former = tuple(former)
        self._program = program
        self._parallel = parallel
        self._read_only = read_only
        self._grace_s = grace_s
        self._backend = StateBackend(
            state_url,
            work_root=work_root,
            pulumi=pulumi,
            passphrase=passphrase,
            passphrase_file=passphrase_file,
            environment={"PULUMI_DEBUG_PROVIDERS": f"kubernetes:{provider_port}"},
            grace_s=grace_s,
            fence=fence,
            starts_ahead=starts_ahead,
        )
        self._cli, self._states, self._files = self._backend.cli, self._backend.states, self._backend.files
        self._cli.start_ahead()
        self._programs = ProgramServer(max_runs=MAX_RUNS)
        self._lock = threading.Lock()
        self._handles: dict[Stack, _StackHandle] = {}

    @property
    def cli_processes(self) -> int:
        """The number of CLI processes started so far."""
        return self._cli.processes

    def close(self) -> None:
        """Stop the local servers. Runs under way lose their program and fail."""
        self._programs.close()
        self._backend.close()

    # --- the port -------------------------------------------------------------------------------------------------

    def up(self, batch: Batch, *, timeout_s: float = 600.0, cancel: threading.Event | None = None) -> BatchOutcome:
        """Apply and remove services in one CLI process; see `port.Engine.up`."""
        return self._batch("up", batch, Run(timeout_s, cancel))

    def preview(self, batch: Batch, *, timeout_s: float = 600.0, cancel: threading.Event | None = None) -> BatchOutcome:
        """Return the changes that `up` would make; see `port.Engine.preview`."""
        return self._batch("preview", batch, Run(timeout_s, cancel))

    def destroy(self, stack: Stack, *, timeout_s: float = 600.0, cancel: threading.Event | None = None) -> BatchOutcome:
        """Delete the stack's objects, by its state alone; see `port.Engine.destroy`."""
        run = Run(timeout_s, cancel)
        with self._using(stack, run) as handle:
            index = self._index(handle, run, create=False)
            if index is None:
                return BatchOutcome({}, 0.0, run.processes)
            batch = Batch(stack, remove=tuple(sorted(index.keys)))
            targets = Targets.of(batch, index)
            argv = ["destroy", "--yes", "--skip-preview", "--remove", "--continue-on-error", *self._running()]
            log, result = self._logged(handle, argv, run)
            if result.code == 0:
                handle.index = None
                self._backend.workspace.discard(stack)
            return self._outcome(handle, targets, log, result, run)

    def release(
        self,
        stack: Stack,
        keys: Sequence[ServiceKey],
        *,
        timeout_s: float = 600.0,
        cancel: threading.Event | None = None,
    ) -> int:
        """Drop services from the state; see `port.Engine.release`."""
        run = Run(timeout_s, cancel)
        with self._using(stack, run) as handle:
            tried: set[recovery.Remedy] = set()
            while index := self._index(handle, run, create=False):
                urns = index.held_for(keys)
                if not urns:
                    break
                argv = ["state", "remove", "--yes", "--force", "--target-dependents", "--stack", stack.name]
                result = self._cli.call(stack, [*argv, *sorted(urns)], run)
                remedy = recovery.remedy_for(RunLog(), result)
                handle.index = None
                if result.code == 0:
                    break
                if remedy is None or remedy in tried:
                    raise outcomes.run_error(RunLog(), result)
                tried.add(remedy)
                self._heal(handle, remedy, result, run)
        return run.processes

    def drift(
        self, stack: Stack, *, timeout_s: float = 600.0, cancel: threading.Event | None = None
    ) -> tuple[Change, ...]:
        """Compare the state with the live objects; see `port.Engine.drift`."""
        run = Run(timeout_s, cancel)
        with self._using(stack, run) as handle:
            if self._index(handle, run, create=False) is None:
                return ()
            log, result = self._logged(handle, ["refresh", "--preview-only", *self._running()], run)
            if not log.succeeded:
                raise outcomes.run_error(log, result)
            return tuple(change for change in log.done.values() if change.op != "same")

    def history(self, stack: Stack) -> tuple[HistoryEntry, ...]:
        """Past runs, the newest first."""
        with self._using(stack, run := Run(QUERY_TIMEOUT_S)):
            result = self._cli.call(
                stack, ["stack", "history", "--json", "--stack", stack.name], run, whole_output=True
            )
            if recovery.is_missing(result.output):
                return ()
            return outcomes.parse_history(outcomes.parse_query(result))

    def export(self, stack: Stack) -> dict[str, Any]:
        """The stack's state; secrets in it stay encrypted."""
        with self._using(stack, run := Run(QUERY_TIMEOUT_S)):
            return self._states.export(stack, run) or {}

    def stacks(self) -> set[Stack]:
        """Every stack of the backend. Costs a CLI process only for a bucket.

        Raises StateUnreadable when a stack that is new to this machine is broken; `services` repairs it.
        """
        run = Run(QUERY_TIMEOUT_S)
        try:
            return self._states.stacks(run)
        except StateUnreadable:
            for stack in self._backend.workspace.stacks():
                self.services(stack)
            return self._states.stacks(run)

    def services(self, stack: Stack) -> set[ServiceKey]:
        """The services in the state. Costs a CLI process only for a bucket, at the first touch of a stack.

        During a run it returns the services from before the run. After a failed run the state is read again, which
        waits for a run under way.
        """
        index = self._known_of(stack)
        return index.keys if index else set()

    def sizes(self, stack: Stack) -> dict[ServiceKey, int]:
        """The services in the state, and how many resources each has. Costs what `services` costs."""
        index = self._known_of(stack)
        return index.sizes if index else {}

    def holder(self, stack: Stack) -> tuple[str, str] | None:
        """Return the holder of the stack's lock and the time in the lock; None for no lock.

        Costs a CLI process except with file://. A change is written into the state at its end; until then, others read
        the state from before.
        """
        with self._using(stack, run := Run(QUERY_TIMEOUT_S)):
            return self._states.holder(stack, run)

    def discard_stack(self, stack: Stack) -> None:
        """Drop the stack's state; its objects stay."""
        with self._using(stack, run := Run(QUERY_TIMEOUT_S)) as handle:
            self._states.remove(stack, run)
            handle.index = None

    # --- a batch --------------------------------------------------------------------------------------------------

    def _batch(self, command: str, batch: Batch, run: Run) -> BatchOutcome:
        with self._using(batch.stack, run) as handle:
            recovered: set[recovery.Remedy] = set()
            while True:
                index = self._index(handle, run, create=bool(batch.apply))
                targets = Targets.of(batch, index or StateIndex(batch.stack.namespace))
                if not targets.urns:
                    return outcomes.empty_outcome(targets, duration_s=time.monotonic() - run.started)
                with self._programs.offering(batch.stack.name, partial(self._program, targets.apply)):
                    log, result = self._logged(handle, self._batch_argv(command, targets), run)
                remedy = recovery.remedy_for(log, result)
                if remedy is recovery.Remedy.REBUILD and self._files and self._files.drop_broken_locks(handle.stack):
                    continue
                if remedy is None or remedy in recovered:
                    break
                recovered.add(remedy)
                self._heal(handle, remedy, result, run)
            if command == "up":
                # After a failure the state may not have been written, as on a full disk: it is read again.
                handle.index = index if result.code == 0 else None
            return self._outcome(handle, targets, log, result, run, preview=command == "preview")

    def _batch_argv(self, command: str, targets: Targets) -> list[str]:
        argv = [command, f"--client={self._programs.address}", "--exec-kind", "auto.inline", *self._running()]
        if command == "up":
            argv += ("--yes", "--skip-preview", "--continue-on-error")
        if targets.needs_refresh:
            argv.append("--refresh")
        for urn in sorted(targets.urns):
            argv += ("--target", urn)
        return argv

    def _outcome(
        self,
        handle: _StackHandle,
        targets: Targets,
        log: RunLog,
        result: CliResult,
        run: Run,
        *,
        preview: bool = False,
    ) -> BatchOutcome:
        if not preview and handle.index is not None:
            handle.index.record(log.done.values())
        if log.summary is None:
            raise outcomes.run_error(log, result)
        found = outcomes.service_outcomes(targets, log, result, preview=preview)
        if not preview and handle.index is not None:
            for rendered in targets.apply:
                handle.index.settle(rendered, ok=found[rendered.key].ok)
        return BatchOutcome(
            found, time.monotonic() - run.started, run.processes, outcomes.shared_changes(targets, log, preview=preview)
        )

    def _heal(self, handle: _StackHandle, remedy: recovery.Remedy, result: CliResult, run: Run) -> None:
        """Carry out the remedy before a second try, or raise the error that makes one pointless."""
        if remedy is recovery.Remedy.UNLOCK:
            record = self._cli.directory(handle.stack).record
            holders = recovery.check_lock(
                result.output, record, stack=handle.stack.name, sole=self._sole(), former=self._former
            )
            self._states.unlock(handle.stack, run)
            remove_records(record, holders)
        elif remedy is recovery.Remedy.CREATE:
            self._states.create(handle.stack, run)
        elif remedy is recovery.Remedy.REBUILD:
            self._states.rebuild(handle.stack, run)
        elif remedy is recovery.Remedy.RESEAL:
            self._states.reseal(handle.stack, run)
        handle.index = None

    # --- stacks and their state -----------------------------------------------------------------------------------

    def _known_of(self, stack: Stack) -> StateIndex | None:
        """Return the index of a stack, read at the first call. None for a stack that does not exist."""
        with self._lock:
            known = self._handles.get(stack)
        if known is not None and (index := known.index) is not None:
            return index
        with self._using(stack, run := Run(QUERY_TIMEOUT_S)) as handle:
            return self._index(handle, run, create=False)

    @contextlib.contextmanager
    def _using(self, stack: Stack, run: Run) -> Iterator[_StackHandle]:
        with self._lock:
            handle = self._handles.setdefault(stack, _StackHandle(stack))
        if not handle.lock.acquire(timeout=run.left_s):
            raise EngineTimeout(f"another run of the stack took longer than {run.timeout_s:.0f} s")
        try:
            if not handle.checked_leftovers:
                recovery.stop_leftovers(self._cli.directory(stack).record, grace_s=self._grace_s)
                handle.checked_leftovers = True
            yield handle
        except (EngineTimeout, EngineCancelled, StateUnreachable):
            # The state alone shows what was written, if anything, so it is read again.
            handle.index = None
            raise
        finally:
            handle.lock.release()

    def _index(self, handle: _StackHandle, run: Run, *, create: bool) -> StateIndex | None:
        """Read the index of the stack once. With `create` a missing stack is made; else the result is None."""
        if handle.index is not None:
            return handle.index
        try:
            deployment = self._states.deployment(handle.stack, run)
        except StateUnreadable:
            if self._read_only:
                raise
            self._states.rebuild(handle.stack, run)
            deployment = {}
        if deployment is None:
            if not create:
                return None
            self._states.create(handle.stack, run)
        handle.index = StateIndex.of_deployment(handle.stack.namespace, deployment)
        return handle.index

    # --- the CLI --------------------------------------------------------------------------------------------------

    def _running(self) -> tuple[str, ...]:
        return (*_QUIET, "--parallel", str(self._parallel))

    def _logged(self, handle: _StackHandle, argv: Sequence[str], run: Run) -> tuple[RunLog, CliResult]:
        events = self._cli.directory(handle.stack).events
        events.unlink(missing_ok=True)
        result = self._cli.call(handle.stack, [*argv, "--stack", handle.stack.name, "--event-log", str(events)], run)
        log = read_event_log(events)
        events.unlink(missing_ok=True)
        if self._files:
            self._files.prune(handle.stack, keep=KEPT_RUNS)
        return log, result
