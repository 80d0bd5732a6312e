"""Decides which stack of a namespace holds a service. Called by `batches`.

A run reads, reports and writes every object of its stack, at up to half a millisecond of CPU each, so a change
would get slower with its namespace. A stack therefore takes a limited number of services, and the next ones go to
another. A service stays where it is: moved to another stack, the old one would delete its objects.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

from automation.engine.port import Engine, Stack, StateUnreadable
from program.desired.keys import ServiceKey

CAPACITY = 64


class Sharding:
    """Places services, and remembers where. Thread-safe."""

    def __init__(self, engine: Engine, *, capacity: int = CAPACITY) -> None:
        """`capacity` is the number of services of one stack; a smaller one than before moves nothing."""
        self._engine = engine
        self._capacity = capacity
        self._lock = threading.Lock()
        self._known: set[Stack] | None = None
        self._stacks: dict[str, dict[Stack, set[ServiceKey]]] = {}
        self._places: dict[ServiceKey, Stack] = {}

    def stack_of(self, key: ServiceKey) -> Stack:
        """Tell where the service is; place it where it is new. Raises EngineFailed when the state cannot be read."""
        with self._lock:
            stacks = self._load(key.namespace)
            if key not in self._places:
                self._place(key, stacks)
            return self._places[key]

    def find(self, key: ServiceKey) -> Stack | None:
        """Tell where the service is; None when no stack has it."""
        with self._lock:
            self._load(key.namespace)
            return self._places.get(key)

    def release(self, key: ServiceKey) -> None:
        """Forget a service that was removed: its place is free for another."""
        with self._lock:
            stack = self._places.pop(key, None)
            if stack is not None:
                self._stacks[key.namespace][stack].discard(key)

    def _load(self, namespace: str) -> dict[Stack, set[ServiceKey]]:
        """Learn once from the state where the services of a namespace are."""
        if namespace in self._stacks:
            return self._stacks[namespace]
        stacks = {stack: set(self._engine.services(stack)) for stack in self._of(namespace)}
        self._stacks[namespace] = stacks
        for stack, keys in stacks.items():
            for key in keys:
                self._places.setdefault(key, stack)
        return stacks

    def _of(self, namespace: str) -> Iterator[Stack]:
        """The stacks of a namespace. One broken state hides the list of all; then they are asked for one by one."""
        try:
            self._known = known = self._engine.stacks() if self._known is None else self._known
        except StateUnreadable:
            for shard in itertools.count():
                yield (stack := Stack(namespace, shard))
                if not self._engine.services(stack):
                    return
        else:
            yield from sorted(stack for stack in known if stack.namespace == namespace)

    def _place(self, key: ServiceKey, stacks: dict[Stack, set[ServiceKey]]) -> None:
        shard = 0
        while len(stacks.setdefault(Stack(key.namespace, shard), set())) >= self._capacity:
            shard += 1
        stack = Stack(key.namespace, shard)
        stacks[stack].add(key)
        self._places[key] = stack
