"""The URNs in a stack's state by service, so that a run can name every URN that it may delete.

`pulumi_engine` reads it from the state at the first touch of a stack and keeps it up to date from event logs: an
unknown target is an error to Pulumi, and one that is left out is never deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from automation.engine.port import Change
from components import naming, urns
from components.rendered import RenderedService
from program.desired.keys import ServiceKey


class StateIndex:
    """The URNs of one stack. Changed only under the stack's lock; `keys` and `sizes` may be read at any time."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._by_service: dict[ServiceKey, set[str]] = {}
        self._others: set[str] = set()
        self._applied: dict[ServiceKey, str] = {}

    @staticmethod
    def of_deployment(namespace: str, deployment: Mapping[str, Any] | None) -> StateIndex:
        """Read the `deployment` of an export, or `latest` of a checkpoint. None is an empty stack."""
        index = StateIndex(namespace)
        for resource in (deployment or {}).get("resources") or ():
            if resource.get("delete"):
                continue
            key = index._add(resource["urn"])
            if key is not None and (applied := _applied_hash(resource.get("inputs"))):
                index._applied[key] = applied
        return index

    @property
    def others(self) -> set[str]:
        """The URNs that belong to no single service."""
        return set(self._others)

    @property
    def keys(self) -> set[ServiceKey]:
        # One operation under the GIL, so a run that adds a service does not interfere.
        return set(self._by_service)

    @property
    def sizes(self) -> dict[ServiceKey, int]:
        """How many URNs each service has."""
        return {key: len(urns) for key, urns in self._by_service.copy().items()}

    def of(self, key: ServiceKey) -> frozenset[str]:
        """The URNs of one service; empty for one that the stack does not hold."""
        return frozenset(self._by_service.get(key, ()))

    def held_for(self, keys: Iterable[ServiceKey]) -> frozenset[str]:
        """The URNs that leave the state with these services; with the last services, also the shared ones."""
        going = set(keys)
        own = frozenset[str]().union(*(self.of(key) for key in going))
        return own | self._others if own and self.keys <= going else own

    def applied(self, key: ServiceKey) -> str | None:
        """Return the fingerprint that was last applied in full, by the state or the last run."""
        return self._applied.get(key)

    def record(self, done: Iterable[Change]) -> None:
        """Record the changes of a run."""
        for change in done:
            if change.op == "delete":
                self._drop(change.urn)
            else:
                self._add(change.urn)

    def settle(self, rendered: RenderedService, *, ok: bool) -> None:
        """Record whether the last run applied a service's fingerprint in full; else the applied one is unknown."""
        if ok and rendered.objects:
            self._applied[rendered.key] = rendered.fingerprint
        else:
            self._applied.pop(rendered.key, None)

    def _add(self, urn: str) -> ServiceKey | None:
        if urn.split("::", 3)[2:3] and urn.split("::", 3)[2].startswith("pulumi:"):
            return None
        key = urns.service_of_urn(urn, self._namespace)
        if key is None:
            self._others.add(urn)
        else:
            self._by_service.setdefault(key, set()).add(urn)
        return key

    def _drop(self, urn: str) -> None:
        self._others.discard(urn)
        key = urns.service_of_urn(urn, self._namespace)
        if key is None or key not in self._by_service:
            return
        held = self._by_service[key]
        held.discard(urn)
        if not held:
            del self._by_service[key]
            self._applied.pop(key, None)


def _applied_hash(inputs: Any) -> str | None:
    metadata = inputs.get("metadata") if isinstance(inputs, dict) else None
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    value = annotations.get(naming.ANNOTATION_APPLIED_HASH) if isinstance(annotations, dict) else None
    return value if isinstance(value, str) else None
