"""Runs commands of the Pulumi CLI on one stack: sets directory, environment, timeout, and back-off of the backend.

`pulumi_engine` and `stack_states` call it. Only this module starts the CLI. A cancelled call starts no further process.
A backend that does not answer is not called again before its back-off ends, for any service.
"""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from automation.engine import recovery
from automation.engine.cli_process import CliResult, EngineFence, run_cli
from automation.engine.key_keeper import KeyKeeper
from automation.engine.port import (
    APPLY_FAILED,
    EngineCancelled,
    EngineFailed,
    EngineTimeout,
    Stack,
    StateUnreachable,
)
from automation.engine.state_url import StateUrl
from automation.engine.waiting_cli import WaitingCli
from automation.engine.workspace import StackDirectory, Workspace
from automation.workqueue.backoff import backoff_s

_QUERIES = ("stack", "cancel")  # they take no lock, or only for a moment
OUTAGE_BASE_S = 1.0
OUTAGE_CAP_S = 30.0


@dataclass
class Run:
    """One call of the port, which may take several CLI processes."""

    timeout_s: float
    cancel: threading.Event | None = None
    started: float = field(default_factory=time.monotonic)
    processes: int = 0

    @property
    def left_s(self) -> float:
        return max(0.1, self.timeout_s - (time.monotonic() - self.started))


class StackCli:
    """The CLI on one backend. Thread-safe; the caller must not run two commands on one stack at the same time."""

    def __init__(
        self,
        *,
        pulumi: pathlib.Path,
        url: StateUrl,
        workspace: Workspace,
        keeper: KeyKeeper,
        environment: Mapping[str, str],
        grace_s: float = 15.0,
        fence: EngineFence | None = None,
        starts_ahead: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`environment` are the additional variables of this use of the CLI.

        With `starts_ahead`, a process waits for the next run after each run and after `start_ahead`.
        """
        self.url = url
        self.processes = 0
        """CLI processes started so far."""
        self._pulumi = pulumi
        self._workspace = workspace
        self._keeper = keeper
        self._grace_s = grace_s
        self._fence = fence
        self._env = workspace.environment(
            {**keeper.environment(), **url.environment, "PULUMI_BACKEND_URL": url.text, **environment}
        )
        # The guard ends the waiting process too when the lease is lost.
        environment = {**self._env, **(fence.environment if fence is not None else {})}
        self._waiting = WaitingCli(pulumi, workspace.root / "waiting", environment) if starts_ahead else None
        self._lock = threading.Lock()
        self._outage = _Outage(url, clock)

    def directory(self, stack: Stack) -> StackDirectory:
        """Return the stack's directory, and make it if it is missing."""
        return self._workspace.directory(stack, self._keeper)

    def check_backend(self) -> None:
        """Raise StateUnreachable while the back-off of a backend that did not answer lasts."""
        self._outage.check()

    def start_ahead(self) -> None:
        """Start the process of the next run, with `starts_ahead`, unless one waits already."""
        if self._waiting is not None and (self._fence is None or self._fence.holds_lease()):
            self._waiting.start()

    def close(self) -> None:
        """End the process that waits for a run."""
        if self._waiting is not None:
            self._waiting.close()

    def call(self, stack: Stack, argv: Sequence[str], run: Run, *, whole_output: bool = False) -> CliResult:
        """Run one command and return its result, also when it fails.

        Raises EngineCancelled, EngineTimeout, StateUnreachable, and EngineFailed when there is no CLI.
        """
        self._outage.check()
        directory = self.directory(stack)
        if run.cancel is not None and run.cancel.is_set():
            raise EngineCancelled()
        run.processes += 1
        with self._lock:
            self.processes += 1
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
                fence=self._fence,
                waiting=self._waiting,
            )
        except OSError as error:
            raise EngineFailed(APPLY_FAILED, f"cannot run the Pulumi CLI: {error}") from error
        finally:
            self.start_ahead()
        if result.stopped == "timeout":
            if argv[0] in _QUERIES:
                # A query takes a second. A server that accepts packets and sends nothing gets no further one.
                self._outage.failed(f"no answer within {run.timeout_s:.0f} s")
            raise EngineTimeout(f"the run took longer than {run.timeout_s:.0f} s and was stopped")
        if result.stopped == "cancelled":
            raise EngineCancelled()
        if result.code != 0 and (why := recovery.unreachable(result.output)):
            raise self._outage.failed(why)
        self._outage.over()
        return result


class _Outage:
    """Whether the backend answered the last call, and the time of the next try. Thread-safe."""

    def __init__(self, url: StateUrl, clock: Callable[[], float]) -> None:
        self._url = url
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0
        self._why = ""

    def check(self) -> None:
        """Raise StateUnreachable while the back-off lasts."""
        with self._lock:
            if self._failures and self._clock() < self._until:
                raise self._error()

    def failed(self, why: str) -> StateUnreachable:
        """Count a failure and return the error for it."""
        with self._lock:
            now = self._clock()
            # Calls that were under way together failed for one reason, and count once.
            if now >= self._until:
                self._failures += 1
                self._until = now + backoff_s(self._failures, base_s=OUTAGE_BASE_S, cap_s=OUTAGE_CAP_S, jitter=0.2)
            self._why = why
            return self._error()

    def over(self) -> None:
        with self._lock:
            self._failures, self._until = 0, 0.0

    def _error(self) -> StateUnreachable:
        return StateUnreachable(
            f"the state backend {self._url.shown} cannot be used: {self._why}; services keep serving, and changes "
            f"wait until it works again (check it with `herdsman state doctor`)"
        )
