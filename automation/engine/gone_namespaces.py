"""Deletes the stacks of deleted namespaces, so that their number does not grow without limit. Made by `assembly`.

A namespace is enqueued when its deletion is seen, and, at the start, when the state has a stack for a namespace that is
not in the caches. Its services are removed like others. The stack is deleted when the state holds none of them any
more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from automation.engine.port import EngineFailed
from automation.workqueue.backoff import Backoff
from automation.workqueue.queue import WorkQueue
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError

log = structlog.get_logger(__name__)

SOON_S = 5.0
"""After this time the engine has usually removed the services of the namespace."""


class GoneNamespaces:
    """A queue of namespaces and one thread. Thread-safe.

    `discard` deletes the stacks of a namespace, and returns False when the state still holds something.
    """

    def __init__(self, client: KubeClient, discard: Callable[[str], bool], *, soon_s: float = SOON_S) -> None:
        """`soon_s` is the time until a namespace is checked, and between the first two tries."""
        self._client = client
        self._discard = discard
        self._queue: WorkQueue[str] = WorkQueue(backoff=Backoff(base_s=soon_s, cap_s=600.0))
        self._soon_s = soon_s
        self._thread = threading.Thread(target=self._work, name="gone-namespaces", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no more namespaces. A check under way ends by itself."""
        self._queue.shutdown()

    def enqueue(self, namespace: str) -> None:
        """Enqueue a namespace that may be deleted. Returns at once."""
        self._queue.add_after(namespace, self._soon_s)

    def _work(self) -> None:
        while (namespace := self._queue.get()) is not None:
            try:
                if self._exists(namespace) or self._discard(namespace):
                    self._queue.reset_backoff(namespace)
                else:
                    self._queue.add_failed(namespace)
            except (ApiError, EngineFailed) as error:
                retry_in_s = self._queue.add_failed(namespace)
                log.debug(
                    "Could not discard the stacks of a namespace",
                    namespace=namespace,
                    error=str(error),
                    retry_in_s=retry_in_s,
                )
            except Exception:
                log.exception(
                    "Could not discard the stacks of a namespace because of a defect of Herdsman", namespace=namespace
                )
                self._queue.add_failed(namespace)
            finally:
                self._queue.done(namespace)

    def _exists(self, namespace: str) -> bool:
        """Read from the API server, because a cache may lag behind, or hold no namespaces at all. Raises ApiError."""
        # A list of one: the loop may list and watch namespaces, and not get them.
        return bool(self._client.list(kinds.NAMESPACES, field_selector=f"metadata.name={namespace}")["items"])
