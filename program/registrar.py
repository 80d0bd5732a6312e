"""The methods of registrars. `registrars` has them for Pulumi's SDK, `monitor_registrar` for the protocol.

`program.fleet` registers services by a registrar. `tests/unit/program/test_fleet_registrars.py` compares the
requests of both. This module does not import the SDK, which the loop's program does not need.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

from components.rendered import RenderedObject
from program.desired.keys import ServiceKey

Component = TypeVar("Component")
Resource = TypeVar("Resource")


class Registrar(Protocol[Component, Resource]):
    """Registers components and objects with the engine of one run. It returns at once, before the engine is done."""

    @property
    def stack(self) -> str:
        """The name of the stack."""
        ...

    def component(self, token: str, key: ServiceKey, objects: Sequence[RenderedObject]) -> Component:
        """Register the component with a type token and its objects. Raises ValueError for an unknown token."""
        ...

    def children(self, component: Component) -> Sequence[Resource]:
        """Return the objects that were registered with the component."""
        ...

    def cache_claim(self, claim: RenderedObject) -> Resource:
        """Register the model cache of a namespace, and return its claim."""
        ...

    def complete(self, component: Component, last: RenderedObject, after: Collection[str]) -> Resource:
        """Register the last object of a service, to be made after the objects with the URNs in `after`."""
        ...

    def complete_after(self, component: Component, last: RenderedObject, after: Sequence[Resource]) -> Resource:
        """Register the last object of a service, to be made after other resources.

        If one of them fails, the last object is not registered and counts as failed.
        """
        ...

    async def succeeded(self, resource: Resource) -> bool:
        """Wait until the engine is done with the resource. Return False if it failed.

        The engine logs the cause and the URN.
        """
        ...
