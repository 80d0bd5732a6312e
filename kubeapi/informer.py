"""A cache of one kind that follows the API server: list once, then watch, list again when the server forgot.

Used by the loop and the host agent. Calls `kubeapi.client`. Each namespace that is asked for has a thread of its own,
which sleeps in a read while nothing happens.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Gone, KubeError, NotFound, Unreachable
from kubeapi.kinds import Kind
from kubeapi.watching import Watch

Json = dict[str, Any]
Objects = list[Json]
Key = tuple[str, str]
"""Namespace (empty for cluster-scoped kinds) and name."""

PAGE_SIZE = 500
WATCH_S = (240.0, 300.0)
"""A watch is asked to end after a random time in between, so that many informers do not re-dial together."""
INACTIVITY_S = 150.0
"""The server sends a bookmark each minute: after this much silence the connection is taken for dead."""
RELIST_POLL_S = 0.02
BACKOFF_BASE_S = 0.2
BACKOFF_CAP_S = 8.0

_log = logging.getLogger(__name__)


def drop_managed_fields(obj: Json) -> Json:
    """The default transform: managedFields are a third of an object and read by nobody here."""
    obj.get("metadata", {}).pop("managedFields", None)
    return obj


class Informer:
    """Keep the objects of one kind in memory and report each change as (old or None, new or None).

    `transform` may shrink an object before it is cached. `on_change` runs in the informer's thread, one call at a
    time for each namespace, after the cache was changed and without any lock held; what it raises is logged and
    the informer goes on. Cached objects are shared: whoever wants to change one copies it first. `on_missing` is
    called, in the informer's thread, each time that the server says that it serves no such kind.
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
        inactivity_s: float = INACTIVITY_S,
    ) -> None:
        self.kind = kind
        scopes: tuple[str | None, ...] = tuple(sorted(set(namespaces or ()))) if kind.namespaced else ()
        self._reflectors = [
            _Reflector(
                client,
                kind,
                scope,
                label_selector,
                field_selector,
                transform or drop_managed_fields,
                on_change,
                on_relist,
                on_missing,
                inactivity_s,
            )
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
        """The cached object, or None."""
        for reflector in self._reflectors:
            found = reflector.objects.get((namespace or "", name))
            if found is not None:
                return found
        return None

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


class _Reflector:
    """The list-and-watch of one collection, in one thread, which alone writes `objects`."""

    def __init__(
        self,
        client: KubeClient,
        kind: Kind,
        namespace: str | None,
        label_selector: str | None,
        field_selector: str | None,
        transform: Callable[[Json], Json],
        on_change: Callable[[Json | None, Json | None], None] | None,
        on_relist: Callable[[Kind], None] | None,
        on_missing: Callable[[Kind], None] | None,
        inactivity_s: float,
    ) -> None:
        self.objects: dict[Key, Json] = {}
        self.synced = threading.Event()
        self.relists_total = 0
        self.steady_since: float | None = None
        self._client = client
        self._kind = kind
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._transform = transform
        self._on_change = on_change
        self._on_relist = on_relist
        self._on_missing = on_missing
        self._inactivity_s = inactivity_s
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._version: str | None = None
        self._lists_asked = 0
        self.lists_done = 0
        """The number of the last call of `start_over` that a list has followed, and been told of."""
        self._nudge = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name=f"informer-{kind.plural}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def halt(self) -> None:
        self._stopping.set()
        self._nudge.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.stop()

    def start_over(self) -> int:
        """List before anything else; gives the number that `lists_done` will reach then."""
        with self._lock:
            self._lists_asked += 1
            number, watch = self._lists_asked, self._watch
        self._nudge.set()
        if watch is not None:
            watch.stop()
        return number

    def join(self) -> None:
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=10.0)

    def snapshot(self) -> list[tuple[Key, Json]]:
        with self._lock:
            return list(self.objects.items())

    def drain(self) -> None:
        with self._lock:
            gone, self.objects = self.objects, {}
        for old in gone.values():
            self._tell(old, None)

    def _run(self) -> None:
        while not self._stopping.is_set():
            retry_after_s = 0.0
            try:
                if self._version is None or self.lists_done < self._lists_asked:
                    self._relist()
                self._follow()
            except Gone:
                self.steady_since = None
                # The version fell out of the server's window. The list that follows finds what was missed.
                self._version = None
                self._failures += 1
            except KubeError as error:
                self.steady_since = None
                self._failures += 1
                if isinstance(error, NotFound) and self._on_missing is not None:
                    self._on_missing(self._kind)
                retry_after_s = (error.retry_after_s or 0.0) if isinstance(error, ApiError) else 0.0
                if not self._stopping.is_set():
                    # Silence alone is no failure: of a kind that never changed, some servers send not even bookmarks.
                    silent = isinstance(error, Unreachable) and error.timed_out
                    loud = (self._failures == 1 and not silent) or self._failures == 10 or self._failures % 100 == 0
                    extra = {"kind": self._kind.kind, "failures": self._failures, "error": str(error)}
                    _log.log(logging.WARNING if loud else logging.DEBUG, "Lost the watch", extra=extra)
            except Exception:
                # A transform that raises, an object without metadata. Whatever it is, the cache must go on.
                self.steady_since = None
                self._version = None
                self._failures += 1
                _log.exception("Failed to follow", extra={"kind": self._kind.kind})
            # Before every dial, also after a stream that ended well: a server that closes at once is not hammered.
            self._nudge.wait(max(retry_after_s, _delay_s(self._failures)))
            self._nudge.clear()

    def _relist(self) -> None:
        asked = self._lists_asked
        listed: dict[Key, Json] = {}
        token: str | None = None
        while True:
            page = self._client.list(
                self._kind,
                self._namespace,
                label_selector=self._label_selector,
                field_selector=self._field_selector,
                limit=PAGE_SIZE,
                continue_token=token,
            )
            for item in page["items"]:
                listed[_key(item)] = self._transform(item)
            token = page.get("metadata", {}).get("continue")
            if not token or self._stopping.is_set():
                break
        if self._stopping.is_set():
            return
        self.relists_total += 1
        if self._on_relist is not None:
            self._on_relist(self._kind)
        with self._lock:
            before, self.objects = self.objects, dict(listed)
        for key, new in listed.items():
            old = before.get(key)
            if old is None or _version(old) != _version(new):
                self._tell(old, new)
        for key, old in before.items():
            if key not in listed:
                self._tell(old, None)
        self._version = page["metadata"]["resourceVersion"]
        self.lists_done = asked
        self.synced.set()

    def _follow(self) -> None:
        watch = self._client.watch(
            self._kind,
            self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            resource_version=self._version,
            timeout_s=random.uniform(*WATCH_S),  # noqa: S311 - spreads load, keeps no secret
            inactivity_s=self._inactivity_s,
        )
        with self._lock:
            self._watch = watch
        opened = time.monotonic()
        if self.steady_since is None:
            self.steady_since = opened
        try:
            if self._stopping.is_set() or self.lists_done < self._lists_asked:
                watch.stop()
            for event, obj in watch:
                self._version = _version(obj)
                self._failures = 0
                if event != "BOOKMARK":
                    self._change(obj, deleted=event == "DELETED")
        finally:
            with self._lock:
                self._watch = None
            watch.stop()
        self._failures = 0 if time.monotonic() - opened > 1.0 else self._failures + 1

    def _change(self, obj: Json, *, deleted: bool) -> None:
        key = _key(obj)
        new = self._transform(obj)
        with self._lock:
            old = self.objects.get(key)
            if deleted:
                self.objects.pop(key, None)
            else:
                self.objects[key] = new
        if deleted:
            self._tell(old or new, None)
        elif old is None or _version(old) != _version(new):
            self._tell(old, new)

    def _tell(self, old: Json | None, new: Json | None) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(old, new)
        except Exception:
            _log.exception("Failed in a change handler", extra={"kind": self._kind.kind, "key": _key(new or old or {})})


def _delay_s(failures: int) -> float:
    ceiling_s = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2.0 ** min(failures, 10))
    return random.uniform(0.5, 1.0) * ceiling_s  # noqa: S311 - spreads load, keeps no secret


def _key(obj: Json) -> Key:
    metadata = obj.get("metadata") or {}
    return (metadata.get("namespace") or "", metadata.get("name") or "")


def _version(obj: Json) -> str:
    return str((obj.get("metadata") or {}).get("resourceVersion") or "")
