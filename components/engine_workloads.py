"""The workloads of a service that names an engine and a model: one set of pods and the objects around it.

`components.render` calls `engine_workloads`. Names and labels are LLMKube's. `components.pod_template` builds the pods.
"""

from __future__ import annotations

from collections.abc import Iterable

from components import naming
from components.model_files import model_files
from components.monitoring import level_objective, pod_monitor
from components.naming import selector_labels, workload_labels
from components.options import RenderOptions
from components.pod_template import container_port, is_exclusive, pod_template
from components.scaling import scaler
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.service import DesiredService, Exposure, NetworkAccess
from program.desired.workloads import FrontService, Ingress, ObjectSpec, PodSet, Route, Workloads
from program.runtimes import runtime_for

DEFAULT_PORT = 8080
"""The port in LLMKube's URLs. It does not depend on the port that the engine listens on."""
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""A label that the API server sets on every namespace."""
MODEL_HEADER = "x-ai-eg-model"
"""Envoy AI Gateway copies the model's name from the request's body to this header before it chooses a route."""
LONGEST_ANSWER = "1h"
"""A long completion streams for minutes. Gateways end requests after 15 s by default."""


def engine_workloads(desired: DesiredService, options: RenderOptions) -> Workloads:
    """Build the workloads of a service.

    Objects of extensions that the cluster does not serve are left out. Raises SpecInvalid for a metric without a
    target, and for the reasons of `pod_template`.
    """
    name, labels = naming.deployment_name(desired.key.name), selector_labels(desired)
    services = (_front(desired, labels),)
    scaling = None if is_stopped(desired) else desired.autoscaling
    autoscaler = None if scaling is None else scaler(desired, scaling, options)
    away = desired.disruption.max_unavailable
    monitored = options.monitors and runtime_for(desired.engine).serves_metrics
    monitored = monitored and options.is_installed(kinds.POD_MONITORS)
    has_objective = desired.slo is not None and options.is_installed(kinds.SERVICE_LEVEL_OBJECTIVES)
    objective = level_objective(desired, desired.slo) if desired.slo is not None and has_objective else None
    files = model_files(desired, options)
    pods = PodSet(
        part="main",
        logical_part="deployment",
        name=name,
        labels=workload_labels(desired),
        annotations=_sleep_marks(desired, options),
        selector=labels,
        template=pod_template(desired, options, files),
        replicas=desired.replicas,
        is_stopped=is_stopped(desired) or options.asleep,
        strategy=_strategy(desired),
        scaler=autoscaler,
    )
    return Workloads(
        pods=(pods,),
        services=services,
        exposure=_exposure(desired, desired.expose, options) if desired.expose is not None else None,
        budget=_budget(name, labels, away) if away else None,
        network_policy=_network_policy(desired, name, labels, desired.network) if desired.network is not None else None,
        monitor=pod_monitor(desired) if monitored else None,
        objective=objective,
        uses_cache_claim=files.uses_cache_claim,
    )


def _sleep_marks(desired: DesiredService, options: RenderOptions) -> dict[str, str]:
    if not options.asleep:
        return {}
    pool = {naming.ANNOTATION_POOL: options.pool} if options.pool else {}
    return {naming.ANNOTATION_ASLEEP: str(desired.replicas), **pool}


def is_stopped(desired: DesiredService) -> bool:
    """Return whether no replica may run, even if the service has an autoscaler.

    `replicas: 0` stops a service. If the autoscaler may scale to zero, `replicas: 0` is the initial number instead.
    """
    scaling = desired.autoscaling
    return desired.suspended or (desired.replicas == 0 and (scaling is None or scaling.min_replicas > 0))


def service_port(desired: DesiredService) -> int:
    """Return the port of the Service, which clients use."""
    return DEFAULT_PORT if desired.endpoint.port is None else desired.endpoint.port


def other_namespaces(desired: DesiredService, access: NetworkAccess) -> tuple[str, ...]:
    """Return the other namespaces whose pods may connect; pods of the service's own namespace always may."""
    gateway = desired.expose.gateway_namespace if desired.expose else ""
    return tuple(dict.fromkeys((*access.namespaces, *([gateway] if gateway else []))))


def _front(desired: DesiredService, labels: dict[str, str]) -> FrontService:
    """Build the Service, which maps the clients' port to the container's port."""
    endpoint = desired.endpoint
    port: Json = {
        "name": "http",
        "protocol": "TCP",
        "port": service_port(desired),
        "targetPort": container_port(desired),
    }
    if endpoint.type == "NodePort" and endpoint.node_port is not None:
        port["nodePort"] = endpoint.node_port
    name = naming.service_name(desired.key.name)
    return FrontService(
        part="main",
        logical_part="service",
        name=name,
        labels=labels,
        type=endpoint.type,
        selector=labels,
        ports=(port,),
    )


