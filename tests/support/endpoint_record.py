"""Records every state of the EndpointSlices of a namespace, as the clients of the Services see them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.informer import Informer
from kubeapi.json_types import Json


class EndpointRecord:
    """The changes that a watch has reported so far; use it by `recorded()`."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.states: list[tuple[float, str, str, bool]] = []
        """Time (monotonic clock), service, address, ready."""
        self._lock = threading.Lock()
        self._informer = Informer(client, kinds.ENDPOINT_SLICES, namespaces=[namespace], on_change=self._changed)
        self._informer.start()

    def _changed(self, old: Json | None, new: Json | None) -> None:
        obj = new or old
        assert obj is not None
        for each in obj["endpoints"]:
            ready = new is not None and each["conditions"]["ready"]
            service_name = obj["metadata"]["labels"]["kubernetes.io/service-name"]
            with self._lock:
                self.states.append((time.monotonic(), service_name, each["addresses"][0], ready))

    def now(self, service_name: str) -> set[str]:
        """The addresses that are ready."""
        state: dict[str, bool] = {}
        for _, name, address, ready in self.states:
            if name == service_name:
                state = {**state, address: ready}
                if ready:
                    # A host's endpoints are in one slice: a new address replaces the previous one.
                    state = {address: True}
        return {address for address, ready in state.items() if ready}

    def was_ready(self, service_name: str, address: str, *, since: float) -> bool:
        """Return whether a service led to an address at or after a time of the monotonic clock."""
        return any(at >= since and (s, a, r) == (service_name, address, True) for at, s, a, r in self.states)

    def stop(self) -> None:
        self._informer.stop()


@contextlib.contextmanager
def recorded(client: KubeClient, namespace: str) -> Iterator[EndpointRecord]:
    """Record while the block lasts."""
    made = EndpointRecord(client, namespace)
    try:
        yield made
    finally:
        made.stop()
