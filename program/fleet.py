"""The Pulumi program: the only place that turns rendered services into components.

`python -m program` runs `static_fleet`, the engine `fleet_in_steps` as its inline program.
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
    """Register all services of a fleet, each in its place, at most `window` of them under way at a time.

    The resources are those of Pulumi's Kubernetes SDK: Deployment, Service, HorizontalPodAutoscaler (ADR 48).
    Returns the last resource of each service in their order, None for a service without objects. The first failure ends
    the run, as in any Pulumi program. Raises ValueError for an object whose component does not exist.
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
    """Register all services, at most `window` of them under way at a time, none stopped by the failure of another.

    The window is there because the SDK's wait for outstanding registrations takes time that grows with the square of
    their number: 1,000 services at once took 100 s, in steps 10 s.
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
    """Register the last object of a service when the others are settled, well or not.

    Where an accessory was refused, it is made with the hash of an incomplete service.

    It must be registered in any case: a target that the program leaves out is deleted. To depend on a resource that
    failed would end the whole program, so the dependencies are given by URN: the engine knows which of them failed,
    and then skips the object. There is no dependency on a shared object that exists: the engine takes all that
    depends on a target for a target too, and so would delete the objects of other services.
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
    """Wait until the engine is done with the resource. False when it failed; the engine says why, with the URN."""
    try:
        await resource.urn.future()
    except Exception:
        return False
    return True


@dataclass(frozen=True)
class _Started:
    """A service of which everything is registered but its last object."""

    service: RenderedService
    component: ServiceComponent
    own: tuple[pulumi.Resource, ...]
    shared: tuple[pulumi.Resource, ...]

    def complete(self, after: Sequence[pulumi.Resource], *, whole: bool = True) -> pulumi.CustomResource:
        last = self.service.objects[-1] if whole else self.service.last_without_accessories
        return self.component.complete(last, after=after)


@dataclass
class _Program:
    """One run of the program in one place: what several services share is registered once."""

    target: FleetTarget = field(default_factory=FleetTarget)
    shared: dict[str, pulumi.CustomResource] = field(default_factory=dict)

    def start(self, service: RenderedService) -> _Started | None:
        """Register a service but for its last object. None for a service without objects."""
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
