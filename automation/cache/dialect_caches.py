"""The caches of all dialects but LLMKube's, for calls that each of them takes. `cluster_cache` makes and calls it."""

from __future__ import annotations

from collections.abc import Callable

from automation.cache.dialect_cache import DialectCaches
from automation.cache.optional_apis import OptionalApis
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.dialects.registry import DIALECT_KINDS


class EveryDialect:
    """All caches, by the name of their dialect. Thread-safe."""

    def __init__(self, make: Callable[[str], DialectCaches]) -> None:
        self.caches = {name: make(name) for name in DIALECT_KINDS}

    @property
    def apis(self) -> tuple[OptionalApis, ...]:
        """What follows the coming and going of their kinds."""
        return tuple(each.apis for each in self.caches.values())

    def start(self) -> None:
        """Start looking; returns at once."""
        for each in self.caches.values():
            each.start()

    def stop(self) -> None:
        """Stop, with all informers."""
        for each in self.caches.values():
            each.stop()

    def installed(self) -> frozenset[str]:
        """Name the extensions that are followed for them, as `RenderOptions.installed` does."""
        return frozenset().union(*(apis.installed() for apis in self.apis))

    def config_maps(self) -> tuple[Informer, ...]:
        """The informers of single ConfigMaps."""
        return tuple(informer for each in self.caches.values() for informer in each.config_maps.informers)

    def services(self) -> list[tuple[str, Json]]:
        """Give all services, each with the name of its dialect."""
        return [(name, cr) for name, each in self.caches.items() for cr in each.listed(each.kind)]

    def process_changed(self, key: ServiceKey, old: Json | None, new: Json | None) -> bool:
        """Take note of a HostProcess; False when it is of no service of theirs."""
        dialect = self.caches.get(key.dialect)
        if dialect is None:
            return False
        dialect.process_changed(old, new)
        return True

    def slice_changed(self, namespace: str) -> None:
        """Have the services looked at to which an EndpointSlice of an agent's may lead."""
        for each in self.caches.values():
            each.slice_changed(namespace)

    def namespace_changed(self, name: str) -> None:
        """Have all services of a namespace looked at, which says something else of them now."""
        for each in self.caches.values():
            each.enqueue_all(name)
