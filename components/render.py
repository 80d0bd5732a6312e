"""Renders desired state as Kubernetes objects: one pure function for the engine, previews and `herdsman render`.

Called by `program.fleet`, the loop (for the fingerprint), the CLI and the tests. The services of all dialects become
`Workloads`. This module makes the objects from them, with one function for each kind that is more than a spec.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from components import naming
from components.adapter_pods import with_adapters
from components.engine_workloads import engine_workloads, is_stopped
from components.extensions import REASON
from components.ignored_fields import with_drift_policy
from components.model_cache import cache_claim
from components.naming import adoption, object_metadata
from components.options import RenderOptions
from components.rendered import RenderedObject, RenderedService, fingerprint_of
from components.scaling import with_request_scaler
from components.uncounted_fields import uncounted_annotation
from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.errors import NotYet
from program.desired.service import DesiredService
from program.desired.workloads import Access, FrontService, ObjectSpec, PodGroup, PodSet, Route, Scaler, Workloads

__all__ = ["RenderOptions", "render"]

LWS_DOCS = "https://lws.sigs.k8s.io/docs/installation"
RETRY_S = 300.0
"""Retry delay in seconds. The loop also watches for new kinds; the retry covers a missed event."""

_ROUTING = frozenset({"scheduler", "tokenizer"})
"""Parts of a service that choose the pod for a request."""


def render(desired: DesiredService, options: RenderOptions) -> RenderedService:
    """Render all objects of a service in order of creation; the object that runs the serving pods comes last.

    A service on hosts is one HostProcess for each replica that has a host, and nothing while it is stopped. A service
    that describes its pods itself has no objects while it is suspended. Objects of extensions that the cluster does not
    serve are left out; `components.extensions.unsupported_by_cluster` lists them. Raises SpecInvalid for a service that
    can never be rendered, and NotYet for one that the cluster cannot run yet.
    """
    placement = desired.host_placement
    if placement is not None:
        # Imported here, because plans import the contract with agents, which a preview of pods does not need.
        from components.host_plan import host_process

        hosts = () if is_stopped(desired) else placement.hosts[: desired.replicas]
        processes = (host_process(desired, host, n) for n, host in enumerate(hosts) if host is not None)
        return RenderedService.of(desired.key, tuple(with_drift_policy(each, desired.drift) for each in processes))
    if desired.workloads is None:
        workloads = engine_workloads(desired, options)
    elif desired.suspended:
        return RenderedService.of(desired.key, ())
    else:
        workloads = with_adapters(desired.workloads, desired, options).without_nulls()
    workloads = with_request_scaler(workloads, desired, options)
    _require_groups(workloads, options)
    objects = tuple(with_drift_policy(each, desired.drift) for each in _objects(desired, workloads, options))
    makes_claim = workloads.uses_cache_claim and not options.claim_exists
    return RenderedService.of(desired.key, objects, (cache_claim(desired, options),) if makes_claim else ())


def _objects(desired: DesiredService, workloads: Workloads, options: RenderOptions) -> Iterator[RenderedObject]:
    """Render the objects kind by kind. The fingerprint depends on the order."""
    for access in workloads.access:
        yield from _access(desired, access)
    for service in workloads.services:
        yield _service(desired, service)
    if options.may_have(kinds.CLAIM_TEMPLATES):
        for claim in workloads.claim_templates:
            yield _object(desired, kinds.CLAIM_TEMPLATES, f"claims/{claim.name}", naming.TYPE_SERVICE, claim)
    if workloads.pool is not None and options.may_have(kinds.INFERENCE_POOLS):
        yield _object(desired, kinds.INFERENCE_POOLS, "pool", naming.TYPE_ROUTING, workloads.pool)
    if workloads.route is not None and options.may_have(kinds.HTTP_ROUTES):
        yield _object(desired, kinds.HTTP_ROUTES, "route", naming.TYPE_ROUTING, workloads.route)
    for pods in workloads.pods:
        if (scaler := pods.scaler) is not None and options.may_have(_scaler_kind(scaler)):
            yield _scaler(desired, pods, scaler)
    if (budget := workloads.budget) is not None:
        yield _object(desired, kinds.DISRUPTION_BUDGETS, "budget", naming.TYPE_SERVICE, budget)
    if (policy := workloads.network_policy) is not None:
        yield _object(desired, kinds.NETWORK_POLICIES, "network", naming.TYPE_SERVICE, policy)
    if isinstance(exposure := workloads.exposure, Route):
        yield _object(desired, kinds.HTTP_ROUTES, "route", naming.TYPE_EXPOSURE, exposure)
    elif exposure is not None:
        yield _object(desired, kinds.INGRESSES, "ingress", naming.TYPE_EXPOSURE, exposure)
    if (monitor := workloads.monitor) is not None:
        yield _object(desired, kinds.POD_MONITORS, "monitor", naming.TYPE_MONITORING, monitor)
    if (objective := workloads.objective) is not None:
        yield _object(desired, kinds.SERVICE_LEVEL_OBJECTIVES, "objective", naming.TYPE_MONITORING, objective)
    main, *others = workloads.pods
    for pods in others:
        yield _pod_set(desired, pods, options)
    yield _pod_set(desired, main, options, is_main=True)


def _require_groups(workloads: Workloads, options: RenderOptions) -> None:
    if options.may_have(kinds.LEADER_WORKER_SETS):
        return
    for pods in workloads.pods:
        if pods.group is not None:
            raise NotYet(
                reason=REASON,
                field=pods.group.asked_by or "spec",
                why=f"the pods of {pods.name} run in groups and need {kinds.LEADER_WORKER_SETS.full_name}, which this "
                f"cluster does not serve; install LeaderWorkerSet ({LWS_DOCS})",
                retry_after_s=RETRY_S,
            )


def _manifest(
    desired: DesiredService,
    kind: Kind,
    name: str,
    labels: dict[str, str],
    annotations: dict[str, str] | None = None,
    **fields: Any,
) -> Json:
    """Build an object around its metadata. Only in a namespace can the custom resource own it."""
    if kind.namespaced:
        metadata = object_metadata(desired, name, labels, annotations)
    else:
        metadata = {"name": name, "labels": labels}
        if notes := {**(annotations or {}), **adoption(desired)}:
            metadata["annotations"] = notes
    if not labels:
        del metadata["labels"]
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **fields}


def _object(desired: DesiredService, kind: Kind, part: str, component: str, of: ObjectSpec) -> RenderedObject:
    """Build an object whose whole spec the workloads contain."""
    return RenderedObject(part, component, _manifest(desired, kind, of.name, of.labels, of.annotations, spec=of.spec))


def _component_of(part: str) -> str:
    """Return the type token of the component whose children the objects of a part are."""
    return naming.TYPE_ROUTING if part in _ROUTING else naming.TYPE_SERVICE


def _access(desired: DesiredService, access: Access) -> Iterator[RenderedObject]:
    """Build the service account of some pods and its rights, the account first, unless the account is the user's.

    No object in a namespace can own the ClusterRoleBinding. It is deleted when the service leaves the program, and is
    found by its labels if the state was lost.
    """

    def made(part: str, kind: Kind, name: str, **fields: Any) -> RenderedObject:
        manifest = _manifest(desired, kind, name, access.labels, None, **fields)
        return RenderedObject(f"access/{access.part}/{part}", _component_of(access.part), manifest)

    def bound(kind: str, role: str) -> Json:
        account = {"kind": kinds.SERVICE_ACCOUNTS.kind, "name": access.service_account}
        subjects = [{**account, "namespace": desired.key.namespace}]
        return {"subjects": subjects, "roleRef": {"apiGroup": kinds.ROLES.group, "kind": kind, "name": role}}

    if not access.account_exists:
        lists = {"imagePullSecrets": access.image_pull_secrets, "secrets": access.secrets}
        account = {name: list(values) for name, values in lists.items() if values}
        yield made("account", kinds.SERVICE_ACCOUNTS, access.service_account, **account)
    if access.role:
        yield made("role", kinds.ROLES, access.role, rules=list(access.rules))
    if access.binding:
        yield made("binding", kinds.ROLE_BINDINGS, access.binding, **bound(kinds.ROLES.kind, access.role))
    if access.cluster_binding:
        to_all = bound("ClusterRole", access.cluster_role)
        yield made("cluster-binding", kinds.CLUSTER_ROLE_BINDINGS, access.cluster_binding, **to_all)


def _service(desired: DesiredService, service: FrontService) -> RenderedObject:
    spec: Json = {"type": service.type} if service.type else {}
    spec |= {"selector": service.selector, "ports": list(service.ports)}
    made = _manifest(desired, kinds.SERVICES, service.name, service.labels, service.annotations, spec=spec)
    part = service.logical_part or f"services/{service.part}"
    return RenderedObject(part, _component_of(service.part), made)


def _scaler_kind(scaler: Scaler) -> Kind:
    return kinds.SCALED_OBJECTS if scaler.kind == kinds.SCALED_OBJECTS.kind else kinds.AUTOSCALERS


def _scaler(desired: DesiredService, pods: PodSet, scaler: Scaler) -> RenderedObject:
    """Build the autoscaler of a set of pods."""
    kind = _pods_kind(pods)
    target: Json = {"apiVersion": kind.api_version, "kind": kind.kind, "name": pods.name}
    if (other := scaler.target) is not None:
        target = {"apiVersion": other.api_version, "kind": other.kind, "name": other.name}
    spec = {"scaleTargetRef": target, **scaler.spec}
    made = _manifest(desired, _scaler_kind(scaler), scaler.name, scaler.labels, scaler.annotations, spec=spec)
    return RenderedObject(scaler.logical_part or f"scaler/{scaler.part}", naming.TYPE_AUTOSCALER, made)


def _pods_kind(pods: PodSet) -> Kind:
    return kinds.DEPLOYMENTS if pods.group is None else kinds.LEADER_WORKER_SETS


def _pod_set(desired: DesiredService, pods: PodSet, options: RenderOptions, *, is_main: bool = False) -> RenderedObject:
    """Build the object that runs a set of pods: a Deployment, or a LeaderWorkerSet for pods in groups.

    The object does not set the number of pods while an autoscaler sets it. For the serving pods it also does not while
    another client scales them (`options.scaled_elsewhere`). If an autoscaler scales the custom resource instead, the
    object sets the number.
    """
    scaled_elsewhere = is_main and options.scaled_elsewhere and pods.replicas is not None
    if pods.is_stopped:
        replicas: int | None = 0
    elif scaled_elsewhere or (pods.scaler is not None and pods.scaler.target is None):
        replicas = None
    else:
        replicas = pods.replicas
    as_counted = _as_counted(pods)
    spec = _spec(desired, pods, replicas)
    counted = spec if as_counted is pods else _spec(desired, as_counted, replicas)
    template = counted["template"] if pods.group is None else counted["leaderWorkerTemplate"]
    annotations = {
        **pods.annotations,
        **uncounted_annotation(spec, counted),
        naming.ANNOTATION_TEMPLATE_HASH: fingerprint_of(template),
    }
    if scaled_elsewhere:
        annotations[naming.ANNOTATION_ASKED_REPLICAS] = str(pods.replicas)
    made = _manifest(desired, _pods_kind(pods), pods.name, pods.labels, annotations, spec=spec)
    differs = counted if naming.ANNOTATION_UNCOUNTED in annotations else None
    part = pods.logical_part or f"pods/{pods.part}"
    return RenderedObject(part, _component_of(pods.part), made, counted_spec=differs)


def _as_counted(pods: PodSet) -> PodSet:
    """Return a set of pods as hashes count it; the same object if there is no difference."""
    group = pods.group
    if pods.counted is None and (group is None or group.counted_leader is None):
        return pods
    if group is not None and group.counted_leader is not None:
        group = group.model_copy(update={"leader": group.counted_leader})
    template = pods.template if pods.counted is None else pods.counted
    return pods.model_copy(update={"template": template, "group": group})


def _spec(desired: DesiredService, pods: PodSet, replicas: int | None) -> Json:
    number = {} if replicas is None else {"replicas": replicas}
    return _group_spec(pods, pods.group, number) if pods.group is not None else _deployment_spec(desired, pods, number)


def _deployment_spec(desired: DesiredService, pods: PodSet, number: Json) -> Json:
    spec: Json = {"selector": {"matchLabels": pods.selector}, "template": _template(pods.template), **number}
    if pods.strategy is not None:
        spec["strategy"] = pods.strategy
    if desired.revision_history_limit is not None:
        spec["revisionHistoryLimit"] = desired.revision_history_limit
    return spec


def _group_spec(pods: PodSet, group: PodGroup, number: Json) -> Json:
    of_group: Json = {"size": group.size, "workerTemplate": _template(pods.template)}
    if group.leader is not None:
        of_group["leaderTemplate"] = _template(group.leader)
    if group.restart_policy:
        of_group["restartPolicy"] = group.restart_policy
    if group.sub_group_policy is not None:
        of_group["subGroupPolicy"] = group.sub_group_policy
    spec: Json = {**number, "leaderWorkerTemplate": of_group}
    if group.startup_policy:
        spec["startupPolicy"] = group.startup_policy
    if group.rollout is not None:
        spec["rolloutStrategy"] = group.rollout
    return spec


def _template(template: Json) -> Json:
    """Copy a pod template without empty metadata."""
    metadata = {key: value for key, value in (template.get("metadata") or {}).items() if value != {}}
    rest = {key: value for key, value in template.items() if key != "metadata"}
    return {"metadata": metadata, **rest} if metadata else rest
