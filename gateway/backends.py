"""The models behind the gateway, each with its replicas and their idle connections. Belongs to the event loop's thread.

`server` replaces the models when the cluster changes; `connection` finds the backend of each request here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from agent.proxy.limits import Limits
from agent.proxy.upstream import Pool, Target
from gateway.balancer import Balancer
from gateway.names import Model, Names, ServiceName


@dataclass(frozen=True)
class Route:
    """One model with the addresses of its replicas, as the cluster reports them."""

    model: Model
    targets: tuple[Target, ...] = ()
    prefix_hash: bool = True
    """Requests with the same beginning go to the same replica."""


class Backend:
    """One model with its replicas."""

    def __init__(self, loop: asyncio.AbstractEventLoop, route: Route) -> None:
        self.balancer = Balancer()
        self._loop = loop
        self._pools: dict[Target, Pool] = {}
        self.route = route
        self.update(route)

    def update(self, route: Route) -> None:
        """Take over what the cluster reports now. Requests in progress are not disturbed."""
        self.route = route
        self.balancer.set_targets(route.targets)
        for target in self._pools.keys() - set(route.targets):
            self._pools.pop(target).keep_only(())

    def pool(self, target: Target) -> Pool:
        """Return the idle connections to a replica."""
        pool = self._pools.get(target)
        if pool is None:
            pool = self._pools[target] = Pool(self._loop, Limits())
            pool.keep_only((target,))
        return pool

    def close(self) -> None:
        """Close the idle connections."""
        for pool in self._pools.values():
            pool.keep_only(())
        self._pools.clear()


class Backends:
    """All models."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._backends: dict[ServiceName, Backend] = {}
        self.names = Names()
        self.are_known = False
        """The models of the cluster were read."""

    def set_routes(self, routes: Iterable[Route]) -> None:
        """Replace the models."""
        self.are_known = True
        wanted = {route.model.service: route for route in routes}
        for service in self._backends.keys() - wanted.keys():
            self._backends.pop(service).close()
        for service, route in wanted.items():
            if (backend := self._backends.get(service)) is None:
                self._backends[service] = Backend(self._loop, route)
            elif backend.route != route:
                backend.update(route)
        self.names = Names.of(route.model for route in wanted.values())

    def of(self, service: ServiceName) -> Backend | None:
        """Return the backend of a service."""
        return self._backends.get(service)

    def close(self) -> None:
        """Close all idle connections."""
        for backend in self._backends.values():
            backend.close()
