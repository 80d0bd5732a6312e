"""Desired state in, Kubernetes objects out: the one pure function behind the engine, previews and `herdsman render`.

Called by `program.fleet`, the loop (for the fingerprint), the CLI and the tests; calls the renderer of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator

from components.cache_claim import cache_claim
from components.deployment import deployment, is_stopped
from components.disruption_budget import disruption_budget
from components.extensions import is_installed, keda_scales
from components.ignored_fields import leaving_to_others
from components.level_objective import level_objective
from components.model_files import model_files
from components.network_policy import network_policy
from components.options import RenderOptions
from components.pod_autoscaler import pod_autoscaler
from components.pod_monitor import pod_monitor
from components.rendered import RenderedObject, RenderedService
from components.route import http_route, ingress
from components.scaled_object import scaled_object
from components.service import service
from components.workloads.render import rendered_workloads
from kubeapi import kinds
from program.desired.service import DesiredService
from program.runtimes import runtime_for

__all__ = ["RenderOptions", "render"]


def render(desired: DesiredService, options: RenderOptions) -> RenderedService:
    """Render all objects of a service, in the order in which they are made; the Deployment comes last.

    A service on hosts is a HostProcess for each replica that has a host, and nothing while it is stopped. One that
    describes its pods itself is what it describes.
    Raises SpecInvalid for what cannot be rendered at all, NotYet for what the cluster cannot run yet.
    """
    placement = desired.host_placement
    if placement is not None:
        # Imported here: plans bring the contract with agents, which a preview of pods should not wait for.
        from components.host_plan import host_process

        hosts = () if is_stopped(desired) else placement.hosts[: desired.replicas]
        processes = (host_process(desired, host, n) for n, host in enumerate(hosts) if host is not None)
        return RenderedService.of(desired.key, tuple(leaving_to_others(each, desired.drift) for each in processes))
    if desired.workloads is not None:
        return rendered_workloads(desired, desired.workloads, options)
    objects = (service(desired), *_asked_for(desired, options), deployment(desired, options))
    mounts_cache = model_files(desired, options).uses_cache_claim
    shared = (cache_claim(desired, options),) if mounts_cache and not options.claim_exists else ()
    own = tuple(leaving_to_others(each, desired.drift) for each in objects)
    return RenderedService.of(desired.key, own, shared)


def _asked_for(desired: DesiredService, options: RenderOptions) -> Iterator[RenderedObject]:
    """Render what not every service has, each kind by its own condition."""
    if (scaling := desired.autoscaling) is not None and not is_stopped(desired):
        by_keda = keda_scales(desired, scaling, options)
        yield scaled_object(desired, scaling, options) if by_keda else pod_autoscaler(desired, scaling)
    if desired.disruption.max_unavailable:
        yield disruption_budget(desired)
    if desired.network is not None:
        yield network_policy(desired, desired.network)
    if (expose := desired.expose) is not None and expose.by == "ingress":
        yield ingress(desired, expose)
    elif expose is not None and is_installed(kinds.HTTP_ROUTES, options):
        yield http_route(desired, expose)
    if options.monitors and runtime_for(desired.engine).serves_metrics and is_installed(kinds.POD_MONITORS, options):
        yield pod_monitor(desired)
    if desired.slo is not None and is_installed(kinds.SERVICE_LEVEL_OBJECTIVES, options):
        objective = level_objective(desired, desired.slo)
        if objective is not None:
            yield objective
