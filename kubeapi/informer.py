"""A cache of one kind: it lists once, then watches, and lists again when the server no longer has the version.

Used by the loop and the host agent. Calls `kubeapi.reflector`, which lists and watches. Each requested namespace has a
thread, which blocks in a read while nothing happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Unreadable
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from kubeapi.reflector import Hooks, Reflector

Objects = list[Json]

INACTIVITY_S = 150.0
"""Seconds of silence after which a connection counts as dead. The server sends a bookmark each minute."""
RELIST_POLL_S = 0.02
HANGS_AFTER_S = 120.0
"""Seconds after which a handler's call counts as hung. Handlers only record a change and return."""
FAILS_AFTER_S = 60.0
"""Seconds of repeated failures of a handler, after which a restart may help."""


@dataclass(frozen=True)
class Fault:
    """A fault of an informer. `what` names the kind and the object."""

    what: str
    restart_helps: bool
    """False for a single object for which a new process would fail too."""


def drop_managed_fields(obj: Json) -> Json:
    """The default transform. It removes managedFields, a third of an object, which no reader of the cache needs."""
    obj.get("metadata", {}).pop("managedFields", None)
    return obj


class Informer:
    """Keep the objects of one kind in memory and report each change as (old or None, new or None).

    `transform` may shrink an object before it is cached. If it raises, the last readable version of the object stays
    cached. If there is none, `list` leaves the object out and `get` raises Unreadable.

    `on_change` runs in the informer's thread after the cache changed, one call at a time for each namespace. If it
    raises, the informer continues, and another thread repeats the call with back-off until it succeeds. Cached objects
    are shared: a caller that changes one must copy it first.

    The other hooks: `on_relist` is called after each complete list, when its objects are in the cache and `on_change`
    was called for them. `on_missing` is called each time the server reports that it does not serve the kind.
    `on_refused` is called when the server answers with an error, and returns the least seconds to wait. `on_failure` is
    called with `transform` or `handler` when that raised. The first three run in the informer's thread.
    """

    def __init__(
        self,
        client: KubeClient,
        kind: Kind,
        *,
        namespaces: Iterable[str] | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        transform: Callable[[Json], Json] | None = None,
        on_change: Callable[[Json | None, Json | None], None] | None = None,
        on_relist: Callable[[Kind], None] | None = None,
        on_missing: Callable[[Kind], None] | None = None,
        on_failure: Callable[[Kind, str], None] | None = None,
        on_refused: Callable[[ApiError], float] | None = None,
        inactivity_s: float = INACTIVITY_S,
    ) -> None:
        self.kind = kind
        scopes: tuple[str | None, ...] = tuple(sorted(set(namespaces or ()))) if kind.namespaced else ()
        hooks = Hooks(transform or drop_managed_fields, on_change, on_relist, on_missing, on_failure, on_refused)
        self._reflectors = [
            Reflector(client, kind, scope, label_selector, field_selector, hooks, inactivity_s)
            for scope in scopes or (None,)
        ]

    def start(self) -> None:
        """Start to follow the collection; returns at once."""
        for reflector in self._reflectors:
            reflector.start()

    def stop(self) -> None:
        """Stop and wait for the threads. The cache stays readable."""
        for reflector in self._reflectors:
            reflector.halt()
        for reflector in self._reflectors:
            reflector.join()

    def drain(self) -> None:
        """Empty the cache of a stopped informer, and report each object as deleted."""
        for reflector in self._reflectors:
            reflector.drain()

    @property
    def has_synced(self) -> bool:
        """Whether all objects were listed once and `on_change` was called for them."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    def wait_synced(self, timeout_s: float) -> bool:
        """Wait for `has_synced`; False if the time ran out first."""
        deadline = time.monotonic() + timeout_s
        return all(r.synced.wait(max(0.0, deadline - time.monotonic())) for r in self._reflectors)

    @property
    def steady_since(self) -> float | None:
        """The time (`time.monotonic`) since when no watch broke and no list failed. None: one is broken now.

        A watch that ends at its timeout and is opened again at once does not count as broken.
        """
        since = [reflector.steady_since for reflector in self._reflectors]
        return None if None in since else max(each for each in since if each is not None)

    def relist(self, timeout_s: float) -> bool:
        """List all objects again now, whatever the state of the watch; False if the time ran out first.

        For callers that must not act on a stale cache, for example when the connection may be dead.
        """
        deadline = time.monotonic() + timeout_s
        asked = [(reflector, reflector.start_over()) for reflector in self._reflectors]
        while any(reflector.lists_done < number for reflector, number in asked):
            if time.monotonic() > deadline:
                return False
            time.sleep(RELIST_POLL_S)
        return True

    def get(self, namespace: str | None, name: str) -> Json | None:
        """Return the cached object, or None. Raises Unreadable for an object that exists and could never be read."""
        key = (namespace or "", name)
        for reflector in self._reflectors:
            found = reflector.objects.get(key)
            if found is not None:
                return found
            if (why := reflector.unreadable.get(key)) is not None:
                raise Unreadable(f"{self.kind.kind} {'/'.join(filter(None, key))} cannot be read: {why}")
        return None

    def faults(self) -> Iterator[Fault]:
        """Yield the faults: a thread that died, a handler that hangs or raises, objects that cannot be read."""
        for reflector in self._reflectors:
            if reflector.has_died():
                yield Fault(f"the thread that follows {self.kind.plural} has ended", restart_helps=True)
            if (calling := reflector.calling()) is not None and calling[1] > HANGS_AFTER_S:
                at, for_s = self._named(calling[0]), calling[1]
                yield Fault(f"the handler of {at} has not returned for {for_s:.0f} s", restart_helps=True)
            for each in reflector.failing():
                # If an object failed during the first list of this process, a new process would fail on it too.
                helps = not each.during_first_list and each.for_s > FAILS_AFTER_S
                yield Fault(f"the handler of {self._named(each.key)} raises {each.why}", restart_helps=helps)
            for key, why in list(reflector.unreadable.items()):
                yield Fault(f"{self._named(key)} cannot be read: {why}", restart_helps=False)

    def _named(self, key: tuple[str, str]) -> str:
        return f"{self.kind.kind} {'/'.join(filter(None, key))}"

    def list(self, namespace: str | None = None) -> Objects:
        """Return all cached objects, or those of one namespace, in no order."""
        return [
            obj
            for reflector in self._reflectors
            for key, obj in reflector.snapshot()
            if namespace is None or key[0] == namespace
        ]

    def __len__(self) -> int:
        return sum(len(reflector.objects) for reflector in self._reflectors)

    @property
    def relists_total(self) -> int:
        """The number of complete lists, including the first."""
        return sum(reflector.relists_total for reflector in self._reflectors)
