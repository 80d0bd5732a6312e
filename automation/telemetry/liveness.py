"""Whether a leading loop still works: no worker hangs, no worker died, no informer stands still.

Made by `loop`, asked by `health`. The kubelet restarts a pod whose check fails, so a check fails only for a
fault that a restart may mend. Any other fault, such as one object that cannot be read, is a note.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog

from automation.telemetry.health import Unwell
from automation.workqueue.queue import WorkQueue
from kubeapi.informer import Fault

log = structlog.get_logger(__name__)

PASS_HANGS_AFTER_S = 600.0
"""No pass waits for a model or for the engine; each of its requests has a time-out of 30 s."""


class LoopLiveness:
    """The checks of one loop. Everything is well until `watch` names what there is to look at."""

    def __init__(self, *, hangs_after_s: float = PASS_HANGS_AFTER_S) -> None:
        self._hangs_after_s = hangs_after_s
        self._queues: Mapping[str, WorkQueue[Any]] = {}
        self._workers: tuple[threading.Thread, ...] = ()
        self._faults: Callable[[], Iterable[Fault]] = tuple
        self._stopping = False
        self._failing: set[str] = set()
        """Checks that failed when they were last asked."""

    def watch(
        self,
        *,
        queues: Mapping[str, WorkQueue[Any]],
        workers: Iterable[threading.Thread],
        faults: Callable[[], Iterable[Fault]],
    ) -> None:
        """Look after these from now on; the workers have been started."""
        self._queues = dict(queues)
        self._workers = tuple(workers)
        self._faults = faults

    def stop(self) -> None:
        """Take the end of workers for meant from now on."""
        self._stopping = True

    def workers(self) -> bool:
        """Raise Unwell for a worker that hangs or has ended."""
        return self._checked("workers", self._why_workers())

    def informers(self) -> bool:
        """Raise Unwell for a fault of an informer that a restart may mend."""
        return self._checked("informers", next((f.what for f in self._faults() if f.restart_helps), ""))

    def notes(self) -> Iterable[str]:
        """Name the faults of informers that concern one object each."""
        return (fault.what for fault in self._faults() if not fault.restart_helps)

    def _checked(self, check: str, why: str) -> bool:
        if bool(why) != (check in self._failing):
            if not why:
                self._failing.discard(check)
            else:
                self._failing.add(check)
                log.error("The loop does not work any more", check=check, why=why)
        if why:
            raise Unwell(why)
        return True

    def _why_workers(self) -> str:
        for worker in self._workers:
            if not worker.is_alive() and not self._stopping:
                return f"worker {worker.name} has ended"
        for name, queue in self._queues.items():
            longest = queue.longest()
            if longest is not None and longest[1] > self._hangs_after_s:
                key, for_s = longest
                return f"the pass over {name} {key.namespace}/{key.name} has lasted {for_s:.0f} s"
        return ""
