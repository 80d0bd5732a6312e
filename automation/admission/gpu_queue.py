"""The services that wait for a GPU, in the order in which they should get one.

`cluster_cache` adds each service whose pod the scheduler could not place for lack of an extended resource or a device
claim. `observe` reads a service's place. There is one queue for each resource. Its order is that of the scheduler's own
queue: by the pods' effective priority, then by the age of the service.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from typing import NamedTuple

from automation.workqueue.debounce import Debounce, start_timer
from program.desired.facts import QueuePosition
from program.desired.keys import ServiceKey

TELL_EVERY_S = 1.0
"""New places at the front are reported together, at most this often."""
FRONT = 20
"""The number of services whose places are reported soon. A departure changes every place, and each report is a status
write."""
TELL_REST_EVERY_S = 30.0
"""New places behind the front are reported together, at most this often."""
DEVICE_CLAIMS = "resourceclaims.resource.k8s.io"
"""The resource that pods with device claims wait for (dynamic resource allocation)."""

_INSUFFICIENT = re.compile(r"Insufficient ([A-Za-z0-9][A-Za-z0-9./_-]*[A-Za-z0-9])")
_UNALLOCATED = ("cannot allocate all claims", "resourceclaim", "ResourceClaim")


class Waiting(NamedTuple):
    """One service that waits."""

    resource: str
    priority: int
    """The pods' effective priority: the value of their PriorityClass."""
    created: str
    """creationTimestamp of the custom resource."""


def waited_resource(unschedulable: str, requests: Mapping[str, str], *, claims: bool = False) -> str:
    """Return the resource that a pod waits for, by the scheduler's message; empty when no accelerator is missing.

    Every extended resource that the pod requests counts: of all vendors, MIG profiles, custom names. `claims` is
    whether the pod has device claims.
    """
    for resource in _INSUFFICIENT.findall(unschedulable):
        # Extended resources have a domain; cpu, memory, ephemeral-storage and pods have none.
        if "/" in resource and resource in requests:
            return str(resource)
    if claims and any(words in unschedulable for words in _UNALLOCATED):
        return DEVICE_CLAIMS
    return ""


class _Entry(NamedTuple):
    behind: int
    """The negative priority, so that the natural order of entries is that of the queue."""
    created: str
    namespace: str
    name: str
    key: ServiceKey


class GpuQueue:
    """The services that wait, by resource. Thread-safe; a change costs a search in a sorted list.

    `place` returns the last reported place. Places that are reported together agree with each other and on the length.
    `on_moved` is called with each service whose place or whose queue's length changed: for the first `FRONT` of a queue
    at most every `TELL_EVERY_S`, for the others every `TELL_REST_EVERY_S`. With N services waiting, D departures a
    second cost at most `FRONT` passes a second, and N in half a minute.
    """

    def __init__(
        self,
        *,
        on_moved: Callable[[ServiceKey], None] = lambda _: None,
        later: Callable[[float, Callable[[], None]], None] = start_timer,
    ) -> None:
        self._on_moved = on_moved
        self._front_report = Debounce(self.report_front, delay_s=TELL_EVERY_S, later=later)
        self._rest_report = Debounce(self.report_rest, delay_s=TELL_REST_EVERY_S, later=later)
        self._lock = threading.Lock()
        self._members: dict[ServiceKey, Waiting] = {}
        self._queues: dict[str, list[_Entry]] = {}
        self._changed: set[str] = set()
        """Resources whose queue changed since the last report of the front."""
        self._shown: dict[ServiceKey, QueuePosition] = {}

    def update(self, key: ServiceKey, waiting: Waiting | None) -> bool:
        """Record that a service waits, or with None that it does not. Return whether that changed anything."""
        with self._lock:
            before = self._members.get(key)
            if before == waiting:
                return False
            if before is not None:
                queue = self._queues[before.resource]
                at = bisect_left(queue, _entry(key, before))
                del queue[at]
                del self._members[key]
                self._shown.pop(key, None)
                self._changed.add(before.resource)
                if not queue:
                    del self._queues[before.resource]
            if waiting is not None:
                self._members[key] = waiting
                queue = self._queues.setdefault(waiting.resource, [])
                insort(queue, _entry(key, waiting))
                self._changed.add(waiting.resource)
        self._front_report.trigger()
        return True

    def place(self, key: ServiceKey) -> QueuePosition | None:
        """Return the last reported place of a service; None when it waits for no GPU."""
        with self._lock:
            waiting = self._members.get(key)
            if waiting is None:
                return None
            if (shown := self._shown.get(key)) is None:
                queue = self._queues[waiting.resource]
                shown = self._shown[key] = _place(queue, bisect_left(queue, _entry(key, waiting)))
            return shown

    def waiting(self) -> dict[ServiceKey, Waiting]:
        """Return all services that wait, in no order."""
        with self._lock:
            return dict(self._members)

    def report_front(self) -> None:
        """Report each service at the front whose place or queue length differs from its last report."""
        with self._lock:
            moved = [key for name in self._changed for key in self._show(name, slice(FRONT))]
            rest = any(len(self._queues.get(name, ())) > FRONT for name in self._changed)
            self._changed.clear()
        if rest:
            self._rest_report.trigger()
        for key in moved:
            self._on_moved(key)

    def report_rest(self) -> None:
        """Report each service whose place or queue length differs from its last report."""
        with self._lock:
            moved = [key for name in self._queues for key in self._show(name, slice(None))]
        for key in moved:
            self._on_moved(key)

    def _show(self, resource: str, part: slice) -> list[ServiceKey]:
        """Record the current places of a part of a queue, and return the services whose place changed."""
        queue = self._queues.get(resource, [])
        moved = []
        for at in range(*part.indices(len(queue))):
            key, place = queue[at].key, _place(queue, at)
            # A service without a reported place reads its place in its first pass.
            if key in self._shown and self._shown[key] != place:
                moved.append(key)
                self._shown[key] = place
        return moved


def _place(queue: list[_Entry], at: int) -> QueuePosition:
    ahead = queue[at - 1] if at else None
    return QueuePosition(position=at + 1, length=len(queue), ahead=f"{ahead.namespace}/{ahead.name}" if ahead else "")


def _entry(key: ServiceKey, waiting: Waiting) -> _Entry:
    return _Entry(-waiting.priority, waiting.created, key.namespace, key.name, key)
