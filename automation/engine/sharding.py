"""Decides which stack of a namespace holds a service. Called by `batches`.

A run reads, reports and writes every resource of its stack, at up to half a millisecond of CPU each, so changes would
get slower as a namespace grows. A stack therefore takes a limited number of resources, and the next services go to
another stack. A service never moves to another stack, even when it grows: the old stack would delete its objects.

`StateLoader` reads from the state which services each namespace has. In a bucket, that takes a process of the Pulumi
CLI for each namespace, and no worker of the loop waits for it. A namespace is read when it is first needed, several
namespaces at once. Those with requests go first.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import structlog

from automation.engine.port import APPLY_FAILED, Engine, EngineFailed, Stack, StateUnreadable
from components import urns
from components.rendered import RenderedService
from program.desired.keys import ServiceKey

CAPACITY = 192
"""The resources of one stack: objects and the components around them. A Deployment and its Service are three
resources."""
LEAST = 3
"""The least number of resources that a service counts as, because a new one may still get objects."""


def size_of(rendered: RenderedService) -> int:
    """Return the number of resources of a service in its stack, without shared ones."""
    return len(urns.own_urns(rendered, ""))


class Sharding:
    """Assigns services to stacks. Thread-safe."""

    def __init__(self, engine: Engine, *, capacity: int = CAPACITY) -> None:
        """`capacity` is the number of resources at which a stack is full; a smaller one than before moves nothing."""
        self._engine = engine
        self._capacity = capacity
        self._lock = threading.Lock()
        self._listing = threading.Lock()
        self._known: set[Stack] | None = None
        self._loaded: set[str] = set()
        self._places: dict[ServiceKey, Stack] = {}
        self._sizes: dict[ServiceKey, int] = {}
        self._held: Counter[Stack] = Counter()

    def assign_stack(self, key: ServiceKey, rendered: RenderedService | None = None) -> Stack:
        """Return the stack of a service; a new service is assigned to one, by the size of `rendered` if that is known.

        Reads the namespace's state at the first call. Raises EngineFailed when it cannot be read.
        """
        self.load(key.namespace)
        with self._lock:
            size = size_of(rendered) if rendered is not None else self._sizes.get(key, LEAST)
            return self._put(self._places.get(key) or self._with_room(key.namespace), key, size)

    def find(self, key: ServiceKey) -> Stack | None:
        """Return the stack of a service; None when no stack has it. Reads the state, and raises, as `assign_stack`."""
        self.load(key.namespace)
        with self._lock:
            return self._places.get(key)

    def is_loaded(self, namespace: str) -> bool:
        """Return whether the state of a namespace was read."""
        with self._lock:
            return namespace in self._loaded

    def services(self, namespace: str) -> frozenset[ServiceKey]:
        """The services that are placed in a namespace, as far as its state was read."""
        with self._lock:
            return frozenset(key for key in self._places if key.namespace == namespace)

    def namespaces(self) -> set[str]:
        """The namespaces that have a stack. Lists them, once. Raises EngineFailed, of a broken state too."""
        with self._listing:
            if self._known is None:
                self._known = self._engine.stacks()
            return {stack.namespace for stack in self._known}

    def stacks(self, namespace: str) -> list[Stack]:
        """The stacks of a namespace, as far as they were listed or are in use."""
        with self._lock:
            known = {*(self._known or ()), *self._held}
        return sorted(stack for stack in known if stack.namespace == namespace)

    def drop_stack(self, stack: Stack) -> None:
        """Drop a deleted stack."""
        with self._lock:
            self._held.pop(stack, None)
            if self._known is not None:
                self._known = self._known - {stack}

    def release(self, key: ServiceKey) -> None:
        """Drop a removed service."""
        with self._lock:
            stack = self._places.pop(key, None)
            if stack is not None:
                self._held[stack] -= self._sizes.pop(key)

    def load(self, namespace: str) -> None:
        """Read once from the state the stacks and sizes of a namespace's services. Raises EngineFailed."""
        if self.is_loaded(namespace):
            return
        # Without the lock: this may take a process of the CLI for each stack, and others read their namespaces.
        found = {stack: self._engine.sizes(stack) for stack in self._of(namespace)}
        with self._lock:
            if namespace in self._loaded:
                return
            self._loaded.add(namespace)
            for stack, sizes in found.items():
                for key, size in sizes.items():
                    if key not in self._places:
                        self._put(stack, key, size)

    def _of(self, namespace: str) -> Iterator[Stack]:
        """Return the stacks of a namespace. When a broken state fails the list of all, they are read one by one.

        A read repairs a broken state, which may leave an empty stack, so they are then listed again.
        """
        asked = -1
        if self._listed() is None:
            for asked in itertools.count():
                yield (stack := Stack(namespace, asked))
                if not self._engine.services(stack):
                    break
        yield from sorted(each for each in self._listed() or () if each.namespace == namespace and each.shard > asked)

    def _listed(self) -> set[Stack] | None:
        with self._listing:
            if self._known is None:
                with contextlib.suppress(StateUnreadable):
                    self._known = self._engine.stacks()
            return self._known

    def _with_room(self, namespace: str) -> Stack:
        stacks = (Stack(namespace, shard) for shard in itertools.count())
        return next(stack for stack in stacks if self._held[stack] < self._capacity)

    def _put(self, stack: Stack, key: ServiceKey, size: int) -> Stack:
        size = max(size, LEAST)
        self._held[stack] += size - self._sizes.get(key, 0)
        self._places[key], self._sizes[key] = stack, size
        return stack


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
        """Namespaces that wait to be read, or are being read, with their urgency."""
        self._queue: queue.PriorityQueue[tuple[int, int, str]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._told = 0
        """How many calls of `on_loaded` are under way."""
        self._stopped = False

    def load(self, namespace: str, *, awaited: bool = True) -> None:
        """Request to read a namespace; with `awaited`, before those without a request. Returns at once."""
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
        """Wait until every requested namespace was read or failed, or until `stop`."""
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
                    continue  # it was requested again with more urgency
                self._asked[namespace] = _READING
            error: EngineFailed | None = None
            try:
                self._sharding.load(namespace)
            except EngineFailed as failure:
                error = failure
            except Exception as defect:
                log.exception("Could not read the state because of a defect of Herdsman", namespace=namespace)
                error = EngineFailed(APPLY_FAILED, f"{type(defect).__name__}: {defect}")
            with self._lock:
                self._told += 1
                del self._asked[namespace]
            try:
                if not self._stopped:
                    self._on_loaded(namespace, error)
            except Exception:
                log.exception("Could not report the state of a namespace", namespace=namespace)
            finally:
                with self._lock:
                    self._told -= 1
                    self._lock.notify_all()
