"""The Pulumi programs of the project. Only this module turns rendered services into components.

`python -m program` runs `static_fleet`. The loop's engine runs `fleet_in_steps` (`automation.engine.fleet_run`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Generic

import pulumi

from components import urns
from components.component_resources import FleetTarget, ServiceComponent
from components.rendered import RenderedObject, RenderedService
from program.registrars import Component, Registrar, Resource, SdkRegistrar

__all__ = ["FleetTarget", "fleet_in_steps", "static_fleet"]

WINDOW = 32


async def static_fleet(
    services: Iterable[tuple[RenderedService, FleetTarget]], *, window: int = WINDOW
) -> list[pulumi.CustomResource | None]:
    """Register all services of a fleet, each at its target, at most `window` of them at a time.

    The resources are those of Pulumi's Kubernetes SDK: Deployment, Service, HorizontalPodAutoscaler (ADR 48). Returns
    the last resource of each service, in the order of `services`; None for a service without objects. The first failure
    ends the run, as in any Pulumi program. Raises ValueError for an object whose component does not exist.
    """
    programs: dict[str, _Program[ServiceComponent, pulumi.CustomResource]] = {}
    registered: list[pulumi.CustomResource | None] = []
    under_way: set[asyncio.Task[bool]] = set()
    for service, place in services:
        if len(under_way) >= window:
            _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        if place.at not in programs:
            programs[place.at] = _Program(SdkRegistrar(replace(place, by_sdk=True)))
        program = programs[place.at]
        started = program.start(service)
        if started is None:
            registered.append(None)
            continue
        last = started.component.complete(service.objects[-1], after=(*started.shared, *started.own))
        registered.append(last)
        under_way.add(asyncio.ensure_future(program.registrar.succeeded(last)))
    if under_way:
        await asyncio.wait(under_way)
    return registered


async def fleet_in_steps(
    services: Iterable[RenderedService], registrar: Registrar[Component, Resource], *, window: int = WINDOW
) -> None:
    """Register all services, at most `window` at a time. A service that fails does not stop the others.

    The window bounds the memory of requests under way. It also keeps the SDK fast: the time of its wait for outstanding
    registrations grows with the square of their number. 1,000 services took 100 s at once, and 10 s in steps.
    """
    program = _Program(registrar)
    under_way: set[asyncio.Task[None]] = set()
    for service in services:
        if len(under_way) >= window:
            done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        started = program.start(service)
        if started is not None:
            under_way.add(asyncio.ensure_future(_finish(started, registrar)))
    await asyncio.gather(*under_way)


async def _finish(started: _Started[Component, Resource], registrar: Registrar[Component, Resource]) -> None:
    """Register the last object of a service after its other objects have succeeded or failed.

    If the API refused an accessory, the last object carries the hash of an incomplete service.

    The last object is registered in both cases, because Pulumi deletes a target that the program leaves out. The
    dependencies are given by URN: the engine knows which of these resources failed, and then skips the object. A shared
    object that exists is no dependency: the engine also targets all resources that depend on a target, and would delete
    the objects of other services.
    """
    service = started.service
    whole = all(await asyncio.gather(*(registrar.succeeded(resource) for resource in started.own)))
    shared = await asyncio.gather(*(registrar.succeeded(resource) for resource in started.shared))
    after = urns.needed_by_last(service, registrar.stack)
    if not all(shared):
        after |= urns.shared_objects(service, registrar.stack)
    last = service.objects[-1] if whole else service.last_without_accessories
    await registrar.succeeded(registrar.complete(started.component, last, after))


@dataclass(frozen=True)
class _Started(Generic[Component, Resource]):
    """A service whose objects are all registered, except the last."""

    service: RenderedService
    component: Component
    """The component of the last object."""
    own: tuple[Resource, ...]
    shared: tuple[Resource, ...]


@dataclass
class _Program(Generic[Component, Resource]):
    """One run of the program at one target. Objects that several services share are registered once."""

    registrar: Registrar[Component, Resource]
    shared: dict[str, Resource] = field(default_factory=dict)

    def start(self, service: RenderedService) -> _Started[Component, Resource] | None:
        """Register all objects of a service except the last. Return None for a service without objects."""
        claims = tuple(self._claim(obj) for obj in service.shared)
        if not service.objects:
            return None
        *first, last = service.objects
        by_component: dict[str, list[RenderedObject]] = {obj.component: [] for obj in service.objects}
        for obj in first:
            by_component[obj.component].append(obj)
        components = {
            token: self.registrar.component(token, service.key, objects) for token, objects in by_component.items()
        }
        made = tuple(child for component in components.values() for child in self.registrar.children(component))
        return _Started(service, components[last.component], made, claims)

    def _claim(self, obj: RenderedObject) -> Resource:
        if obj.name not in self.shared:
            self.shared[obj.name] = self.registrar.cache_claim(obj)
        return self.shared[obj.name]
