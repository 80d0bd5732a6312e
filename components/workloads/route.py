"""The HTTPRoute of a service. Called by `render` of this package."""

from __future__ import annotations

from components import naming
from components.rendered import RenderedObject
from components.workloads.parts import manifest, settled
from kubeapi import kinds
from program.desired.service import DesiredService
from program.desired.workloads import Route


def http_route(desired: DesiredService, route: Route) -> RenderedObject:
    """Build the route from gateways to the service."""
    made = manifest(
        desired,
        kinds.HTTP_ROUTES,
        route.name,
        labels=route.labels,
        annotations=route.annotations,
        spec=settled(route.spec),
    )
    return RenderedObject("route", naming.TYPE_ROUTING, made)
