"""Tells at once when a process ends, for all processes of an agent in one thread that sleeps meanwhile.

Used by `worker`, which otherwise would have to look each second. On Linux by pidfds, on macOS by kqueue;
where the kernel has neither, nothing is followed and the worker looks.
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
    """Waits for the end of processes. `add` and `discard` may be called while another thread waits."""

    def add(self, pid: int) -> int:
        """Follow a process; the number stands for it. Raises OSError."""
        ...

    def discard(self, number: int) -> None: ...

    def wait(self) -> list[int]:
        """Give the numbers of processes that have ended, once there are any."""
        ...


if sys.platform == "linux":

    class _Kernel:
        """Linux 5.3: a file descriptor of a process becomes readable when it ends, reaped or not."""

        def __init__(self) -> None:
            os.close(os.pidfd_open(os.getpid()))  # older kernels know none
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
        """macOS and the BSDs: the kernel tells of the exit of a pid."""

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
                return  # it has ended, and with it what was to be deleted

        def wait(self) -> list[int]:
            return [int(event.ident) for event in self._queue.control(None, 16, None)]


@dataclass(frozen=True)
class _Followed:
    pid: int
    mark: str
    number: int
    ended: Callable[[], None]


class ExitWatch:
    """Follows processes by key, one each. Thread-safe; its thread starts with the first process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followed: dict[str, _Followed] = {}
        self._poller: _Poller | None = _poller()
        self._thread: threading.Thread | None = None

    def follows(self, key: str, unit: Unit | None, ended: Callable[[], None]) -> bool:
        """See to it that `ended` is called when this very process ends; False where nothing will call.

        Cheap to ask again. `ended` is called once, in another thread, and must not block. A model in a shared daemon
        can end without its process, and is not followed.
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
            # Only now is it sure that the number stands for this process and not for a later one of its pid.
            if not runs(pid, mark):
                self._poller.discard(number)
                return False
            self._followed[key] = _Followed(pid, mark, number, ended)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="exits", daemon=True)
                self._thread.start()
            return True

    def stop_following(self, key: str) -> None:
        """Follow the process of this key no more."""
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
                _log.exception("Failed to wait for the end of processes; workers look by themselves")
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
