"""The engine port over the real Pulumi CLI: one process for a batch, none for an empty one.

`batches.Batcher` and the command line call it. A run goes: targets from the state index, the program on offer
(`program_server`), the CLI as a child (`cli_process`), its events (`event_log`), an outcome for each service
(`outcomes`). `recovery` tells which failures a second try can heal.
"""

from __future__ import annotations

import contextlib
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from automation.engine import outcomes, recovery
from automation.engine.cli_process import CliResult, run_cli, strike
from automation.engine.event_log import RunLog, read_event_log
from automation.engine.key_keeper import PROVIDER_URL, KeyKeeper, passphrase_from
from automation.engine.port import (
    APPLY_FAILED,
    Batch,
    BatchOutcome,
    Change,
    EngineCancelled,
    EngineFailed,
    EngineTimeout,
    HistoryEntry,
    Stack,
)
from automation.engine.program_server import Program, ProgramServer
from automation.engine.state_files import StateFiles, StateUnreadable
from automation.engine.state_index import StateIndex
from automation.engine.targets import Targets
from automation.engine.workspace import StackDirectory, Workspace
from program.desired.keys import ServiceKey
from program.fleet import fleet_in_steps

MAX_RUNS = 16
QUERY_TIMEOUT_S = 120.0
KEPT_RUNS = 10
_QUERIES = ("stack", "cancel")  # they take no lock, or only for a moment
_QUIET = ("--color", "never", "--suppress-outputs", "--suppress-progress", "--suppress-permalink=true")


@dataclass
class _StackHandle:
    """What the engine knows of one stack. Used under its lock."""

    stack: Stack
    lock: threading.Lock = field(default_factory=threading.Lock)
    index: StateIndex | None = None
    checked_leftovers: bool = False


