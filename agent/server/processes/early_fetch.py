"""Fetches the files of a plan in a separate thread, while the worker watches the process of an earlier plan.

Made by `worker`, which takes the outcome when the thread has woken it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import structlog

from agent.contract import ProcessReason
from agent.processes import lifecycle
from agent.processes.decision import Desired
from agent.processes.lifecycle import Policy, ProcessStatus
from agent.processes.replacing import Replacement
from agent.server.daemons.port import DaemonFailed, DaemonNotReady
from agent.server.processes.launching import Launcher, NotAdmitted, NotLaunched, Progress, not_ready
from agent.server.processes.worker_context import WorkerContext
from agent.sources.errors import Cancelled, FileError, NoSpace

_log = structlog.get_logger(__name__)

LASTING_BACKOFF_S = 30.0
"""First wait after a failure that ends only when a person acts."""


class EarlyFetch:
    """One fetch. The files stay in the store, so the fetch before the start finds them there."""

    def __init__(
        self,
        launch_hash: str,
        fetch: Callable[[Progress, threading.Event], object],
        *,
        on_progress: Progress,
        cancel: threading.Event,
        ended: Callable[[], None],
    ) -> None:
        """`launch_hash` is that of the plan. `ended` is called in the thread."""
        self.launch_hash = launch_hash
        self.error: Exception | None = None
        self.is_done = False
        self._fetch = fetch
        self._on_progress = on_progress
        self._cancel = cancel
        self._ended = ended
        threading.Thread(target=self._run, name="early-fetch", daemon=True).start()

    def cancel(self) -> None:
        """End the fetch soon. Received bytes are kept."""
        self._cancel.set()

    def _run(self) -> None:
        try:
            self._fetch(self._on_progress, self._cancel)
        except Exception as error:  # the worker decides what it means
            self.error = error
        self.is_done = True
        self._ended()


class EarlyFetches:
    """The fetches of one worker, one at a time. Its thread alone calls the methods."""

    def __init__(self, key: str, context: WorkerContext, launcher: Launcher, *, ended: Callable[[], None]) -> None:
        """`ended` is called in the thread of a fetch at its end."""
        self._key = key
        self._context = context
        self._launcher = launcher
        self._ended = ended
        self._running: EarlyFetch | None = None
        self._log = _log.bind(process=key)

    def begin(self, desired: Desired, on_progress: Progress, cancel: threading.Event) -> None:
        """Begin to fetch the files of a plan. Raises RuntimeError if no thread can be started."""
        self._running = EarlyFetch(
            desired.launch_hash,
            lambda progress, cancel: self._launcher.fetch(self._key, desired, progress, cancel),
            on_progress=on_progress,
            cancel=cancel,
            ended=self._ended,
        )

    def take(self, status: ProcessStatus) -> tuple[ProcessStatus, str] | None:
        """Return what `after_early_fetch` returns for a fetch that has ended; None if there is no outcome.

        Ends a fetch that the status does not need any more.
        """
        early, kept = self._running, status.replacement
        if early is None:
            return None
        is_needed = kept is not None and early.launch_hash == status.launch_hash
        if is_needed and not early.is_done:
            return None
        self._running = None
        early.cancel()
        if not is_needed:
            return None
        after, note = after_early_fetch(
            status,
            early.error,
            now=self._context.clock(),
            policy=self._context.policy,
            freed_by_stop=lambda: self._context.freed_by_stop(self._key),
        )
        if early.error is not None:
            is_kept = after.replacement is not None
            self._log.warning("Failed to fetch files beside a process", error=str(early.error), is_kept=is_kept)
        return after, note

    def begun_again(self, status: ProcessStatus) -> ProcessStatus:
        """Return the status after an unexpected error. A fetch that did not begin, or whose outcome is lost, is due."""
        kept = status.replacement
        if self._running is None and kept is not None and kept.is_fetching:
            return replace(status, replacement=Replacement())
        return status


def fetch_failure(error: Exception, policy: Policy) -> NotAdmitted | NotLaunched | None:
    """Return what an error of a fetch means; None if the fetch was cancelled. Raises every other error again."""
    if isinstance(error, Cancelled):
        return None
    if isinstance(error, FileError):
        # Another try for a wrong file costs the whole download, so the wait is longer.
        waits_s = None if error.transient else (LASTING_BACKOFF_S, policy.retry_cap_s)
        return NotLaunched(error.reason, error.message, waits_s=waits_s)
    if isinstance(error, DaemonFailed):
        return NotLaunched(error.reason, str(error))
    if isinstance(error, (NotAdmitted, NotLaunched)):
        return error
    if isinstance(error, DaemonNotReady):
        return not_ready(error)
    raise error


def after_early_fetch(
    status: ProcessStatus, error: Exception | None, *, now: float, policy: Policy, freed_by_stop: Callable[[], int]
) -> tuple[ProcessStatus, str]:
    """Return the status after a fetch beside the process of an earlier plan. `error` is None if the files are there.

    The second value says why the process is to be stopped without the files: the disk has no room for both, and the
    store frees enough without those of the process. `freed_by_stop` returns these bytes.
    """
    kept = status.replacement
    assert kept is not None
    if error is None:
        return lifecycle.replacement_due(status), ""
    try:
        failure = fetch_failure(error, policy)
    except Exception as unexpected:
        what = f"{type(unexpected).__name__}: {unexpected}"
        failure = NotLaunched(ProcessReason.LAUNCH_FAILED, what)
    if failure is None:
        return replace(status, replacement=Replacement()), ""
    if isinstance(failure, NotAdmitted):
        hold, retry_at = failure.hold, now + (policy.admission_retry_s if failure.retry_s is None else failure.retry_s)
        kept = kept.deferred(hold.phase, hold.reason, hold.message, retry_at=retry_at)
        return replace(status, replacement=kept), ""
    lacking = error.lacking_bytes if isinstance(error, NoSpace) else None
    if lacking is not None and freed_by_stop() >= lacking:
        note = f"the earlier process is stopped first, because there is no room beside its files: {failure.message}"
        return lifecycle.replacement_due(status, message=note), note
    base_s, cap_s = failure.waits_s or (policy.backoff_base_s, policy.retry_cap_s)
    kept = kept.failed(failure.reason, failure.message, now=now, base_s=base_s, cap_s=cap_s)
    return replace(status, replacement=kept), ""
