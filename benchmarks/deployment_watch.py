"""Follows the Deployments of a namespace by one watch, so that a scenario knows when each reached a state.

Called by `scenarios`. Repeated lists would cost the API server more than the controller under measurement does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from kubeapi import kinds
from kubeapi.client import KubeClient, Watch
from kubeapi.errors import ApiError

LONGEST_S = 1800.0
_CHECK_S = 0.5
"""Seconds between two looks at whether the controller still runs."""


class DeploymentWatch:
    """The arguments of each Deployment's first container, as of its last event."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._news = threading.Condition()
        self._arguments: dict[str, str] = {}
        self._changed_at: dict[str, float] = {}
        self._ended: str | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def await_state(
        self,
        reached: Callable[[Mapping[str, str]], bool],
        what: str,
        *,
        timeout_s: float,
        check: Callable[[], None] = lambda: None,
    ) -> float:
        """Wait until the arguments by name satisfy `reached`; return the time of the newest event, by the monotonic
        clock. `check` is called twice a second and may raise, if the controller has ended.

        Raises:
            TimeoutError: `timeout_s` have passed, or the watch has ended.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with self._news:
                if self._news.wait_for(lambda: self._ended or reached(self._arguments), _CHECK_S):
                    if reached(self._arguments):
                        return max(self._changed_at.values(), default=time.monotonic())
                    raise TimeoutError(f"the watch of Deployments ended before {what}: {self._ended}")
            check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {timeout_s:.0f} s; {len(self._arguments)} Deployments are seen")

    def close(self) -> None:
        """End the watch and its thread."""
        self._watch.stop()
        self._thread.join(10)

    def _follow(self) -> None:
        ended = "the API server closed it"
        try:
            for _, obj in self._watch:
                containers = obj.get("spec", {}).get("template", {}).get("spec", {}).get("containers")
                if containers:
                    self._record(obj["metadata"]["name"], " ".join(containers[0].get("args", ())))
        except ApiError as error:
            # Told to the thread that waits; without this, the interpreter would print a traceback.
            ended = str(error)
        with self._news:
            self._ended = ended
            self._news.notify_all()

    def _record(self, name: str, arguments: str) -> None:
        with self._news:
            if self._arguments.get(name) != arguments:
                self._arguments[name] = arguments
                self._changed_at[name] = time.monotonic()
                self._news.notify_all()


@contextmanager
def deployment_watch(client: KubeClient, namespace: str) -> Iterator[DeploymentWatch]:
    """Watch the Deployments of a namespace, from its present state on, while the block lasts."""
    version = client.list(kinds.DEPLOYMENTS, namespace)["metadata"]["resourceVersion"]
    stream = client.watch(kinds.DEPLOYMENTS, namespace, resource_version=version, timeout_s=LONGEST_S)
    watch = DeploymentWatch(stream)
    try:
        yield watch
    finally:
        watch.close()
