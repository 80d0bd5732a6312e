"""Which URNs a run may touch, and what they tell about its end. Pure; made by `pulumi_engine`, read by `outcomes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from automation.engine.port import Batch
from automation.engine.state_index import StateIndex
from components import urns
from components.rendered import RenderedObject, RenderedService
from program.desired.keys import ServiceKey


@dataclass(frozen=True)
class Targets:
    """The targets of one run, by the service they belong to."""

    keys: tuple[ServiceKey, ...]
    apply: tuple[RenderedService, ...]
    """What the program registers."""
    wanted: Mapping[ServiceKey, frozenset[str]]
    """URNs that must stand afterwards: the service's own, and the shared ones it needs."""
    unwanted: Mapping[ServiceKey, frozenset[str]]
    """URNs that must be gone afterwards: of removed services, and dropped parts of applied ones."""
    accessories: Mapping[ServiceKey, Mapping[str, RenderedObject]]
    """Of what is wanted, the objects that a service serves without."""
    shared: frozenset[str]
    released: frozenset[str]
    """Shared URNs that the state lets go of, because no service is left in it. Their objects stay."""
    needs_refresh: bool
    """Whether something is asked for again just as it was applied: then the state cannot be trusted.

    A refresh wants every target in the state already. Where one is new there is none, and the provider alone finds what
    drifted, by its look at each object.
    """

    @property
    def urns(self) -> frozenset[str]:
        """All of them; with none there is nothing to run."""
        return self.shared.union(self.released, *self.wanted.values(), *self.unwanted.values())

    @staticmethod
    def of(batch: Batch, index: StateIndex) -> Targets:
        """Work out the targets of a batch. Shared objects are never deleted."""
        stack = batch.stack.name
        wanted: dict[ServiceKey, frozenset[str]] = {}
        unwanted: dict[ServiceKey, frozenset[str]] = {}
        shared: set[str] = set()
        for service in batch.apply:
            own = urns.own_urns(service, stack)
            needed = frozenset[str]().union(*(urns.shared_urns(obj, stack) for obj in service.shared))
            shared |= needed
            wanted[service.key] = own | needed
            unwanted[service.key] = index.of(service.key) - own
        for key in batch.remove:
            wanted.setdefault(key, frozenset())
            unwanted[key] = unwanted.get(key, frozenset()) | index.of(key)
        # Kept in the state, a cache claim would not be made again after its namespace was.
        is_last = not batch.apply and index.keys <= set(batch.remove) and any(unwanted.values())
        return Targets(
            tuple(dict.fromkeys(batch.keys)),
            batch.apply,
            wanted,
            unwanted,
            {service.key: urns.accessories(service, stack) for service in batch.apply},
            frozenset(shared),
            frozenset(index.others) if is_last else frozenset(),
            all(needed <= index.of(key) | index.others for key, needed in wanted.items())
            and any(
                service.fingerprint and index.applied(service.key) == service.fingerprint for service in batch.apply
            ),
        )
