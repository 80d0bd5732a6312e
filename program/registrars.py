"""The ways to register a fleet with the engine: by Pulumi's SDK, or by the engine's protocol (`monitor_registrar`).

`program.fleet` registers services by a registrar. `tests/unit/program/test_fleet_registrars.py` compares the
requests of both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

import pulumi
from pulumi.resource import DependencyResource

from components.component_resources import COMPONENTS, FleetTarget, ModelCache, ServiceComponent
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


class SdkRegistrar:
    """Registers by the SDK. Only in a program that the SDK runs, whose stack and engine are globals of the SDK."""

    def __init__(self, target: FleetTarget | None = None) -> None:
        self._target = target or FleetTarget()

    @property
    def stack(self) -> str:
        """The name of the stack."""
        return pulumi.get_stack()

    def component(self, token: str, key: ServiceKey, objects: Sequence[RenderedObject]) -> ServiceComponent:
        """Register the component of the class with this token."""
        return known_component(token)(key, objects, self._target)

    def children(self, component: ServiceComponent) -> Sequence[pulumi.CustomResource]:
        """Return the objects of the component."""
        return tuple(component.children.values())

    def cache_claim(self, claim: RenderedObject) -> pulumi.CustomResource:
        """Register the component ModelCache."""
        return ModelCache(claim, self._target).claim

    def complete(
        self, component: ServiceComponent, last: RenderedObject, after: Collection[str]
    ) -> pulumi.CustomResource:
        """Register the last object.

        A dependency on a resource that failed would end the whole program. Therefore the dependencies are given by URN:
        the engine knows which of these resources failed, and then skips the object.
        """
        return component.complete(last, after=[DependencyResource(urn) for urn in sorted(after)])

    def complete_after(
        self, component: ServiceComponent, last: RenderedObject, after: Sequence[pulumi.CustomResource]
    ) -> pulumi.CustomResource:
        """Register the last object, which depends on the resources in `after`."""
        return component.complete(last, after=after)

    async def succeeded(self, resource: pulumi.CustomResource) -> bool:
        """Wait for the URN of the resource, which faults if the resource failed."""
        try:
            await resource.urn.future()
        except Exception:
            return False
        return True


def known_component(token: str) -> type[ServiceComponent]:
    """Return the class of a component. Raises ValueError for an unknown type token."""
    try:
        return COMPONENTS[token]
    except KeyError:
        raise ValueError(f"no component is registered for `{token}`") from None
