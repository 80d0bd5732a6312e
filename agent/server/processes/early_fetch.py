"""Fetches the files of a plan in a separate thread, while the worker watches the process of an earlier plan.

Made by `worker`, which takes the outcome when the thread has woken it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from agent.contract import ProcessReason
from agent.processes import lifecycle
from agent.processes.lifecycle import Policy, ProcessStatus
from agent.processes.replacing import Replacement
from agent.server.daemons.port import DaemonFailed, DaemonNotReady
from agent.server.processes.launching import NotAdmitted, NotLaunched, Progress, not_ready
from agent.sources.errors import Cancelled, FileError, NoSpace

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
