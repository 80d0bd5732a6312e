"""Reads from the state which services each namespace has. Called by `batches`; works in threads of this module.

Except with file://, the state of one namespace takes a process of the Pulumi CLI. No worker of the loop waits for such
a process. A namespace is read when it is first needed, several namespaces at once. Those with requests go first.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable

import structlog

from automation.engine.port import APPLY_FAILED, EngineFailed
from automation.engine.sharding import Sharding

log = structlog.get_logger(__name__)

PARALLEL = 4
"""Namespaces that are read at once. A process of the CLI takes about 100 MB of memory."""
_READING, _AWAITED, _LATER, _NOT_ASKED = range(4)


class StateLoader:
    """Loads namespaces into a `Sharding`. Thread-safe."""

    def __init__(
        self,
        sharding: Sharding,
        *,
        on_loaded: Callable[[str, EngineFailed | None], None],
        parallel: int = PARALLEL,
    ) -> None:
        """A thread of the loader calls `on_loaded` for each namespace, with the error if it could not be read."""
        self._sharding = sharding
        self._on_loaded = on_loaded
        self._parallel = parallel
        self._lock = threading.Condition()
        self._asked: dict[str, int] = {}
        """Namespaces that wait to be read, or are being read, with how urgent they are."""
        self._queue: queue.PriorityQueue[tuple[int, int, str]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._told = 0
        """How many calls of `on_loaded` are under way."""
        self._stopped = False

    def load(self, namespace: str, *, awaited: bool = True) -> None:
        """Have a namespace read; with `awaited`, before those without a request. Returns at once."""
        urgency = _AWAITED if awaited else _LATER
        with self._lock:
            if self._stopped or self._asked.get(namespace, _NOT_ASKED) <= urgency:
                return
            self._asked[namespace] = urgency
            self._queue.put((urgency, next(self._numbers), namespace))
            if len(self._threads) < min(self._parallel, len(self._asked)):
                thread = threading.Thread(target=self._run, name=f"state-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def wait_idle(self) -> None:
        """Wait until every namespace that was asked for was read, or could not be; or until `stop`."""
        with self._lock:
            self._lock.wait_for(lambda: self._stopped or not (self._asked or self._told))

    def stop(self) -> None:
        """Read no further namespace. Reads under way end by themselves, without a call of `on_loaded`."""
        with self._lock:
            self._stopped = True
            self._lock.notify_all()
            for _ in self._threads:
                self._queue.put((_READING, next(self._numbers), ""))

    def _run(self) -> None:
        while True:
            urgency, _, namespace = self._queue.get()
            with self._lock:
                if self._stopped:
                    return
                if self._asked.get(namespace) != urgency:
                    continue  # it was asked for again with more urgency
                self._asked[namespace] = _READING
            error: EngineFailed | None = None
            try:
                self._sharding.load(namespace)
            except EngineFailed as failure:
                error = failure
            except Exception as defect:
                log.exception("Could not read the state by a defect of Herdsman", namespace=namespace)
                error = EngineFailed(APPLY_FAILED, f"{type(defect).__name__}: {defect}")
            with self._lock:
                self._told += 1
                del self._asked[namespace]
            try:
                if not self._stopped:
                    self._on_loaded(namespace, error)
            except Exception:
                log.exception("The state of a namespace could not be told", namespace=namespace)
            finally:
                with self._lock:
                    self._told -= 1
                    self._lock.notify_all()
