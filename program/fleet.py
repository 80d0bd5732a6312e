"""The Pulumi programs of the project. Only this module turns rendered services into components.

`python -m program` runs `static_fleet`. The loop's engine runs `fleet_in_steps` (`automation.engine.fleet_run`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic

from components import urns
from components.rendered import RenderedObject, RenderedService
from program.desired.keys import ServiceKey
from program.registrar import Component, Registrar, Resource

__all__ = ["FleetIncomplete", "fleet_in_steps", "static_fleet"]

WINDOW = 32


class FleetIncomplete(Exception):
    """Some services have an object that the engine could not make. The engine has logged the causes."""

    def __init__(self, services: Iterable[ServiceKey]) -> None:
        super().__init__(", ".join(sorted(f"{key.namespace}/{key.name}" for key in services)))


async def static_fleet(
    services: Iterable[tuple[RenderedService, Registrar[Any, Any]]], *, window: int = WINDOW
) -> list[Any | None]:
    """Register all services of a fleet, each by the registrar of its place, at most `window` of them at a time.

    Returns the last resource of each service, in the order of `services`; None for a service without objects. Raises
    ValueError for an object whose component does not exist. Raises FleetIncomplete at the end if an object could not be
    made. The engine deletes what a program leaves out, so a program that left an object out must end with an error.
    """
    programs: dict[Registrar[Any, Any], _Program[Any, Any]] = {}
    registered: list[Any | None] = []
    under_way: dict[asyncio.Task[bool], ServiceKey] = {}
    failed: list[ServiceKey] = []

    async def wait(until: str) -> None:
        done, _ = await asyncio.wait(under_way, return_when=until)
        for task in done:
            key = under_way.pop(task)
            failed.extend([] if task.result() else [key])

    for service, registrar in services:
        if len(under_way) >= window:
            await wait(asyncio.FIRST_COMPLETED)
        program = programs.setdefault(registrar, _Program(registrar))
        started = program.start(service)
        if started is None:
            registered.append(None)
            continue
        last = registrar.complete_after(started.component, service.objects[-1], (*started.shared, *started.own))
        registered.append(last)
        under_way[asyncio.ensure_future(registrar.succeeded(last))] = service.key
    if under_way:
        await wait(asyncio.ALL_COMPLETED)
    if failed:
        raise FleetIncomplete(failed)
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