def _strategy(desired: DesiredService) -> Json | None:
    """Return the strategy of the Deployment; None for Kubernetes' default.

    By default Kubernetes starts a new pod before it ends an old one.
    """
    away = desired.disruption.max_unavailable
    exclusive = is_exclusive(desired.gpu)
    if away:
        rolling: Json = {"maxUnavailable": _count_or_share(away)}
        if exclusive and away not in ("0", "0%"):
            # An additional pod would wait for the GPUs of the old pods.
            rolling["maxSurge"] = 0
        return {"type": "RollingUpdate", "rollingUpdate": rolling}
    # The new pod would wait for the GPUs of the old pod.
    return {"type": "Recreate"} if exclusive else None


def _budget(name: str, labels: dict[str, str], away: str) -> ObjectSpec:
    """Build the PodDisruptionBudget, which drains of nodes and the loop's own evictions respect."""
    spec: Json = {
        "maxUnavailable": _count_or_share(away),
        "selector": {"matchLabels": labels},
        # Without this, a pod in a crash loop blocks the drain of its node for ever.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return ObjectSpec(name=name, labels=labels, spec=spec)


def _count_or_share(text: str) -> int | str:
    """Return `1` as a number and `25%` as text, the two forms that budgets and strategies accept."""
    return int(text) if text.isdigit() else text


def _network_policy(desired: DesiredService, name: str, labels: dict[str, str], access: NetworkAccess) -> ObjectSpec:
    """Build the policy, which admits pods of the service's namespace and of the named ones to the engine's port only.

    With `access.gateway` it admits the pods of Herdsman only.

    The kubelet's probes come from the node; network plugins let them through. The policy does not limit outgoing
    connections of the pods.
    """
    spec: Json = {
        "podSelector": {"matchLabels": labels},
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": _of_herdsman(access.gateway)
                if access.gateway
                else [{"podSelector": {}}, *_of_namespaces(other_namespaces(desired, access))],
                "ports": [{"protocol": "TCP", "port": container_port(desired)}],
            }
        ],
    }
    return ObjectSpec(name=name, labels=labels, spec=spec)


def _of_herdsman(namespace: str) -> list[Json]:
    """Select the gateway, and the loop, which passes on the requests that wake a service."""
    herdsman = {"matchLabels": {"app.kubernetes.io/part-of": "herdsman"}}
    return [{"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: namespace}}, "podSelector": herdsman}]


def _of_namespaces(names: Iterable[str]) -> list[Json]:
    return [{"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: name}}} for name in names]


def _exposure(desired: DesiredService, expose: Exposure, options: RenderOptions) -> Route | Ingress | None:
    if expose.by == "ingress":
        return _ingress(desired, expose)
    return _route(desired, expose) if options.is_installed(kinds.HTTP_ROUTES) else None


def _route(desired: DesiredService, expose: Exposure) -> Route:
    """Build the HTTPRoute. The Gateway decides which namespaces may attach routes to it."""
    name = naming.service_name(desired.key.name)
    parent: Json = {"name": expose.gateway}
    if expose.gateway_namespace:
        parent["namespace"] = expose.gateway_namespace
    match: Json = {"path": {"type": "PathPrefix", "value": "/"}}
    if expose.model_name:
        match["headers"] = [{"type": "Exact", "name": MODEL_HEADER, "value": expose.model_name}]
    backend: Json = {"name": name, "port": service_port(desired)}
    spec: Json = {
        "parentRefs": [parent],
        "rules": [{"matches": [match], "backendRefs": [backend], "timeouts": {"request": LONGEST_ANSWER}}],
    }
    if expose.host:
        spec["hostnames"] = [expose.host]
    return Route(name=name, labels=selector_labels(desired), spec=spec)


def _ingress(desired: DesiredService, expose: Exposure) -> Ingress:
    """Build the Ingress. Ingresses have no field for timeouts; users set an annotation of their ingress controller."""
    name = naming.service_name(desired.key.name)
    service: Json = {"name": name, "port": {"name": "http"}}
    rule: Json = {"http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {"service": service}}]}}
    if expose.host:
        rule["host"] = expose.host
    spec: Json = {"rules": [rule]}
    if expose.ingress_class:
        spec["ingressClassName"] = expose.ingress_class
    if expose.tls_secret:
        spec["tls"] = [{"secretName": expose.tls_secret, **({"hosts": [expose.host]} if expose.host else {})}]
    return Ingress(name=name, labels=selector_labels(desired), spec=spec)
