"""Desired state in, Kubernetes objects out: the one pure function behind the engine, previews and `herdsman render`.

Called by `program.fleet`, the loop (for the fingerprint), the CLI and the tests; calls the renderer of each kind.
"""

from __future__ import annotations

from components.cache_claim import cache_claim
from components.deployment import deployment
from components.host_plan import host_process
from components.model_files import model_files
from components.options import RenderOptions
from components.pod_autoscaler import pod_autoscaler
from components.rendered import RenderedService
from components.service import service
from program.desired.service import DesiredService

__all__ = ["RenderOptions", "render"]


def render(desired: DesiredService, options: RenderOptions) -> RenderedService:
    """Render all objects of a service, in the order in which they are made; the Deployment comes last.

    A service on a host is one HostProcess; while no host has been chosen it is nothing. Raises SpecInvalid for what
    cannot be rendered at all.
    """
    placement = desired.host_placement
    if placement is not None:
        processes = () if placement.host is None else (host_process(desired, placement.host),)
        return RenderedService.of(desired.key, processes)
    objects = [service(desired)]
    if desired.autoscaling is not None:
        objects.append(pod_autoscaler(desired, desired.autoscaling))
    objects.append(deployment(desired, options))
    mounts_cache = model_files(desired, options).uses_cache_claim
    shared = (cache_claim(desired, options),) if mounts_cache and not options.claim_exists else ()
    return RenderedService.of(desired.key, tuple(objects), shared)
