"""Reports the end of processes immediately. One thread per agent waits for all of its processes.

Used by `worker`, which otherwise polls once a second. Linux offers pidfds for this, macOS kqueue. On other systems
`ExitWatch` follows nothing and the worker polls.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from agent.server.processes.identity import runs
from agent.server.processes.process import Handle, Unit

_log = structlog.get_logger(__name__)


class _Poller(Protocol):
    """Waits for the end of processes. `add` and `discard` may be called while another thread is in `wait`."""

    def add(self, pid: int) -> int:
        """Follow a process and return the number that identifies it. Raises OSError."""
        ...

    def discard(self, number: int) -> None: ...

    def wait(self) -> list[int]:
        """Block until processes have ended, and return their numbers."""
        ...


if sys.platform == "linux":

    class _Kernel:
        """Linux 5.3: the pidfd of a process becomes readable when the process ends, even before it is reaped."""

        def __init__(self) -> None:
            os.close(os.pidfd_open(os.getpid()))  # fails on older kernels
            self._epoll = select.epoll()

        def add(self, pid: int) -> int:
            number = os.pidfd_open(pid)
            try:
                self._epoll.register(number, select.EPOLLIN | select.EPOLLONESHOT)
            except OSError:
                os.close(number)
                raise
            return number

        def discard(self, number: int) -> None:
            os.close(number)

        def wait(self) -> list[int]:
            return [number for number, _ in self._epoll.poll()]

else:

    class _Kernel:
        """macOS and the BSDs: the kernel reports the exit of a pid."""

        def __init__(self) -> None:
            self._queue = select.kqueue()

        def _change(self, pid: int, flags: int) -> None:
            event = select.kevent(pid, filter=select.KQ_FILTER_PROC, flags=flags, fflags=select.KQ_NOTE_EXIT)
            self._queue.control([event], 0, 0)

        def add(self, pid: int) -> int:
            self._change(pid, select.KQ_EV_ADD | select.KQ_EV_ONESHOT)
            return pid

        def discard(self, number: int) -> None:
            try:
                self._change(number, select.KQ_EV_DELETE)
            except OSError:
                return  # the process has ended, and the kernel has already removed the event

        def wait(self) -> list[int]:
            return [int(event.ident) for event in self._queue.control(None, 16, None)]


@dataclass(frozen=True)
class _Followed:
    pid: int
    mark: str
    number: int
    ended: Callable[[], None]


class ExitWatch:
    """Follows one process per key. Thread-safe. The thread starts with the first process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followed: dict[str, _Followed] = {}
        self._poller: _Poller | None = _poller()
        self._thread: threading.Thread | None = None

    def follows(self, key: str, unit: Unit | None, ended: Callable[[], None]) -> bool:
        """Arrange that `ended` is called when this process ends. Returns False if the process cannot be followed.

        Cheap to call again. `ended` is called once, in another thread, and must not block. A model in a shared daemon
        is not followed, because it can end without the process.
        """
        if not isinstance(unit, Handle):
            return False
        pid, mark = unit.pid, unit.mark
        with self._lock:
            known = self._followed.get(key)
            if known is not None and (known.pid, known.mark) == (pid, mark):
                return True
            if self._poller is None or pid <= 0:
                return False
            if known is not None:
                self._drop(key, known)
            try:
                number = self._poller.add(pid)
            except OSError:
                return False
            # Only now is it certain that the number refers to this process and not to a later one with the same pid.
            if not runs(pid, mark):
                self._poller.discard(number)
                return False
            self._followed[key] = _Followed(pid, mark, number, ended)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="exits", daemon=True)
                self._thread.start()
            return True

    def stop_following(self, key: str) -> None:
        """Stop following the process of this key."""
        with self._lock:
            known = self._followed.get(key)
            if known is not None:
                self._drop(key, known)

    def _drop(self, key: str, followed: _Followed) -> None:
        assert self._poller is not None
        self._poller.discard(followed.number)
        del self._followed[key]

    def _run(self) -> None:
        assert self._poller is not None
        while True:
            try:
                numbers = set(self._poller.wait())
            except OSError:
                _log.exception("Failed to wait for the end of processes; workers poll instead")
                with self._lock:
                    self._poller, self._followed = None, {}
                return
            with self._lock:
                over = [(key, each) for key, each in self._followed.items() if each.number in numbers]
                for key, each in over:
                    self._drop(key, each)
            for _, each in over:
                each.ended()


def _poller() -> _Poller | None:
    try:
        return _Kernel()
    except (OSError, AttributeError):
        return None
