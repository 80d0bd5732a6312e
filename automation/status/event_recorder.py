"""Records Kubernetes Events: short notes about an object that `kubectl describe` shows.

The controller calls it from any thread. One thread of the recorder writes them by `kubeapi`. Events are not essential:
they never block the loop, and an Event that cannot be written is dropped and counted.
"""

from __future__ import annotations

import logging
import queue
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from automation.workqueue.precedence import Precedence
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import EVENTS

EventType = Literal["Normal", "Warning"]

SERIES_S = 600.0
"""Seconds in which the same note about the same object raises the count of the first one."""
BURST = 20
REFILL_S = 30.0
"""An object may have BURST writes at once, and one more every REFILL_S seconds."""
QUEUE_SIZE = 4000
MEMORY = 4096
"""How many notes and objects are remembered; the least recently used is dropped first."""
MESSAGE_LIMIT = 1024
"""The API's limit, in bytes."""

_log = logging.getLogger(__name__)


@dataclass
class _Series:
    namespace: str
    name: str
    count: int
    at_s: float


@dataclass
class _Allowance:
    tokens: float
    at_s: float


@dataclass(frozen=True)
class _Note:
    reference: Json
    type: EventType
    reason: str
    message: str
    at_s: float
    """When it was recorded, by the recorder's clock."""
    asked_s: float
    """When it was recorded, by the monotonic clock."""

    @property
    def key(self) -> tuple[str, ...]:
        ref = self.reference
        who = ref.get("uid") or f"{ref['kind']}/{ref.get('namespace', '')}/{ref.get('name', '')}"
        return (str(who), self.type, self.reason, self.message)


class EventRecorder:
    """Writes Events about objects. Repeated ones raise a count, and the writes of each object are limited."""

    def __init__(
        self,
        client: KubeClient,
        component: str = "herdsman",
        *,
        clock: Callable[[], float] = time.time,
        on_dropped: Callable[[], None] | None = None,
        precedence: Precedence | None = None,
    ) -> None:
        """`on_dropped` is called for each Event that is not written. `precedence` may delay writes."""
        self._client = client
        self._component = component
        self._instance = socket.gethostname()
        self._clock = clock
        self._on_dropped = on_dropped
        self._precedence = precedence or Precedence()
        self._queue: queue.Queue[_Note | None] = queue.Queue(QUEUE_SIZE)
        self._series: OrderedDict[tuple[str, ...], _Series] = OrderedDict()
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the thread that writes. `record` starts it too. Idempotent."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="events", daemon=True)
                self._thread.start()

    def record(self, obj: Json, *, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the API's word
        """Record `reason` (CamelCase) and `message` about an object, a dict as the API returns it. Returns at once."""
        metadata = obj.get("metadata") or {}
        reference = {
            "apiVersion": obj.get("apiVersion"),
            "kind": obj.get("kind"),
            "namespace": metadata.get("namespace"),
            "name": metadata.get("name"),
            "uid": metadata.get("uid"),
            "resourceVersion": metadata.get("resourceVersion"),
        }
        about = {key: value for key, value in reference.items() if value}
        note = _Note(about, type, reason, _cut(message), self._clock(), self._precedence.now())
        try:
            self._queue.put_nowait(note)
        except queue.Full:
            self._dropped()
            return
        self.start()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was recorded is written or dropped; False when the time ran out first."""
        deadline = time.monotonic() + timeout_s
        with self._queue.all_tasks_done:
            while self._queue.unfinished_tasks:
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return False
                self._queue.all_tasks_done.wait(remaining_s)
        return True

    def stop(self, timeout_s: float = 2.0) -> None:
        """Write what is left, for at most `timeout_s` seconds, and end the thread."""
        self._precedence.end()
        self.flush(timeout_s)
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join(timeout=timeout_s)

    def _run(self) -> None:
        while True:
            note = self._queue.get()
            try:
                if note is None:
                    return
                if self._queue.qsize() < QUEUE_SIZE // 2:
                    self._precedence.give_way(note.asked_s)
                self._write(note)
            except KubeError as error:
                _log.debug("Failed to write an Event", extra={"error": str(error)})
                self._dropped()
            except Exception:
                _log.exception("Failed to write an Event")
                self._dropped()
            finally:
                self._queue.task_done()

    def _write(self, note: _Note) -> None:
        now_s = note.at_s
        series = self._series.get(note.key)
        if series is not None and now_s - series.at_s > SERIES_S:
            series = None
        if series is not None:
            # Counted even when it is not written, so that the next write has the right number.
            series.count += 1
            series.at_s = now_s
            self._series.move_to_end(note.key)
        if not self._allowed(note.key[0], now_s):
            self._dropped()
            return
        if series is not None:
            try:
                body = {"count": series.count, "lastTimestamp": _stamp(now_s)}
                self._client.patch(EVENTS, series.namespace, series.name, body)
                return
            except NotFound:
                pass  # Events live for an hour; this one has expired, so a new series begins
        namespace = str(note.reference.get("namespace") or "default")
        name = f"{note.reference.get('name', '')[:200]}.{secrets.token_hex(8)}"
        stamp = _stamp(now_s)
        event: Json = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": note.reference,
            "type": note.type,
            "reason": note.reason,
            "message": note.message,
            "count": 1,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "source": {"component": self._component, "host": self._instance},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }
        self._client.create(EVENTS, namespace, event)
        self._series[note.key] = _Series(namespace, name, 1, now_s)
        while len(self._series) > MEMORY:
            self._series.popitem(last=False)

    def _allowed(self, who: str, now_s: float) -> bool:
        allowance = self._allowances.setdefault(who, _Allowance(float(BURST), now_s))
        self._allowances.move_to_end(who)
        while len(self._allowances) > MEMORY:
            self._allowances.popitem(last=False)
        allowance.tokens = min(float(BURST), allowance.tokens + max(0.0, now_s - allowance.at_s) / REFILL_S)
        allowance.at_s = now_s
        if allowance.tokens < 1.0:
            return False
        allowance.tokens -= 1.0
        return True

    def _dropped(self) -> None:
        if self._on_dropped is not None:
            self._on_dropped()


def _cut(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= MESSAGE_LIMIT:
        return message
    return encoded[: MESSAGE_LIMIT - 3].decode(errors="ignore") + "..."


def _stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
