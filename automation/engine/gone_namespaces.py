"""Drops the stacks of namespaces that are gone, so that their number does not grow for ever. Made by `assembly`.

A namespace is named when the API server says that it is gone, and, at the start, when the state has a stack of one that
the caches do not know. Its services are removed like any other; when the state holds none of them any more, the stack
goes, too.
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
"""By then the engine has mostly removed what was in the namespace."""


class GoneNamespaces:
    """A queue of namespaces and one thread. Thread-safe.

    `discard` deletes the stacks of a namespace, and returns False when the state still holds something.
    """

    def __init__(self, client: KubeClient, discard: Callable[[str], bool], *, soon_s: float = SOON_S) -> None:
        """`soon_s` is the time until a namespace is looked at, and between the first two tries."""
        self._client = client
        self._discard = discard
        self._queue: WorkQueue[str] = WorkQueue(backoff=Backoff(base_s=soon_s, cap_s=600.0))
        self._soon_s = soon_s
        self._thread = threading.Thread(target=self._work, name="gone-namespaces", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no more namespaces. One that is being looked at ends by itself."""
        self._queue.shutdown()

    def enqueue(self, namespace: str) -> None:
        """Note that a namespace seems to be gone. Returns at once."""
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
                    "Could not discard the stacks of a namespace by a defect of Herdsman", namespace=namespace
                )
                self._queue.add_failed(namespace)
            finally:
                self._queue.done(namespace)

    def _exists(self, namespace: str) -> bool:
        """Ask the API server, since a cache may be behind, or may know no namespace at all. Raises ApiError."""
        # A list of one: the loop may list and watch namespaces, and not get them.
        return bool(self._client.list(kinds.NAMESPACES, field_selector=f"metadata.name={namespace}")["items"])
