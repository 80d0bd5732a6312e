"""The models behind the gateway, each with its replicas and their idle connections. Belongs to the event loop's thread.

`server` replaces the models when the cluster changes; `connection` finds the backend of each request here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from agent.proxy.limits import Limits
from agent.proxy.upstream import Pool, Target
from gateway.engines.balancer import ANYWHERE, Balancer, Nearness, Traits
from gateway.engines.waiting import Holding, Waiting
from gateway.names import Model, Names, ServiceName
from gateway.routers.runtime import Routers
from program.desired.keys import ServiceKey
from program.desired.request_report import Counts
from program.dialects.engine_access import OPEN, EngineAccess

Locality = Literal["", "PreferSameZone", "PreferSameNode"]


class AdapterRoute(NamedTuple):
    """How requests for one adapter reach it. Only the adapters of LoRAAdapters have one."""

    targets: frozenset[Target]
    """The replicas that have loaded it."""
    engine_name: str
    """What the engine expects as `model`. Empty: the request's own value."""
    fields: Mapping[str, str] = MappingProxyType({})
    """Further fields of the body that name the adapter, as JSON."""


@dataclass(frozen=True)
class Route:
    """One model with the addresses of its replicas, as the cluster reports them."""

    model: Model
    targets: tuple[Target, ...] = ()
    prefix_hash: bool = True
    """Requests with the same beginning go to the same replica."""
    tls_targets: frozenset[Target] = frozenset()
    """The addresses that serve with TLS."""
    access: EngineAccess = OPEN
    """How requests reach the replicas."""
    traits: Mapping[Target, Traits] = field(default_factory=dict)
    """Where the replicas are, and their weights. One that is not named has the weight 1."""
    locality: Locality = ""
    """Which replicas are preferred: those near to the gateway, as far as it knows its own place."""
    holding: Holding | None = None
    """How requests wait while no replica runs. None: they do not wait."""
    adapters: Mapping[str, AdapterRoute] = field(default_factory=dict)
    """The adapters of LoRAAdapters, by name."""
    engine_state: tuple[str, ...] = ()
    """What the engine was asked to load and to unload. After a change its list of models is another one."""
    model_fields: Mapping[str, str] = field(default_factory=dict)
    """Further fields of bodies for the model itself, as JSON."""
    on_refused: Callable[[], None] | None = field(default=None, compare=False)
    """Called when an engine refuses the gateway's key or shows a certificate that is not trusted; returns at once."""


class Backend:
    """One model with its replicas."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        route: Route,
        place: Nearness = ANYWHERE,
        waits: Callable[[], None] = lambda: None,
    ) -> None:
        """`place` is the node and the zone of the gateway. `waits` is called when requests begin to wait."""
        self.waiting = Waiting(loop, str(route.model.service), waits)
        self.balancer = Balancer()
        self.used_at = float("-inf")
        """When the last request came."""
        self.is_waking = False
        """A request of the gateway itself wakes the service."""
        self._loop = loop
        self._place = place
        self._pools: dict[Target, Pool] = {}
        self._accepted: dict[Target, bytes] = {}
        """The header line with the key that a replica took last, where it is not the first one."""
        self.route = route
        self.update(route)

    def update(self, route: Route) -> None:
        """Take over what the cluster reports now. Requests in progress are not disturbed."""
        before, self.route = self.route, route
        self.balancer.set_targets(route.targets, route.traits)
        self.balancer.near = self._near(route.locality)
        gone = self._pools.keys() - set(route.targets)
        if (route.access.tls, route.tls_targets) != (before.access.tls, before.tls_targets):
            gone = set(self._pools)  # a new connection shows a certificate that is trusted now
        for target in gone:
            self._pools.pop(target).keep_only(())
        for target in self._accepted.keys() - set(route.targets):
            del self._accepted[target]
        self.waiting.update(route.holding, ready=bool(route.targets))

    @property
    def key(self) -> ServiceKey:
        """The service, as the loop names it."""
        service = self.route.model.service
        return ServiceKey(service.dialect, service.namespace, service.name)

    def _near(self, locality: Locality) -> Nearness:
        near = (
            self._place if locality == "PreferSameNode" else Nearness(zone=self._place.zone) if locality else ANYWHERE
        )
        return near if any(near) else ANYWHERE

    def authorization(self, target: Target, refused: Collection[bytes] = ()) -> bytes | None:
        """Return the header line with the key for a replica, empty without a key; None after all keys were refused.

        During a rotation some replicas demand the key before the present one.
        """
        lines = self.route.access.authorizations
        if not lines:
            return None if refused else b""
        last = self._accepted.get(target, b"")
        ordered = (last, *lines) if last in lines else lines
        return next((each for each in ordered if each not in refused), None)

    def accepts(self, target: Target, authorization: bytes) -> None:
        """Note which key a replica took."""
        lines = self.route.access.authorizations
        if not lines or authorization == lines[0]:
            self._accepted.pop(target, None)
        else:
            self._accepted[target] = authorization

    def refused(self) -> None:
        """Have the key and the certificates read again, because an engine did not accept them."""
        if self.route.on_refused is not None:
            self.route.on_refused()

    def pool(self, target: Target) -> Pool:
        """Return the idle connections to a replica."""
        pool = self._pools.get(target)
        if pool is None:
            access = self.route.access
            tls = (access.tls, access.server_name) if target in self.route.tls_targets else (None, "")
            pool = self._pools[target] = Pool(self._loop, Limits(), *tls)
            pool.keep_only((target,))
        return pool

    def close(self) -> None:
        """Answer the requests that wait, and close the idle connections."""
        self.waiting.close()
        for pool in self._pools.values():
            pool.keep_only(())
        self._pools.clear()


class Backends:
    """All models."""

    def __init__(self, loop: asyncio.AbstractEventLoop, place: Nearness = ANYWHERE) -> None:
        self._loop = loop
        self._place = place
        self._backends: dict[ServiceName, Backend] = {}
        self.names = Names()
        self.are_known = False
        """The models of the cluster were read."""
        self.routers = Routers()
        self.on_waits: Callable[[], None] = lambda: None
        """Called when requests of a model begin to wait; returns at once."""

    def set_routes(self, routes: Iterable[Route]) -> Set[ServiceName]:
        """Replace the models. Return those that are gone."""
        self.are_known = True
        wanted = {route.model.service: route for route in routes}
        gone = self._backends.keys() - wanted.keys()
        for service in gone:
            self._backends.pop(service).close()
        for service, route in wanted.items():
            if (backend := self._backends.get(service)) is None:
                self._backends[service] = Backend(self._loop, route, self._place, self._waits)
            elif backend.route != route:
                backend.update(route)
        self.names = Names.of(route.model for route in wanted.values())
        return gone

    def _waits(self) -> None:
        self.on_waits()

    def reported(self) -> dict[str, Counts]:
        """Return the requests of the models whose replicas the loop scales by them. Any thread may call it."""
        return {str(each.key): each.waiting.counts for each in self.all() if each.route.holding is not None}

    def of(self, service: ServiceName) -> Backend | None:
        """Return the backend of a service."""
        return self._backends.get(service)

    def all(self) -> list[Backend]:
        """Return all backends. Any thread may call it."""
        return list(self._backends.values())

    def close(self) -> None:
        """Close all idle connections."""
        for backend in self._backends.values():
            backend.close()
