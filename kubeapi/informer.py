"""A cache of one kind that follows the API server: list once, then watch, list again when the server forgot.

Used by the loop and the host agent. Calls `kubeapi.reflector`, which lists and watches. Each namespace that is asked
for has a thread of its own, which sleeps in a read while nothing happens.
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
"""The server sends a bookmark each minute: after this much silence the connection is taken for dead."""
RELIST_POLL_S = 0.02
HANGS_AFTER_S = 120.0
"""A handler only notes a change; a call that lasts so long never returns."""
FAILS_AFTER_S = 60.0
"""A handler that raised is called again; one that raises for so long needs a restart, or a fixed program."""


@dataclass(frozen=True)
class Fault:
    """Something that is wrong with an informer, in words that name the kind and the object."""

    what: str
    restart_helps: bool
    """False for a single object that a new process would fail on as well."""


def drop_managed_fields(obj: Json) -> Json:
    """The default transform: managedFields are a third of an object and read by nobody here."""
    obj.get("metadata", {}).pop("managedFields", None)
    return obj


class Informer:
    """Keep the objects of one kind in memory and report each change as (old or None, new or None).

    `transform` may shrink an object before it is cached. Of an object that it raises on, the last version that could
    be read stays cached; one that never could is left out of `list`, and `get` raises Unreadable.

    `on_change` runs in the informer's thread, one call at a time for each namespace, after the cache was changed. When
    it raises, the informer goes on, and repeats the call with back-off, in another thread, until it succeeds. Cached
    objects are shared: whoever wants to change one copies it first. `on_missing` is called, in the informer's thread,
    each time that the server says that it serves no such kind; `on_refused` when it answers with an error, and returns
    the seconds to wait at least; `on_failure` with `transform` or `handler` when that raised.
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
        """Start following; returns at once."""
        for reflector in self._reflectors:
            reflector.start()

    def stop(self) -> None:
        """Stop following and wait for the threads. The cache stays readable."""
        for reflector in self._reflectors:
            reflector.halt()
        for reflector in self._reflectors:
            reflector.join()

    def drain(self) -> None:
        """Empty the cache of an informer that was stopped, and report each object as deleted."""
        for reflector in self._reflectors:
            reflector.drain()

    @property
    def has_synced(self) -> bool:
        """Whether everything was listed once and `on_change` has been told of all of it."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    def wait_synced(self, timeout_s: float) -> bool:
        """Wait for `has_synced`; False when the time ran out first."""
        deadline = time.monotonic() + timeout_s
        return all(r.synced.wait(max(0.0, deadline - time.monotonic())) for r in self._reflectors)

    @property
    def steady_since(self) -> float | None:
        """Since when (`time.monotonic`) nothing was missed: no watch broke, no list failed. None: it is broken now.

        A watch that ends as it was asked to, and is opened again at once, breaks nothing.
        """
        since = [reflector.steady_since for reflector in self._reflectors]
        return None if None in since else max(each for each in since if each is not None)

    def relist(self, timeout_s: float) -> bool:
        """List everything again now, whatever the watch seems to be doing; False when the time ran out first.

        For a reader who must not act on a cache that fell behind, such as one whose connection may be dead.
        """
        deadline = time.monotonic() + timeout_s
        asked = [(reflector, reflector.start_over()) for reflector in self._reflectors]
        while any(reflector.lists_done < number for reflector, number in asked):
            if time.monotonic() > deadline:
                return False
            time.sleep(RELIST_POLL_S)
        return True

    def get(self, namespace: str | None, name: str) -> Json | None:
        """The cached object, or None. Raises Unreadable for an object that exists and could never be read."""
        key = (namespace or "", name)
        for reflector in self._reflectors:
            found = reflector.objects.get(key)
            if found is not None:
                return found
            if (why := reflector.unreadable.get(key)) is not None:
                raise Unreadable(f"{self.kind.kind} {'/'.join(filter(None, key))} cannot be read: {why}")
        return None

    def faults(self) -> Iterator[Fault]:
        """Tell what is wrong: a thread that died, a handler that hangs or raises, objects that cannot be read."""
        for reflector in self._reflectors:
            if reflector.has_died():
                yield Fault(f"the thread that follows {self.kind.plural} has ended", restart_helps=True)
            if (calling := reflector.calling()) is not None and calling[1] > HANGS_AFTER_S:
                at, for_s = self._named(calling[0]), calling[1]
                yield Fault(f"the handler of {at} has not returned for {for_s:.0f} s", restart_helps=True)
            for each in reflector.failing():
                # A new process fails on an object that this one failed on from its start.
                helps = not each.during_first_list and each.for_s > FAILS_AFTER_S
                yield Fault(f"the handler of {self._named(each.key)} raises {each.why}", restart_helps=helps)
            for key, why in list(reflector.unreadable.items()):
                yield Fault(f"{self._named(key)} cannot be read: {why}", restart_helps=False)

    def _named(self, key: tuple[str, str]) -> str:
        return f"{self.kind.kind} {'/'.join(filter(None, key))}"

    def list(self, namespace: str | None = None) -> Objects:
        """All cached objects, or those of one namespace, in no order."""
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
        """How many times a whole collection was listed, the first included."""
        return sum(reflector.relists_total for reflector in self._reflectors)
