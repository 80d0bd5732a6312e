"""Remembers running probes in files, so that a probe that kills the loop is not repeated at once.

Called by `model_probe` before and after each probe. A file outlives a process that the kernel kills for lack of memory.
The next process finds it and delays that probe, longer each time (ADR 31).
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from automation.workqueue.backoff import backoff_s

BASE_S = 60.0
CAP_S = 6 * 3600.0
KEPT_S = 7 * 86400.0
"""An older mark belongs to a source that no Model has any more."""
APART_S = 15.0

log = structlog.get_logger(__name__)


class Interrupted(NamedTuple):
    """A probe that did not end: how many times in a row, and how long to wait before the next."""

    times: int
    wait_s: float


class _Mark(BaseModel):
    model_config = ConfigDict(frozen=True)

    looking: bool
    times: int = Field(ge=0, le=1 << 20)
    """How many times in a row the process ended during this probe."""
    at: float = Field(allow_inf_nan=False)
    """The start of the last probe, in seconds of the epoch."""


class ProbeMarks:
    """The marks in one folder, which belongs to one running loop. Thread-safe. Disk errors stop no probe."""

    def __init__(self, folder: Path | None, *, now: Callable[[], float] = time.time, apart_s: float = APART_S) -> None:
        """Read the marks of an earlier process. `apart_s` is the time between probes that were interrupted together,
        because only one of them is the cause. Without a folder nothing is remembered."""
        self._folder = folder
        self._now = now
        self._apart_s = apart_s
        self._lock = threading.Lock()
        self._marks: dict[str, _Mark] = {}
        self._told = False
        self._closed = False
        self._read()

    def interrupted(self, subject: str) -> Interrupted | None:
        """Return how often the process ended during this probe, and how long it must wait; None if it never did."""
        name = _name(subject)
        with self._lock:
            mark = self._marks.get(name)
            if mark is None or not mark.times:
                return None
            together = sorted(other for other, each in self._marks.items() if each.times == mark.times)
        whole_s = backoff_s(mark.times, base_s=BASE_S, cap_s=CAP_S, jitter=0.0) + together.index(name) * self._apart_s
        # A clock that was set back must not make the wait longer.
        passed_s = max(0.0, self._now() - mark.at)
        return Interrupted(mark.times, max(0.0, whole_s - passed_s))

    def begin(self, subject: str) -> None:
        """Write the mark of a probe that begins."""
        name = _name(subject)
        with self._lock:
            if self._closed:
                return
            known = self._marks.get(name)
            mark = _Mark(looking=True, times=known.times if known else 0, at=self._now())
            self._marks[name] = mark
            self._write(name, mark)

    def end(self, subject: str) -> None:
        """Remove the mark of a probe that ended, with any result."""
        name = _name(subject)
        with self._lock:
            self._marks.pop(name, None)
            self._remove(name)

    def close(self) -> None:
        """Remove the marks of running probes, because the process ends in order."""
        with self._lock:
            self._closed = True
            for name, mark in list(self._marks.items()):
                if not mark.looking:
                    continue
                if mark.times:
                    self._write(name, mark.model_copy(update={"looking": False}))
                else:
                    self._remove(name)
                del self._marks[name]

    # --- files ----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = list(self._folder.iterdir())
        except OSError as error:
            self._log_error(error)
            return
        for path in found:
            try:
                mark = _Mark.model_validate_json(path.read_text())
            except (OSError, ValueError, ValidationError):
                mark = None
            if mark is None or self._now() - mark.at > KEPT_S:
                self._remove(path.name)
                continue
            if mark.looking:
                mark = mark.model_copy(update={"looking": False, "times": mark.times + 1})
                self._write(path.name, mark)
            self._marks[path.name] = mark

    def _write(self, name: str, mark: _Mark) -> None:
        if self._folder is None:
            return
        path = self._folder / name
        try:
            path.touch(mode=0o600)
            path.write_text(json.dumps(mark.model_dump()))
        except OSError as error:
            self._log_error(error)

    def _remove(self, name: str) -> None:
        if self._folder is None:
            return
        with suppress(OSError):
            (self._folder / name).unlink(missing_ok=True)

    def _log_error(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            log.warning("Cannot record which models are probed", folder=str(self._folder), error=str(error))


def _name(subject: str) -> str:
    """Return the name of a mark's file: a digest, because an address may contain a signature."""
    return hashlib.sha256(subject.encode("utf-8", "surrogatepass")).hexdigest()[:32]