@dataclass
class _Run:
    """One call of the port, which may take several CLI processes."""

    timeout_s: float
    cancel: threading.Event | None
    started: float = field(default_factory=time.monotonic)
    processes: int = 0

    @property
    def left_s(self) -> float:
        return max(0.1, self.timeout_s - (time.monotonic() - self.started))


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
        parallel: int = 8,
        grace_s: float = 15.0,
        sole: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare the directories and start the local servers; no CLI process is started.

        `passphrase_file` protects secrets in the state; where there is none, one is made beside the state.
        `grace_s` is what a stopped run gets to write its state. `sole` tells whether nobody else may run engines on
        this state now, because this process holds the leader lease; see `recovery.check_lock`.
        """
        self._sole = sole
        self._pulumi = pulumi
        self._parallel = parallel
        self._grace_s = grace_s
        self._files = StateFiles.of_url(state_url)
        if self._files:
            self._files.create()
        self._workspace = Workspace(work_root)
        self._workspace.prepare()
        beside_state = self._files.root if self._files else self._workspace.root
        self._keeper = KeyKeeper(passphrase_from(passphrase_file := passphrase_file or beside_state / "passphrase"))
        self._programs = ProgramServer(max_runs=MAX_RUNS)
        self._env = self._workspace.environment(
            {
                **self._keeper.environment(),
                "PULUMI_BACKEND_URL": self._files.url if self._files else state_url,
                "PULUMI_CONFIG_PASSPHRASE_FILE": str(passphrase_file),
                "PULUMI_DEBUG_PROVIDERS": f"kubernetes:{provider_port}",
            }
        )
        self._lock = threading.Lock()
        self._handles: dict[Stack, _StackHandle] = {}
        self.cli_processes = 0
        """CLI processes started so far."""

    def close(self) -> None:
        """Stop the local servers. Runs under way lose their program and fail."""
        self._programs.close()
        self._keeper.close()

    # --- the port -------------------------------------------------------------------------------------------------

    def up(self, batch: Batch, *, timeout_s: float = 600.0, cancel: threading.Event | None = None) -> BatchOutcome:
        """Apply and remove, in one CLI process; see `port.Engine.up`."""
        return self._batch("up", batch, _Run(timeout_s, cancel))

    def preview(self, batch: Batch, *, timeout_s: float = 600.0, cancel: threading.Event | None = None) -> BatchOutcome:
        """Say what `up` would do; see `port.Engine.preview`."""
        return self._batch("preview", batch, _Run(timeout_s, cancel))

    def destroy(self, stack: Stack, *, timeout_s: float = 600.0, cancel: threading.Event | None = None) -> BatchOutcome:
        """Delete what the stack holds, from its state alone; see `port.Engine.destroy`."""
        run = _Run(timeout_s, cancel)
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
                self._workspace.discard(stack)
            return self._outcome(handle, targets, log, result, run)

    def drift(
        self, stack: Stack, *, timeout_s: float = 600.0, cancel: threading.Event | None = None
    ) -> tuple[Change, ...]:
        """Compare the state with what lives; see `port.Engine.drift`."""
        run = _Run(timeout_s, cancel)
        with self._using(stack, run) as handle:
            if self._index(handle, run, create=False) is None:
                return ()
            log, result = self._logged(handle, ["refresh", "--preview-only", *self._running()], run)
            if not log.succeeded:
                raise outcomes.failure(log, result)
            return tuple(change for change in log.done.values() if change.op != "same")

    def history(self, stack: Stack) -> tuple[HistoryEntry, ...]:
        """Past runs, the newest first."""
        with self._using(stack, run := _Run(QUERY_TIMEOUT_S, None)) as handle:
            result = self._cli(handle, ["stack", "history", "--json", "--stack", stack.name], run, whole_output=True)
            if recovery.is_missing(result.output):
                return ()
            return outcomes.history(outcomes.answer(result))

    def export(self, stack: Stack) -> dict[str, Any]:
        """The stack's state; secrets in it stay encrypted."""
        with self._using(stack, run := _Run(QUERY_TIMEOUT_S, None)) as handle:
            return self._export(handle, run) or {}

    def stacks(self) -> set[Stack]:
        """Every stack of the backend. Costs a CLI process unless the backend is file://."""
        if self._files:
            return self._files.stacks()
        run = _Run(QUERY_TIMEOUT_S, None)
        result = self._cli(_StackHandle(Stack("-")), ["stack", "ls", "--json"], run, whole_output=True)
        return {Stack.parse(str(entry["name"]).rpartition("/")[2]) for entry in outcomes.answer(result)}

    def services(self, stack: Stack) -> set[ServiceKey]:
        """The services in the state. Costs no CLI process on file://, else one at the first touch of a stack.

        Does not wait for a run under way: it answers with what was known before that run.
        """
        with self._lock:
            known = self._handles.get(stack)
        if known is not None and (index := known.index) is not None:
            return index.keys
        with self._using(stack, run := _Run(QUERY_TIMEOUT_S, None)) as handle:
            index = self._index(handle, run, create=False)
            return index.keys if index else set()

    def forget(self, stack: Stack) -> None:
        """Drop the stack's state; its objects stay."""
        with self._using(stack, run := _Run(QUERY_TIMEOUT_S, None)) as handle:
            result = self._cli(handle, ["stack", "rm", "--force", "--yes", "--stack", stack.name], run)
            if result.code != 0 and not recovery.is_missing(result.output):
                raise outcomes.failure(RunLog(), result)
            handle.index = None
            self._workspace.discard(stack)

    # --- a batch --------------------------------------------------------------------------------------------------

    def _batch(self, command: str, batch: Batch, run: _Run) -> BatchOutcome:
        with self._using(batch.stack, run) as handle:
            recovered: set[recovery.Remedy] = set()
            while True:
                index = self._index(handle, run, create=bool(batch.apply))
                targets = Targets.of(batch, index or StateIndex(batch.stack.namespace))
                if not targets.urns:
                    return outcomes.nothing_to_do(targets, duration_s=time.monotonic() - run.started)
                with self._programs.offering(batch.stack.name, _program(targets)):
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
        run: _Run,
        *,
        preview: bool = False,
    ) -> BatchOutcome:
        if not preview and handle.index is not None:
            handle.index.record(log.done.values())
        if log.summary is None:
            raise outcomes.failure(log, result)
        found = outcomes.of_run(targets, log, result, preview=preview)
        if not preview and handle.index is not None:
            for rendered in targets.apply:
                handle.index.settle(rendered, ok=found[rendered.key].ok)
        return BatchOutcome(
            found, time.monotonic() - run.started, run.processes, outcomes.shared_changes(targets, log, preview=preview)
        )

    def _heal(self, handle: _StackHandle, remedy: recovery.Remedy, result: CliResult, run: _Run) -> None:
        """Do what makes a second try worthwhile, or raise what makes it hopeless."""
        if remedy is recovery.Remedy.UNLOCK:
            record = self._directory(handle.stack).record
            holders = recovery.check_lock(result.output, record, sole=self._sole())
            if self._cli(handle, ["cancel", "--yes", "--stack", handle.stack.name], run).code == 0:
                strike(record, holders)
        elif remedy is recovery.Remedy.CREATE:
            self._create(handle, run)
        elif remedy is recovery.Remedy.REBUILD:
            self._rebuild(handle, run)
        handle.index = None

    # --- stacks and their state -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _using(self, stack: Stack, run: _Run) -> Iterator[_StackHandle]:
        with self._lock:
            handle = self._handles.setdefault(stack, _StackHandle(stack))
        if not handle.lock.acquire(timeout=run.left_s):
            raise EngineTimeout(f"another run of the stack took longer than {run.timeout_s:.0f} s")
        try:
            if not handle.checked_leftovers:
                recovery.stop_leftovers(self._directory(stack).record, grace_s=self._grace_s)
                handle.checked_leftovers = True
            yield handle
        finally:
            handle.lock.release()

    def _index(self, handle: _StackHandle, run: _Run, *, create: bool) -> StateIndex | None:
        """Read what the stack holds, once. A stack that is not there is made with `create`, else it is None."""
        if handle.index is not None:
            return handle.index
        try:
            deployment = self._files.deployment(handle.stack) if self._files else self._exported(handle, run)
        except StateUnreadable:
            self._rebuild(handle, run)
            deployment = {}
        if deployment is None:
            if not create:
                return None
            self._create(handle, run)
        handle.index = StateIndex.of_deployment(handle.stack.namespace, deployment)
        return handle.index

    def _exported(self, handle: _StackHandle, run: _Run) -> dict[str, Any] | None:
        """The deployment, by the CLI; None when there is no such stack. Raises StateUnreadable."""
        try:
            export = self._export(handle, run)
        except EngineFailed as failure:
            if recovery.is_unreadable(failure.message):
                raise StateUnreadable(failure.message) from failure
            raise
        return None if export is None else export.get("deployment") or {}

    def _export(self, handle: _StackHandle, run: _Run) -> dict[str, Any] | None:
        result = self._cli(handle, ["stack", "export", "--stack", handle.stack.name], run, whole_output=True)
        if result.code != 0 and recovery.is_missing(result.output):
            return None
        exported: dict[str, Any] = outcomes.answer(result)
        return exported

    def _create(self, handle: _StackHandle, run: _Run) -> None:
        if self._files and self._files.make(handle.stack):
            return
        argv = ["stack", "init", "--no-select", "--secrets-provider", PROVIDER_URL, "--stack", handle.stack.name]
        result = self._cli(handle, argv, run)
        if result.code != 0 and "already exists" not in result.output:
            raise outcomes.failure(RunLog(), result)

    def _rebuild(self, handle: _StackHandle, run: _Run) -> None:
        """Start the stack anew: the state is a cache, and the next apply adopts what is ours."""
        handle.index = None
        self._workspace.discard(handle.stack)
        if self._files:
            self._files.set_aside(handle.stack)
            self._create(handle, run)
            return
        # A stack that cannot be read cannot be removed either, but it can be overwritten.
        empty = self._directory(handle.stack).path / "empty.json"
        empty.write_text('{"version": 3, "deployment": {}}')
        argv = ["stack", "import", "--force", "--file", str(empty), "--stack", handle.stack.name]
        result = self._cli(handle, argv, run)
        empty.unlink()
        if result.code != 0:
            raise outcomes.failure(RunLog(), result)

    # --- the CLI --------------------------------------------------------------------------------------------------

    def _directory(self, stack: Stack) -> StackDirectory:
        return self._workspace.directory(stack, data_key=self._keeper.new_data_key())

    def _running(self) -> tuple[str, ...]:
        return (*_QUIET, "--parallel", str(self._parallel))

    def _logged(self, handle: _StackHandle, argv: Sequence[str], run: _Run) -> tuple[RunLog, CliResult]:
        events = self._directory(handle.stack).events
        events.unlink(missing_ok=True)
        result = self._cli(handle, [*argv, "--stack", handle.stack.name, "--event-log", str(events)], run)
        log = read_event_log(events)
        events.unlink(missing_ok=True)
        if self._files:
            self._files.prune(handle.stack, keep=KEPT_RUNS)
        return log, result

    def _cli(self, handle: _StackHandle, argv: Sequence[str], run: _Run, *, whole_output: bool = False) -> CliResult:
        directory = self._directory(handle.stack)
        if run.cancel is not None and run.cancel.is_set():
            raise EngineCancelled()
        run.processes += 1
        with self._lock:
            self.cli_processes += 1
        try:
            result = run_cli(
                [str(self._pulumi), "--non-interactive", *argv],
                cwd=directory.path,
                env=self._env,
                output=directory.output,
                record=None if argv[0] in _QUERIES else directory.record,
                timeout_s=run.left_s,
                cancel=run.cancel,
                grace_s=self._grace_s,
                whole_output=whole_output,
            )
        except OSError as error:
            raise EngineFailed(APPLY_FAILED, f"cannot run the Pulumi CLI: {error}") from error
        if result.stopped:
            # What was written, if anything, stands in the state and nowhere else.
            handle.index = None
        if result.stopped == "timeout":
            raise EngineTimeout(f"the run took longer than {run.timeout_s:.0f} s and was stopped")
        if result.stopped == "cancelled":
            raise EngineCancelled()
        return result


def _program(targets: Targets) -> Program:
    return lambda: fleet_in_steps(targets.apply)
