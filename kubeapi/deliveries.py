"""Calls the change handler of an informer, one call at a time, and repeats failed calls until they succeed.

Made by `kubeapi.reflector`. The handler's own state (an index, a queue) follows the cache only if no call is lost. So a
call that raised is repeated with the object's state at that time.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kubeapi.json_types import Json
from kubeapi.kinds import Kind

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped kinds) and name."""
Handler = Callable[[Json | None, Json | None], None]

RETRY_BASE_S = 1.0
RETRY_CAP_S = 60.0

_log = logging.getLogger(__name__)


@dataclass
class _Failed:
    """A change for which the handler raised."""

    told: Json | None
    """The object of the handler's last successful call; None if there was none."""
    since: float
    during_first_list: bool
    why: str = ""
    attempts: int = 0


@dataclass(frozen=True)
class FailedDelivery:
    """An object whose last change the handler failed to process, as `Deliveries.failing` lists it."""

    key: Key
    why: str
    for_s: float
    during_first_list: bool
    """Whether the handler first raised during the first list."""


class Deliveries:
    """Calls a handler for changes. `current` returns the cached object, or None.

    `on_failure` is called each time the handler raises.
    """

    def __init__(
        self,
        kind: Kind,
        handler: Handler,
        *,
        current: Callable[[Key], Json | None],
        first_list_done: Callable[[], bool],
        on_failure: Callable[[], None],
        retry_base_s: float = RETRY_BASE_S,
    ) -> None:
        self._kind = kind
        self._handler = handler
        self._current = current
        self._first_list_done = first_list_done
        self._on_failure = on_failure
        self._retry_base_s = retry_base_s
        self._lock = threading.RLock()
        self._failed: dict[Key, _Failed] = {}
        self._calling: tuple[Key, float] | None = None
        self._timer: threading.Timer | None = None
        self._stopped = False

    def deliver(self, old: Json | None, new: Json | None) -> None:
        """Call the handler for one change. If it raises, the exception is logged and the call is repeated later."""
        key = key_of(new or old or {})
        with self._lock:
            if (failed := self._failed.get(key)) is not None:
                # The handler's version is older than the cached one, or it has none.
                old = failed.told if failed.told is not None or new is not None else old
            self._call(key, old, new)

    def stop(self) -> None:
        """Stop the repetitions. Does not wait for a call in progress."""
        self._stopped = True
        timer = self._timer
        if timer is not None:
            timer.cancel()

    def failing(self) -> list[FailedDelivery]:
        """Return the objects for whose last change the handler raised."""
        now = time.monotonic()
        return [
            FailedDelivery(key, each.why, now - each.since, each.during_first_list)
            for key, each in list(self._failed.items())
        ]

    def calling(self) -> tuple[Key, float] | None:
        """Return the object of the handler's current call, and the call's duration in seconds; None between calls."""
        calling = self._calling
        return None if calling is None else (calling[0], time.monotonic() - calling[1])

    def _call(self, key: Key, old: Json | None, new: Json | None) -> None:
        self._calling = (key, time.monotonic())
        try:
            self._handler(old, new)
        except Exception as error:
            failed = self._failed.setdefault(key, _Failed(old, time.monotonic(), not self._first_list_done()))
            failed.attempts += 1
            failed.why = f"{type(error).__name__}: {error}"
            extra = {"kind": self._kind.kind, "key": key, "attempts": failed.attempts}
            if failed.attempts in (1, 10) or failed.attempts % 100 == 0:
                _log.exception("Failed in a change handler", extra=extra)
            self._on_failure()
            self._later()
        else:
            self._failed.pop(key, None)
        finally:
            self._calling = None

    def _later(self) -> None:
        if self._stopped or self._timer is not None:
            return
        fewest = min(each.attempts for each in self._failed.values())
        ceiling_s = min(RETRY_CAP_S, self._retry_base_s * 2.0 ** min(fewest - 1, 10))
        delay_s = random.uniform(0.5, 1.0) * ceiling_s  # noqa: S311 - spreads load, keeps no secret
        self._timer = threading.Timer(delay_s, self._again)
        self._timer.daemon = True
        self._timer.start()

    def _again(self) -> None:
        with self._lock:
            self._timer = None
            for key, failed in list(self._failed.items()):
                if self._stopped:
                    return
                new = self._current(key)
                if failed.told is None and new is None:
                    # The handler never accepted the object, which is gone by now.
                    del self._failed[key]
                    continue
                self._call(key, failed.told, new)


def key_of(obj: Json) -> Key:
    """Return the key of an object."""
    metadata = obj.get("metadata") or {}
    return (metadata.get("namespace") or "", metadata.get("name") or "")
