"""The Pulumi program: the only place that turns rendered services into components.

`python -m program` runs `static_fleet`, the engine `fleet_in_steps` as its inline program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pulumi
from pulumi.resource import DependencyResource

from components import naming, urns
from components.autoscaler import Autoscaler
from components.exposure import Exposure
from components.hosted_process import HostedProcess
from components.inference_deployment import InferenceDeployment
from components.installation import Foundation, Operator
from components.kubernetes_object import ServiceComponent, ServiceObjects, ServiceObjectsArgs
from components.model_cache import ModelCache, ModelCacheArgs
from components.monitoring import Monitoring
from components.rendered import RenderedObject, RenderedService
from components.routing import Routing
from kubeapi.json_types import Json

WINDOW = 32

_COMPONENTS: dict[str, ServiceComponent] = {
    naming.TYPE_SERVICE: InferenceDeployment,
    naming.TYPE_AUTOSCALER: Autoscaler,
    naming.TYPE_HOST_PROCESS: HostedProcess,
    naming.TYPE_EXPOSURE: Exposure,
    naming.TYPE_MONITORING: Monitoring,
    naming.TYPE_ROUTING: Routing,
    naming.TYPE_FOUNDATION: Foundation,
    naming.TYPE_OPERATOR: Operator,
}


@dataclass(frozen=True)
class FleetTarget:
    """The cluster and namespace in which services of a static fleet are made."""

    at: str = ""
    """What tells their logical names apart (`naming.place_suffix`)."""
    provider: pulumi.ProviderResource | None = None
    """Instead of the default provider of the `kubernetes` package."""
    ways: Mapping[str, Json] = field(default_factory=dict)
    """Hosts that are reached without a cluster, by name."""
    standing: frozenset[tuple[str, str]] = frozenset()
    """Type token and id of the objects that exist there and are the fleet's to take."""
    version: str = ""
    """That of the Kubernetes plugin, if it is not the SDK's."""


async def static_fleet(
    services: Iterable[tuple[RenderedService, FleetTarget]], *, window: int = WINDOW
) -> list[pulumi.CustomResource | None]:
    """Register all services of a fleet, each in its place, at most `window` of them under way at a time.

    The resources are those of Pulumi's Kubernetes SDK: Deployment, Service, HorizontalPodAutoscaler (ADR 48).
    Gives the last resource of each service in their order, None for a service without objects. The first failure ends
    the run, as in any Pulumi program. Raises ValueError for an object whose component does not exist.
    """
    programs: dict[str, _Program] = {}
    registered: list[pulumi.CustomResource | None] = []
    under_way: set[asyncio.Task[bool]] = set()
    for service, place in services:
        if len(under_way) >= window:
            _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        if place.at not in programs:
            opts = pulumi.ResourceOptions(providers=[place.provider]) if place.provider else None
            programs[place.at] = _Program(opts, place.at, place.ways, place.standing, place.version, by_sdk=True)
        started = programs[place.at].start(service)
        last = started.complete((*started.shared, *started.own)) if started is not None else None
        registered.append(last)
        if last is not None:
            under_way.add(asyncio.ensure_future(_stands(last)))
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

    It is made although an accessory was refused, with a hash that says so.

    It must be registered in any case: a target that the program leaves out is deleted. To depend on a resource that
    failed would end the whole program, so the dependencies are given by URN: the engine knows which of them failed,
    and then skips the object. On a shared object that stands there is no dependency at all, because the engine takes
    all that depends on a target for a target too, and so would delete what other services made of it.
    """
    whole = all(await asyncio.gather(*(_stands(resource) for resource in started.own)))
    shared = await asyncio.gather(*(_stands(resource) for resource in started.shared))
    stack = pulumi.get_stack()
    after = urns.needed_by_last(started.service, stack)
    if not all(shared):
        after |= urns.shared_objects(started.service, stack)
    last = started.complete([DependencyResource(urn) for urn in sorted(after)], whole=whole)
    await _stands(last)


async def _stands(resource: pulumi.Resource) -> bool:
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
    component: ServiceObjects
    own: tuple[pulumi.Resource, ...]
    shared: tuple[pulumi.Resource, ...]

    def complete(self, after: Sequence[pulumi.Resource], *, whole: bool = True) -> pulumi.CustomResource:
        last = self.service.objects[-1] if whole else self.service.last_without_accessories
        return self.component.complete(last, after=after)


@dataclass
class _Program:
    """One run of the program: what several services share is registered once."""

    opts: pulumi.ResourceOptions | None = None
    at: str = ""
    ways: Mapping[str, Json] = field(default_factory=dict)
    standing: frozenset[tuple[str, str]] = frozenset()
    version: str = ""
    by_sdk: bool = False
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
            token: _component(token)(
                ServiceObjectsArgs(
                    service.key, tuple(objects), self.at, self.ways, self.standing, self.version, self.by_sdk
                ),
                self.opts,
            )
            for token, objects in by_component.items()
        }
        made = tuple(child for component in components.values() for child in component.objects.values())
        return _Started(service, components[last.component], made, claims)

    def _claim(self, obj: RenderedObject) -> pulumi.CustomResource:
        if obj.name not in self.shared:
            args = ModelCacheArgs(obj, self.at, self.standing, self.version, self.by_sdk)
            self.shared[obj.name] = ModelCache(args, self.opts).claim
        return self.shared[obj.name]


def _component(token: str) -> ServiceComponent:
    try:
        return _COMPONENTS[token]
    except KeyError:
        raise ValueError(f"no component is registered for `{token}`") from None
