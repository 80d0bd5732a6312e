"""The objects of services with many optional features, applied to a real API server in a dry run.

The API server validates every field of Kubernetes' own kinds, and may drop none. For kinds of extensions the test
installs CRDs that accept any content.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from components.options import RenderOptions
from components.priority_classes import priority_classes
from components.render import render
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.desired.engines import LlamaCppRouter, SecretKey, Sglang, SpeculativeDecoding, Vllm
from program.desired.keys import ServiceKey
from program.desired.model import Gpu
from program.desired.service import (
    Autoscaling,
    DesiredService,
    Disruption,
    Endpoint,
    Exposure,
    ModelStorage,
    NetworkAccess,
    PodSettings,
    RolloutPolicy,
    ScalingMetric,
    ServiceLevelObjective,
)
from tests.support import controlplane, extensions
from tests.support.builders import KEY, claim_model, http_model, repository_model, service

AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
        }
    }
}
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {"app": "svc"}},
}
POD = PodSettings(
    ephemeral_storage="20Gi",
    affinity=AFFINITY,
    topology_spread=(SPREAD,),
    extra_volumes=({"name": "scratch", "emptyDir": {}},),
    extra_volume_mounts=({"name": "scratch", "mountPath": "/scratch"},),
)
SET = repository_model(cache_key=KEY, file_name="a/m.gguf", files=("a/m.gguf",), mmproj="p.gguf", source_secret="hf")
CPU = ScalingMetric(type="Resource", name="cpu", target_average_utilization=60)
WAITS = RolloutPolicy(wait_for_idle=True)

CASES: dict[str, dict[str, Any]] = {
    "everything": {
        "expose": Exposure(by="gateway", gateway="public", gateway_namespace="infra", host="llm.example"),
        "network": NetworkAccess(namespaces=("chat",)),
        "disruption": Disruption(max_unavailable="25%"),
        "slo": ServiceLevelObjective(objective="99.5"),
        "autoscaling": Autoscaling(min_replicas=0, max_replicas=2, metrics=(CPU,)),
        "rollout": WAITS,
        "readiness_gate": True,
        "revision_history_limit": 2,
        "pod": POD,
        "model": SET,
        "api_key": SecretKey(name="keys", key="api-key"),
        "draft": http_model(name="small", cache_key="0123456789abcdef"),
        "bind_address": "0.0.0.0",
    },
    "ingress": {
        "expose": Exposure(by="ingress", host="llm.example", ingress_class="nginx", tls_secret="cert"),
        "autoscaling": Autoscaling(min_replicas=0, max_replicas=2),
        "endpoint": Endpoint(port=80, type="NodePort", node_port=31234),
        "engine": Vllm(hf_token=SecretKey(name="hf", key="token")),
        "slo": ServiceLevelObjective(objective="99", indicator="latency", latency_threshold="2"),
        "rollout": WAITS,
        "suspended": True,
    },
    "claimed devices": {
        "gpu": Gpu(count=1, claims=({"name": "gpu", "resourceClaimTemplateName": "big"},)),
        "model": claim_model(),
        "draft": http_model(name="small", cache_key="0123456789abcdef"),
        "engine": service().engine.model_copy(update={"speculative": SpeculativeDecoding(type="draft-simple")}),
        "disruption": Disruption(max_unavailable="1", protect_startup=False),
    },
    "a part of a GPU": {
        "gpu": Gpu(count=1, resource="nvidia.com/mig-1g.5gb", toleration_key="nvidia.com/gpu"),
        "engine": Sglang(),
        "storage": ModelStorage(persistence="Ephemeral"),
        "pod": POD,
    },
    "a render node": {"gpu": Gpu(count=1, resource="devic.es/dri-render")},
    "a router": {"engine": LlamaCppRouter(), "rollout": WAITS, "storage": ModelStorage(claim_name="mine")},
}


@pytest.fixture(scope="module")
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    yield client
    client.close()


@pytest.fixture(scope="module")
def namespace(api: controlplane.Api) -> Iterator[str]:
    with api.namespace("accepted") as name:
        yield name


@pytest.fixture(scope="module")
def options(client: KubeClient) -> Iterator[RenderOptions]:
    with extensions.installed(client) as names:
        yield RenderOptions(
            installed=names, prometheus_url="http://prometheus:9090", claim_mode="perService", render_group=109
        )


@pytest.mark.parametrize("case", CASES)
def test_the_api_server_takes_all_of_it_as_it_is(
    case: str, client: KubeClient, namespace: str, options: RenderOptions
) -> None:
    desired: DesiredService = service(**{"key": ServiceKey("llmkube", namespace, "svc"), **CASES[case]})
    rendered = render(desired, options)
    for part in (*rendered.shared, *rendered.objects):
        kind = client.mapping(part.manifest["apiVersion"], part.kind)
        live = client.apply(kind, namespace, part.manifest, field_manager="herdsman", dry_run=True)
        assert missing(part.manifest, live) == [], part.part


def test_the_api_server_takes_the_priority_classes(client: KubeClient) -> None:
    for document in priority_classes():
        live = client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="herdsman", dry_run=True)
        assert missing(document, live) == []


def missing(wanted: Any, live: Any, path: str = "") -> list[str]:
    """List the paths of `wanted` that are missing or different in the server's answer; it may have more fields."""
    if isinstance(wanted, dict):
        found = [missing(value, (live or {}).get(key), f"{path}.{key}") for key, value in wanted.items()]
        return [one for paths in found for one in paths]
    if isinstance(wanted, list) and isinstance(live, list) and len(wanted) == len(live):
        found = [missing(one, other, f"{path}[{at}]") for at, (one, other) in enumerate(zip(wanted, live, strict=True))]
        return [one for paths in found for one in paths]
    return [] if wanted == live else [f"{path}: {wanted!r} became {live!r}"]
