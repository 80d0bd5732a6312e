"""The Pulumi programs of the project. Only this module turns rendered services into components.

`python -m program` runs `static_fleet`. The loop's engine runs `fleet_in_steps` as an inline program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pulumi
from pulumi.resource import DependencyResource

from components import urns
from components.component_resources import COMPONENTS, FleetTarget, ModelCache, ServiceComponent
from components.rendered import RenderedObject, RenderedService

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
    programs: dict[str, _Program] = {}
    registered: list[pulumi.CustomResource | None] = []
    under_way: set[asyncio.Task[bool]] = set()
    for service, place in services:
        if len(under_way) >= window:
            _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        if place.at not in programs:
            programs[place.at] = _Program(replace(place, by_sdk=True))
        started = programs[place.at].start(service)
        last = started.complete((*started.shared, *started.own)) if started is not None else None
        registered.append(last)
        if last is not None:
            under_way.add(asyncio.ensure_future(_succeeded(last)))
    if under_way:
        await asyncio.wait(under_way)
    return registered


async def fleet_in_steps(services: Iterable[RenderedService], *, window: int = WINDOW) -> None:
    """Register all services, at most `window` at a time. A service that fails does not stop the others.

    The window keeps the SDK fast: the time of its wait for outstanding registrations grows with the square of their
    number. 1,000 services took 100 s at once, and 10 s in steps.
    """
    program = _Program()
    under_way: set[asyncio.Task[None]] = set()
    for service in services:
        if len(under_way) >= window:
            done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        started = program.start(service)
        if started is not None:
            under_way.add(asyncio.ensure_future(_finish(started)))
    await asyncio.gather(*under_way)


async def _finish(started: _Started) -> None:
    """Register the last object of a service after its other objects have succeeded or failed.

    If the API refused an accessory, the last object carries the hash of an incomplete service.

    The last object is registered in both cases, because Pulumi deletes a target that the program leaves out. A
    dependency on a resource that failed would end the whole program. Therefore the dependencies are given by URN: the
    engine knows which of these resources failed, and then skips the object. A shared object that exists is no
    dependency: the engine also targets all resources that depend on a target, and would delete the objects of other
    services.
    """
    whole = all(await asyncio.gather(*(_succeeded(resource) for resource in started.own)))
    shared = await asyncio.gather(*(_succeeded(resource) for resource in started.shared))
    stack = pulumi.get_stack()
    after = urns.needed_by_last(started.service, stack)
    if not all(shared):
        after |= urns.shared_objects(started.service, stack)
    last = started.complete([DependencyResource(urn) for urn in sorted(after)], whole=whole)
    await _succeeded(last)


async def _succeeded(resource: pulumi.Resource) -> bool:
    """Wait until the engine is done with the resource.

    Return False if it failed; the engine logs the cause and the URN.
    """
    try:
        await resource.urn.future()
    except Exception:
        return False
    return True


@dataclass(frozen=True)
class _Started:
    """A service whose objects are all registered, except the last."""

    service: RenderedService
    component: ServiceComponent
    own: tuple[pulumi.Resource, ...]
    shared: tuple[pulumi.Resource, ...]

    def complete(self, after: Sequence[pulumi.Resource], *, whole: bool = True) -> pulumi.CustomResource:
        last = self.service.objects[-1] if whole else self.service.last_without_accessories
        return self.component.complete(last, after=after)


@dataclass
class _Program:
    """One run of the program at one target. Objects that several services share are registered once."""

    target: FleetTarget = field(default_factory=FleetTarget)
    shared: dict[str, pulumi.CustomResource] = field(default_factory=dict)

    def start(self, service: RenderedService) -> _Started | None:
        """Register all objects of a service except the last. Return None for a service without objects."""
        claims = tuple(self._claim(obj) for obj in service.shared)
        if not service.objects:
            return None
        *first, last = service.objects
        by_component: dict[str, list[RenderedObject]] = {obj.component: [] for obj in service.objects}
        for obj in first:
            by_component[obj.component].append(obj)
        components = {
            token: _component(token)(service.key, objects, self.target) for token, objects in by_component.items()
        }
        made = tuple(child for component in components.values() for child in component.children.values())
        return _Started(service, components[last.component], made, claims)

    def _claim(self, obj: RenderedObject) -> pulumi.CustomResource:
        if obj.name not in self.shared:
            self.shared[obj.name] = ModelCache(obj, self.target).claim
        return self.shared[obj.name]


def _component(token: str) -> type[ServiceComponent]:
    try:
        return COMPONENTS[token]
    except KeyError:
        raise ValueError(f"no component is registered for `{token}`") from None
