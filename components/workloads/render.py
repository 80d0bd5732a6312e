"""All objects of a service that describes its pods itself, in the order in which they are made.

Called by `components.render`; calls the renderer of each kind. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from components.extensions import REASON, may_be_made
from components.ignored_fields import leaving_to_others
from components.options import RenderOptions
from components.rendered import RenderedObject, RenderedService
from components.workloads.access import access_objects
from components.workloads.claim_template import claim_template
from components.workloads.fronts import front
from components.workloads.pod_sets import pod_set
from components.workloads.pool import inference_pool
from components.workloads.route import http_route
from components.workloads.scaler import autoscaler, scaler_kind
from kubeapi import kinds
from program.desired.errors import NotYet
from program.desired.service import DesiredService
from program.desired.workloads import Workloads

LWS_DOCS = "https://lws.sigs.k8s.io/docs/installation"
RETRY_S = 300.0
"""The loop hears of a new kind by itself; this is for the case that it does not."""


def rendered_workloads(desired: DesiredService, workloads: Workloads, options: RenderOptions) -> RenderedService:
    """Render a service; nothing at all while it is suspended. The pods that serve come last, with the applied hash.

    Objects of extensions that the cluster does not serve are left out; `components.extensions.unsupported_by_cluster`
    lists them. A service without pods has no objects.

    Raises NotYet where pods need LeaderWorkerSet and the cluster does not serve it, SpecInvalid for a drift policy that
    names what must stay ours.
    """
    if desired.suspended:
        return RenderedService.of(desired.key, ())
    _require_groups(workloads, options)
    made = (*_before_pods(desired, workloads, options), *_pods(desired, workloads, options))
    return RenderedService.of(desired.key, tuple(leaving_to_others(each, desired.drift) for each in made))


def _before_pods(desired: DesiredService, workloads: Workloads, options: RenderOptions) -> Iterator[RenderedObject]:
    for access in workloads.access:
        yield from access_objects(desired, access)
    for service in workloads.services:
        yield front(desired, service)
    if may_be_made(kinds.CLAIM_TEMPLATES, options):
        for template in workloads.claim_templates:
            yield claim_template(desired, template)
    if workloads.pool is not None and may_be_made(kinds.INFERENCE_POOLS, options):
        yield inference_pool(desired, workloads.pool)
    if workloads.route is not None and may_be_made(kinds.HTTP_ROUTES, options):
        yield http_route(desired, workloads.route)
    for pods in workloads.pods:
        scaler = pods.scaler
        if scaler is None:
            continue
        kind = scaler_kind(scaler)
        if kind not in kinds.OPTIONAL or may_be_made(kind, options):
            yield autoscaler(desired, pods, scaler)


def _pods(desired: DesiredService, workloads: Workloads, options: RenderOptions) -> Iterator[RenderedObject]:
    main, *others = workloads.pods
    for pods in others:
        yield pod_set(desired, pods, options)
    yield pod_set(desired, main, options, is_main=True)


def _require_groups(workloads: Workloads, options: RenderOptions) -> None:
    if may_be_made(kinds.LEADER_WORKER_SETS, options):
        return
    for pods in workloads.pods:
        if pods.group is not None:
            raise NotYet(
                reason=REASON,
                field=pods.group.asked_by or "spec",
                why=f"the pods of {pods.name} live in groups and need {kinds.LEADER_WORKER_SETS.full_name}, which this "
                f"cluster does not serve; install LeaderWorkerSet ({LWS_DOCS})",
                retry_after_s=RETRY_S,
            )
