"""The list and watch of one collection, in one thread, which is the only writer of the cached objects.

Made by `kubeapi.informer`, one for each namespace. Calls `kubeapi.client`, and the change handler through
`kubeapi.deliveries`.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kubeapi.client import KubeClient, Watch
from kubeapi.deliveries import Deliveries, FailedDelivery, Key, key_of
from kubeapi.errors import ApiError, Gone, KubeError, NotFound, Unreachable
from kubeapi.json_types import Json
from kubeapi.kinds import Kind

PAGE_SIZE = 500
WATCH_S = (240.0, 300.0)
"""Bounds in seconds of a watch's random timeout, so that many informers do not connect again at the same time."""
BACKOFF_BASE_S = 0.2
BACKOFF_CAP_S = 8.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hooks:
    """The functions that an informer calls. `on_failure` gets the kind and the name of the hook that raised.

    The name is `transform` or `handler`.
    """

    transform: Callable[[Json], Json]
    on_change: Callable[[Json | None, Json | None], None] | None = None
    on_relist: Callable[[Kind], None] | None = None
    on_missing: Callable[[Kind], None] | None = None
    on_failure: Callable[[Kind, str], None] | None = None
    on_refused: Callable[[ApiError], float] | None = None


class Reflector:
    """Follows one collection. `objects` is its cache."""

    def __init__(
        self,
        client: KubeClient,
        kind: Kind,
        namespace: str | None,
        label_selector: str | None,
        field_selector: str | None,
        hooks: Hooks,
        inactivity_s: float,
    ) -> None:
        self.objects: dict[Key, Json] = {}
        self.unreadable: dict[Key, str] = {}
        """Objects for which the transform raised, with the error."""
        self.synced = threading.Event()
        self.relists_total = 0
        self.steady_since: float | None = None
        self._client = client
        self._kind = kind
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._hooks = hooks
        self._deliveries = (
            Deliveries(
                kind,
                hooks.on_change,
                current=self.objects_get,
                first_list_done=self.synced.is_set,
                on_failure=lambda: self._failed("handler"),
            )
            if hooks.on_change is not None
            else None
        )
        self._inactivity_s = inactivity_s
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._version: str | None = None
        self._lists_asked = 0
        self.lists_done = 0
        """The number of the last call of `start_over` after which a list was completed and delivered."""
        self._nudge = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name=f"informer-{kind.plural}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def halt(self) -> None:
        self._stopping.set()
        self._nudge.set()
        if self._deliveries is not None:
            self._deliveries.stop()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.stop()

    def start_over(self) -> int:
        """Make a new list the next step; returns the number that `lists_done` then reaches."""
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

    def objects_get(self, key: Key) -> Json | None:
        """Return the cached object, or None."""
        return self.objects.get(key)

    def has_died(self) -> bool:
        """Return whether the thread ended without `halt`."""
        return self._thread.ident is not None and not self._thread.is_alive() and not self._stopping.is_set()

    def failing(self) -> list[FailedDelivery]:
        """Return the objects for whose last change the handler raised."""
        return self._deliveries.failing() if self._deliveries is not None else []

    def calling(self) -> tuple[Key, float] | None:
        """Return the object of the handler's current call, and the call's duration in seconds; None between calls."""
        return self._deliveries.calling() if self._deliveries is not None else None

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
                # The server no longer has this version. The next list finds the missed changes.
                self._version = None
                self._failures += 1
            except KubeError as error:
                self.steady_since = None
                self._failures += 1
                expected = False
                if isinstance(error, NotFound) and self._hooks.on_missing is not None:
                    self._hooks.on_missing(self._kind)
                    expected = True
                retry_after_s = (error.retry_after_s or 0.0) if isinstance(error, ApiError) else 0.0
                if isinstance(error, ApiError) and self._hooks.on_refused is not None:
                    retry_after_s = max(retry_after_s, self._hooks.on_refused(error))
                if not self._stopping.is_set():
                    # Silence alone is no failure: for a kind that never changes, some servers send no bookmarks.
                    silent = isinstance(error, Unreachable) and error.timed_out
                    often = self._failures == 10 or self._failures % 100 == 0
                    loud = not expected and ((self._failures == 1 and not silent) or often)
                    extra = {"kind": self._kind.kind, "failures": self._failures, "error": str(error)}
                    _log.log(logging.WARNING if loud else logging.DEBUG, "Lost the watch", extra=extra)
            except Exception:
                # After any error, the cache must continue.
                self.steady_since = None
                self._version = None
                self._failures += 1
                _log.exception("Failed to follow", extra={"kind": self._kind.kind})
            # Wait before every connection, so that a server which closes streams at once is not overloaded.
            self._nudge.wait(max(retry_after_s, _delay_s(self._failures)))
            self._nudge.clear()

    def _relist(self) -> None:
        asked = self._lists_asked
        listed: dict[Key, Json] = {}
        seen: set[Key] = set()
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
                seen.add(key_of(item))
                if (kept := self._read(item)) is not None:
                    listed[key_of(item)] = kept
            token = page.get("metadata", {}).get("continue")
            if not token or self._stopping.is_set():
                break
        if self._stopping.is_set():
            return
        self.relists_total += 1
        for key in self.unreadable.keys() - seen:
            self.unreadable.pop(key, None)
        with self._lock:
            before, self.objects = self.objects, dict(listed)
        for key, new in listed.items():
            old = before.get(key)
            if old is None or _version(old) != _version(new):
                self._tell(old, new)
        for key, old in before.items():
            if key not in listed:
                self._tell(old, None)
        if self._hooks.on_relist is not None:
            self._hooks.on_relist(self._kind)
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
        key = key_of(obj)
        if deleted:
            with self._lock:
                old = self.objects.pop(key, None)
            if old is None and key not in self.unreadable:
                old = self._read(obj)
            self.unreadable.pop(key, None)
            if old is not None:
                self._tell(old, None)
            return
        if (new := self._read(obj)) is None:
            return
        with self._lock:
            old = self.objects.get(key)
            self.objects[key] = new
        if old is None or _version(old) != _version(new):
            self._tell(old, new)

    def _read(self, obj: Json) -> Json | None:
        """Return the transformed object; if the transform raises, the cached version, or None.

        An error affects this object only. Its last readable version stays cached, since an object that vanished from
        the cache would count as deleted.
        """
        key = key_of(obj)
        try:
            kept = self._hooks.transform(obj)
        except Exception as error:
            known = key in self.unreadable
            self.unreadable[key] = f"{type(error).__name__}: {error}"
            if not known:
                _log.exception("Could not read an object", extra={"kind": self._kind.kind, "key": key})
            self._failed("transform")
            return self.objects.get(key)
        self.unreadable.pop(key, None)
        return kept

    def _tell(self, old: Json | None, new: Json | None) -> None:
        if self._deliveries is not None:
            self._deliveries.deliver(old, new)

    def _failed(self, what: str) -> None:
        if self._hooks.on_failure is not None:
            self._hooks.on_failure(self._kind, what)


def _delay_s(failures: int) -> float:
    ceiling_s = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2.0 ** min(failures, 10))
    return random.uniform(0.5, 1.0) * ceiling_s  # noqa: S311 - spreads load, keeps no secret


def _version(obj: Json) -> str:
    return str((obj.get("metadata") or {}).get("resourceVersion") or "")
