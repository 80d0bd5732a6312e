"""The claims that a new loop counts before its first pass, by the objects that an earlier loop made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from automation.admission.quota_controller import running_claims
from automation.cache import trim
from automation.cache.cluster_cache import ClusterCache
from components import naming
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey

GIB = 1 << 30


def cluster(dialect: str, cr: Json, *objects: Json) -> ClusterCache:
    """The caches of a cluster with one service, and with no service of another dialect."""
    by_name = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects}

    def cache(name: str) -> Any:
        def listed(kind: kinds.Kind) -> list[Json]:
            mine = [cr] if kind is kinds.MODELS else [obj for obj in objects if obj["kind"] == kind.kind]
            return mine if name == dialect else []

        index = SimpleNamespace(objects=lambda _namespace, _name: by_name)
        return SimpleNamespace(kind=kinds.MODELS, listed=listed, get=lambda *_: cr, index=index)

    caches = {name: cache(name) for name in ("llmkube", "kserve")}
    found = SimpleNamespace(caches=caches, llmkube=caches["llmkube"], priority_of=lambda _cr: None)
    return cast(ClusterCache, found)


def pod(gpus: int, memory: str) -> Json:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"memory": memory}}
    return {"spec": {"containers": [{"name": "main", "resources": resources}]}}


def raw(kind: str, name: str, replicas: int, *, annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    """An object of service `chat` as the API server returns it."""
    owner = {"kind": "LLMInferenceService", "uid": "u", "controller": True, "name": "chat"}
    return {
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": "prod",
            "labels": {naming.LABEL_SERVICE: "chat"},
            "annotations": annotations or {},
            "ownerReferences": [{**owner, "kind": "InferenceService"} if kind == "InferenceService" else owner],
        },
        "spec": {"replicas": replicas, **spec},
    }


CR = {"metadata": {"name": "chat", "namespace": "prod", "uid": "u", "creationTimestamp": "t"}, "spec": {}}


def test_a_service_that_sleeps_keeps_its_claim() -> None:
    deployment = raw("Deployment", "chat", 0, annotations={naming.ANNOTATION_ASLEEP: "2"}, template=pod(2, "1Gi"))
    trimmed = {**trim.deployment(deployment), "kind": "Deployment"}
    claim = running_claims(cluster("llmkube", CR, trimmed))[ServiceKey("llmkube", "prod", "chat")]
    assert (claim.gpus, claim.memory_bytes) == (4, 2 * GIB)


def test_the_pods_of_all_dialects_count_and_groups_count_as_a_whole() -> None:
    group = {"size": 3, "leaderTemplate": pod(1, "1Gi"), "workerTemplate": pod(4, "2Gi")}
    autoscaled = raw("Deployment", "chat-prefill", 1, template=pod(1, "1Gi"))
    sets = [trim.workload(each) for each in (raw("LeaderWorkerSet", "chat", 2, leaderWorkerTemplate=group), autoscaled)]
    target = {"kind": "Deployment", "name": "chat-prefill"}
    scaler = raw("HorizontalPodAutoscaler", "chat-hpa", 0, scaleTargetRef=target, maxReplicas=5)
    claim = running_claims(cluster("kserve", CR, *sets, trim.autoscaler(scaler)))[ServiceKey("kserve", "prod", "chat")]
    assert (claim.gpus, claim.memory_bytes) == (2 * (1 + 2 * 4) + 5, (2 * (1 + 2 * 2) + 5) * GIB)


def test_objects_of_another_owner_do_not_count() -> None:
    foreign = trim.workload(raw("Deployment", "chat", 1, template=pod(1, "1Gi")))
    foreign["metadata"]["owner"] = "another"
    assert running_claims(cluster("kserve", CR, foreign)) == {}
