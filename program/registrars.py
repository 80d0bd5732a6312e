"""Registers a fleet with the engine by Pulumi's SDK, by the classes of `components.component_resources` (ADR 48)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pulumi
from pulumi.resource import DependencyResource

from components import registrations
from components.component_resources import COMPONENTS, FleetTarget, ModelCache, ServiceComponent
from components.rendered import RenderedObject
from program.desired.keys import ServiceKey


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
        return COMPONENTS[registrations.known(token)](key, objects, self._target)

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
