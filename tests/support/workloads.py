"""Builders of services that describe their own pods, in the shape of KServe services with all optional parts."""

from __future__ import annotations

from typing import Any

from kubeapi.json_types import Json
from program.desired.engines import Vllm
from program.desired.keys import Owner, ServiceKey
from program.desired.model import DesiredModel, ModelSource, SourceKind
from program.desired.service import DesiredService
from program.desired.workloads import (
    Access,
    ClaimTemplate,
    FrontService,
    PodGroup,
    PodSet,
    Pool,
    Route,
    Scaler,
    Workloads,
)

IMAGE = "registry.example/vllm:1"


def marks(name: str) -> dict[str, str]:
    """The labels that identify the objects of a KServe service."""
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "llminferenceservice"}


def template(labels: dict[str, str], *, image: str = IMAGE, args: tuple[str, ...] = ()) -> Json:
    """A pod template with one engine, a loader and a folder for its files."""
    mount = {"name": "weights", "mountPath": "/mnt/models"}
    main = {"name": "main", "image": image, "args": ["serve", *args], "volumeMounts": [{**mount, "readOnly": True}]}
    loader = {"name": "storage-initializer", "image": "registry.example/loader:1", "args": ["hf://o/m", "/mnt/models"]}
    return {
        "metadata": {"labels": labels, "annotations": {}},
        "spec": {
            "initContainers": [{**loader, "volumeMounts": [mount]}],
            "containers": [{**main, "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
            "volumes": [{"name": "weights", "emptyDir": {}}],
            "terminationGracePeriodSeconds": None,
        },
    }


def pod_set(part: str = "main", *, name: str, of: str, **fields: Any) -> PodSet:
    """A Deployment of one pod."""
    labels = {**marks(of), "app.kubernetes.io/component": part}
    return PodSet(
        **{
            "part": part,
            "name": name,
            "labels": labels,
            "selector": labels,
            "template": template(labels),
            "replicas": 1,
            **fields,
        }
    )


def group_set(part: str = "main", *, name: str, of: str, size: int = 2, **fields: Any) -> PodSet:
    """A LeaderWorkerSet of one group."""
    leader = template({**marks(of), "role": "leader"}, args=("--leader",))
    group = PodGroup(
        size=size,
        leader=leader,
        restart_policy="RecreateGroupOnPodRestart",
        startup_policy="LeaderCreated",
        asked_by="spec.worker",
    )
    worker = template({**marks(of), "role": "worker"}, args=("--worker",))
    return pod_set(part, name=name, of=of, **{"selector": {}, "template": worker, "group": group, **fields})


def hpa(name: str, part: str = "main") -> Scaler:
    """A HorizontalPodAutoscaler by CPU."""
    target = {"type": "Utilization", "averageUtilization": 80}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    spec = {"minReplicas": 1, "maxReplicas": 4, "metrics": [metric]}
    return Scaler(part=part, kind="HorizontalPodAutoscaler", name=name, spec=spec)


def keda(name: str, part: str = "main") -> Scaler:
    """A ScaledObject by a query."""
    asked = {"serverAddress": "http://p:9090", "query": "up", "threshold": "1"}
    spec = {"maxReplicaCount": 4, "triggers": [{"type": "prometheus", "metadata": asked}]}
    return Scaler(part=part, kind="ScaledObject", name=name, spec=spec, asked_by="spec.scaling.keda")


def everything(name: str, namespace: str = "ns", **fields: Any) -> Workloads:
    """A Workloads with servers, prefill pods and an endpoint picker, with a pool, a route, an account and its
    rights.
    """
    labels = marks(name)
    epp = f"{name}-epp"
    picker = {"name": f"{epp}-service", "port": {"number": 9002}}
    pool = {"selector": {"matchLabels": labels}, "targetPorts": [{"number": 8000}], "endpointPickerRef": picker}
    backend = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": f"{name}-pool", "port": 8000}
    path = {"path": {"type": "PathPrefix", "value": f"/{namespace}/{name}"}}
    rules = ({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},)
    devices = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example"}}]}}}
    return Workloads(
        **{
            "pods": (
                pod_set("main", name=f"{name}-kserve", of=name),
                pod_set("prefill", name=f"{name}-kserve-prefill", of=name),
                pod_set("scheduler", name=f"{name}-kserve-router-scheduler", of=name),
            ),
            "services": (
                FrontService(
                    part="main",
                    name=f"{name}-kserve-workload-svc",
                    labels=labels,
                    selector=labels,
                    ports=({"name": "http", "port": 8000, "targetPort": 8000, "protocol": "TCP"},),
                ),
                FrontService(
                    part="scheduler",
                    name=f"{epp}-service",
                    labels=labels,
                    selector={**labels, "app.kubernetes.io/component": "scheduler"},
                    ports=({"name": "grpc", "port": 9002, "targetPort": "grpc", "protocol": "TCP"},),
                ),
            ),
            "access": (
                Access(
                    part="scheduler",
                    labels=labels,
                    service_account=f"{epp}-sa",
                    role=f"{epp}-role",
                    rules=rules,
                    binding=f"{epp}-rb",
                    cluster_role="system:auth-delegator",
                    cluster_binding=f"{namespace}-{epp}-auth-rb",
                ),
            ),
            "pool": Pool(name=f"{name}-pool", labels=labels, spec=pool, asked_by="spec.router.scheduler"),
            "route": Route(
                name=f"{name}-kserve-route",
                labels=labels,
                spec={
                    "parentRefs": [{"name": "gw", "namespace": "kserve"}],
                    "rules": [{"matches": [path], "backendRefs": [backend]}],
                },
                asked_by="spec.router.route",
            ),
            "claim_templates": (ClaimTemplate(name=f"{name}-managed-dra", labels=labels, spec=devices),),
            **fields,
        }
    )


def described(
    workloads: Workloads | None = None, *, name: str = "svc", namespace: str = "ns", **fields: Any
) -> DesiredService:
    """A whole KServe service in the desired state."""
    source = ModelSource(kind=SourceKind.REPOSITORY, address="hf://o/m", repository="o/m")
    return DesiredService(
        **{
            "key": ServiceKey("kserve", namespace, name),
            "owner": Owner(
                api_version="serving.kserve.io/v1alpha2", kind="LLMInferenceService", name=name, uid="uid-1"
            ),
            "model": DesiredModel(name=name, source=source),
            "engine": Vllm(),
            "workloads": everything(name, namespace) if workloads is None else workloads,
            **fields,
        }
    )
