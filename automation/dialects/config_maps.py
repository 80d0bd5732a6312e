"""Follows single ConfigMaps that services refer to, each by a watch of its own, so that no other is ever read.

Called by `caches`. There are few: the settings of a peer, and the configuration of a scheduler where a user keeps it
apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import structlog

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.informer import Informer

Object = dict[str, Any]
log = structlog.get_logger(__name__)

FIRST_LIST_S = 5.0
"""How long a pass waits for a ConfigMap that nobody asked for before."""
MOST = 200
"""So many are followed; one more, and a change of the oldest is not noticed until it is asked for again."""


class ConfigMaps:
    """ConfigMaps by namespace and name, from the first time that they are asked for. Thread-safe."""

    def __init__(self, client: KubeClient, *, changed: Callable[[str, str], None]) -> None:
        """`changed` is told namespace and name, in a thread of the watch."""
        self._client = client
        self._changed = changed
        self._lock = threading.Lock()
        self._followed: dict[tuple[str, str], Informer] = {}

    def get(self, namespace: str, name: str) -> Object | None:
        """Give a ConfigMap; None where there is none, or while it cannot be read."""
        with self._lock:
            informer = self._followed.get((namespace, name))
            if informer is None:
                informer = self._follow(namespace, name)
        informer.wait_synced(FIRST_LIST_S)
        return informer.get(namespace, name)

    @property
    def informers(self) -> tuple[Informer, ...]:
        """The informers of the ConfigMaps that are followed."""
        with self._lock:
            return tuple(self._followed.values())

    def stop(self) -> None:
        """End all watches."""
        with self._lock:
            informers = list(self._followed.values())
            self._followed.clear()
        for informer in informers:
            informer.stop()

    def _follow(self, namespace: str, name: str) -> Informer:
        def changed(old: Object | None, new: Object | None) -> None:
            if (old or {}).get("data") != (new or {}).get("data"):
                self._changed(namespace, name)

        informer = Informer(
            self._client,
            kinds.CONFIG_MAPS,
            namespaces=(namespace,),
            field_selector=f"metadata.name={name}",
            on_change=changed,
        )
        if len(self._followed) >= MOST:
            log.warning(
                "Follows no more ConfigMaps; a change of this one is not noticed", namespace=namespace, name=name
            )
            oldest = next(iter(self._followed))
            self._followed.pop(oldest).stop()
        self._followed[(namespace, name)] = informer
        informer.start()
        return informer
