"""A real API server accepts the generated CRDs, and with them accepts and refuses objects as with LLMKube's CRDs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agent.contract import ProcessPhase, ProcessPlan, ProcessReport
from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents
from tests.support import controlplane
from tests.support.definitions import CRDS, holds, install_crds
from tests.support.vectors import Vector, merged, vectors

VECTORS = vectors()
API = "/apis/inference.llmkube.dev/v1alpha1"
PLURALS = {"Model": "models", "InferenceService": "inferenceservices", "GPUQuota": "gpuquotas"}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
# LLMKube's CRD has no bound for memoryFraction (its vector lists this as a defect); Herdsman's has one.
STRICTER = {("068-invalid-model-fields", "Model/bad-10"): {"spec.hardware.memoryFraction"}}
# `minReplicas: 0`, which KEDA supports, and runtime `ollama`. LLMKube refuses both.
TAKEN = {("070-invalid-service-fields", f"InferenceService/bad-{number}") for number in ("03", "07")}


@pytest.fixture(scope="module")
def crds(api: controlplane.Api) -> controlplane.Api:
    """The control plane with the CRDs established."""
    install_crds(api)
    return api


@pytest.fixture
def namespace(crds: controlplane.Api, home: str) -> Iterator[str]:
    """The namespace; its Models, InferenceServices and GPUQuotas are deleted after the test."""
    yield home
    for kind in PLURALS:
        crds.delete(_collection(home, kind))


def _collection(namespace: str, kind: str) -> str:
    return f"{API}/namespaces/{namespace}/{PLURALS[kind]}"


def _in(namespace: str, obj: Json) -> Json:
    return merged(obj, {"metadata": {"namespace": namespace}})


def _causes(answer: Json) -> set[str]:
    causes = (answer.get("details") or {}).get("causes") or ()
    return {cause["field"] for cause in causes if cause["field"][:1] not in ("<", ".")}


@pytest.mark.parametrize("document", crd_documents(), ids=lambda document: document["metadata"]["name"])
def test_the_schema_is_structural_and_the_names_are_accepted(crds: controlplane.Api, document: Json) -> None:
    live = crds.get(f"{CRDS}/{document['metadata']['name']}")
    assert holds(live, "NamesAccepted")
    assert not holds(live, "NonStructuralSchema")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_objects_are_accepted_and_refused_as_the_peers_api_did(
    crds: controlplane.Api, namespace: str, vector: Vector
) -> None:
    for key, obj in vector.inputs.items():
        if obj["kind"] not in PLURALS:
            continue
        path = f"{_collection(namespace, obj['kind'])}?fieldValidation=Strict"
        status, answer = crds.request("POST", path, _in(namespace, obj))
        expected = vector.rejections.get(key) or STRICTER.get((vector.name, key))
        if (vector.name, key) in TAKEN:
            expected = None
        if expected is None:
            assert status == 201, f"{key}: {answer}"
        else:
            assert (status, _causes(answer)) == (422, expected), f"{key}: {answer}"
    for key, patch, expected in vector.rejected_patches():
        kind, _, name = key.partition("/")
        status, answer = crds.request(
            "PATCH", f"{_collection(namespace, kind)}/{name}", patch, content_type="application/merge-patch+json"
        )
        assert (status, _causes(answer)) == (422, expected), f"{key}: {answer}"


def test_defaults_are_those_of_the_peer(crds: controlplane.Api, namespace: str) -> None:
    service = crds.create(
        _collection(namespace, "InferenceService"),
        _service(
            endpoint={},
            autoscaling={"maxReplicas": 2},
            vllmConfig={"speculative": {"enabled": True}},
            sglangConfig={"speculative": {}},
            disruption={},
            rolloutPolicy={},
            slo={"objective": "99"},
            resources={"gpuSharing": {}},
        ),
    )
    assert service["spec"] == {
        "modelRef": "m",
        "runtime": "llamacpp",
        "replicas": 1,
        "priority": "normal",
        "suspend": False,
        "endpoint": {"port": 8080, "path": "/v1/chat/completions", "type": "ClusterIP"},
        "autoscaling": {"minReplicas": 1, "maxReplicas": 2},
        "vllmConfig": {"kvCacheDtype": "auto", "speculative": {"enabled": True, "numSpeculativeTokens": 4}},
        "sglangConfig": {"kvCacheDtype": "auto", "speculative": {"numDraftTokens": 4}},
        "disruption": {"protectStartup": True},
        "rolloutPolicy": {"idleTimeoutSeconds": 300},
        "slo": {"objective": "99", "window": "28d", "indicator": "availability"},
        "resources": {"gpuSharing": {"mode": "exclusive"}},
    }
    model = crds.create(
        _collection(namespace, "Model"),
        {
            "apiVersion": "inference.llmkube.dev/v1alpha1",
            "kind": "Model",
            "metadata": {"name": "m"},
            "spec": {"source": "org/repo", "hardware": {"gpu": {"sharding": {}}}},
        },
    )
    assert model["spec"] == {
        "source": "org/repo",
        "format": "gguf",
        "refreshPolicy": "IfNotPresent",
        "hardware": {"accelerator": "cpu", "gpu": {"vendor": "nvidia", "sharding": {"strategy": "layer"}}},
    }


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"autoscaling": {"minReplicas": 5, "maxReplicas": 2}}, "spec.autoscaling.minReplicas"),
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}]},
            "spec.env[0].valueFrom.secretKeyRef.key",
        ),
        ({"probeOverrides": {"liveness": {"tcpSocket": {}}}}, "spec.probeOverrides.liveness.tcpSocket.port"),
        ({"podSecurityContext": {"fsGroup": "102"}}, "spec.podSecurityContext.fsGroup"),
        ({"tolerations": [{"tolerationSeconds": "60"}]}, "spec.tolerations[0].tolerationSeconds"),
        ({"vllmConfig": {"gpuMemoryUtilization": 1.0}}, "spec.vllmConfig.gpuMemoryUtilization"),
        (
            {"vllmConfig": {"speculative": {"numSpeculativeTokens": 17}}},
            "spec.vllmConfig.speculative.numSpeculativeTokens",
        ),
        ({"tgiConfig": {"hfTokenSecretRef": {"name": "s"}}}, "spec.tgiConfig.hfTokenSecretRef.key"),
    ],
)
def test_nested_structures_are_checked(crds: controlplane.Api, namespace: str, spec: Json, field: str) -> None:
    status, answer = crds.request("POST", _collection(namespace, "InferenceService"), _service(**spec))
    assert (status, _causes(answer)) == (422, {field}), answer


def _drafting(**fields: Any) -> Json:
    return {"speculativeDecoding": fields}


def _sharing(**fields: Any) -> Json:
    return {"resources": {"gpuSharing": fields}}


def _tried(crds: controlplane.Api, kind: str, body: Json) -> tuple[int, Json]:
    """Create an object in a dry run: the same validation, without a namespace to create and delete."""
    return crds.request("POST", f"{_collection('default', kind)}?fieldValidation=Strict&dryRun=All", body)


GATEWAY = {"enabled": True, "gatewayRef": {"name": "edge"}}
TAKEN_AS_WRITTEN: list[Json] = [
    {"mode": "rerank", "suspend": True, "revisionHistoryLimit": 0, "bindAddress": "::1", "runtime": "llamacpp-router"},
    {"autoscaling": {"minReplicas": 0, "maxReplicas": 100}},
    {"endpoint": {"type": "NodePort", "nodePort": 32767, "gateway": GATEWAY}},
    {"resources": {"ephemeralStorage": "40Gi", "gpu": 8}},
    _sharing(mode="partitioned", profile="1g.10gb"),
    _sharing(mode="shared", memoryLimitGiB=1),
    _drafting(type="none"),
    _drafting(type="draft-mtp", nDraftMax=1, pMin=0),
    _drafting(type="mtp", draftModelRef="d"),
    _drafting(type="draft", draftModelRef="d", pMin=1),
    _drafting(type="draft-dspark", draftModel="d.gguf"),
    _drafting(type="ngram-map-k4v", draftModelRef=""),
    {"modelCache": {"persistence": "Ephemeral"}},
    {"modelCache": {"persistence": "Cached", "claimName": "c"}},
    {"slo": {"objective": "50", "indicator": "latency", "latencyThreshold": "0.5", "window": "30m"}},
    {"slo": {"objective": "99.999"}},
    {"maxPodLifetimeSeconds": 2**40, "maxPodLifetimeIdleTimeoutSeconds": 0},
    {"turboQuantBits": 6, "pagedSSDCacheDir": "/d", "hotCacheMaxSize": "1GB", "pagedSSDCacheMaxSize": "2GB"},
    {"runtime": "vllm", "vllmConfig": {"quantization": "mxfp4"}},
    {
        "runtime": "sglang",
        "sglangConfig": {
            "tensorParallelSize": 1,
            "memFractionStatic": 0.99,
            "loraAdapters": [{"name": "a", "path": "/a"}],
            "speculative": {"algorithm": "Medusa", "acceptThresholdAcc": 1},
        },
    },
    {
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
        ],
        "extraVolumes": [{"name": "v", "csi": {"driver": "x", "volumeAttributes": {"a": "b"}}}],
        "extraVolumeMounts": [{"name": "v", "mountPath": "/v", "subPathExpr": "$(POD)"}],
    },
]


@pytest.mark.parametrize("spec", TAKEN_AS_WRITTEN, ids=lambda spec: ",".join(spec))
def test_the_newer_fields_are_kept_as_written(crds: controlplane.Api, spec: Json) -> None:
    status, answer = _tried(crds, "InferenceService", _service(**spec))
    assert status == 201, answer
    for name, value in spec.items():
        kept = answer["spec"][name]
        assert (merged(kept, value) if isinstance(value, dict) else value) == kept


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"mode": "chatting"}, "spec.mode"),
        ({"runtime": "mlx-server"}, "spec.runtime"),
        ({"turboQuantBits": 4}, "spec.turboQuantBits"),
        ({"autoscaling": {"minReplicas": 11, "maxReplicas": 20}}, "spec.autoscaling.minReplicas"),
        ({"endpoint": {"nodePort": 8080}}, "spec.endpoint.nodePort"),
        ({"endpoint": {"gateway": {"enabled": True}}}, "spec.endpoint.gateway.gatewayRef"),
        ({"resources": {"ephemeralStorage": "lots"}}, "spec.resources.ephemeralStorage"),
        (_sharing(mode="partitioned"), "spec.resources.gpuSharing"),
        (_sharing(mode="partitioned", profile=""), "spec.resources.gpuSharing"),
        (_sharing(profile="1g.10gb"), "spec.resources.gpuSharing"),
        (_sharing(memoryLimitGiB=1), "spec.resources.gpuSharing"),
        (_sharing(mode="shared", memoryLimitGiB=0), "spec.resources.gpuSharing.memoryLimitGiB"),
        (_drafting(type="magic"), "spec.speculativeDecoding.type"),
        (_drafting(type="draft"), "spec.speculativeDecoding"),
        (_drafting(type="draft-simple", draftModelRef=""), "spec.speculativeDecoding"),
        (_drafting(type="draft-eagle3", draftModelRef="d", draftModel="d.gguf"), "spec.speculativeDecoding"),
        (_drafting(type="ngram-simple", draftModelRef="d"), "spec.speculativeDecoding"),
        (_drafting(type="none", draftModel="d.gguf"), "spec.speculativeDecoding"),
        (_drafting(type="mtp", nDraftMax=0), "spec.speculativeDecoding.nDraftMax"),
        (_drafting(type="mtp", pMin=1.1), "spec.speculativeDecoding.pMin"),
        ({"modelCache": {"persistence": "Ephemeral", "claimName": "c"}}, "spec.modelCache"),
        ({"modelCache": {"claimName": ""}}, "spec.modelCache.claimName"),
        ({"maxPodLifetimeSeconds": 0}, "spec.maxPodLifetimeSeconds"),
        ({"maxPodLifetimeIdleTimeoutSeconds": -1}, "spec.maxPodLifetimeIdleTimeoutSeconds"),
        ({"revisionHistoryLimit": -1}, "spec.revisionHistoryLimit"),
        ({"slo": {"objective": "100"}}, "spec.slo.objective"),
        ({"slo": {"objective": "49.9"}}, "spec.slo.objective"),
        ({"slo": {"objective": "99", "indicator": "latency"}}, "spec.slo"),
        ({"slo": {"objective": "99", "window": "1y"}}, "spec.slo.window"),
        ({"sglangConfig": {"memFractionStatic": 1}}, "spec.sglangConfig.memFractionStatic"),
        ({"sglangConfig": {"loraAdapters": [{"name": "a"}]}}, "spec.sglangConfig.loraAdapters[0].path"),
        ({"extraVolumes": [{"emptyDir": {}}]}, "spec.extraVolumes[0].name"),
        ({"extraVolumeMounts": [{"name": "v"}]}, "spec.extraVolumeMounts[0].mountPath"),
        (
            {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone"}]},
            "spec.topologySpreadConstraints[0].whenUnsatisfiable",
        ),
    ],
)
def test_the_newer_fields_are_checked(crds: controlplane.Api, spec: Json, field: str) -> None:
    status, answer = _tried(crds, "InferenceService", _service(**spec))
    assert (status, _causes(answer)) == (422, {field}), answer


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"namespaceRef": "team-a", "gpuCount": 0}, None),
        ({"selector": {"matchLabels": {"team": "a"}}, "gpuCount": 4, "vramBytes": 2**40, "minPriority": "low"}, None),
        ({"selector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}, "gpuCount": 1}, None),
        ({"gpuCount": 1}, "spec"),
        ({"namespaceRef": "team-a", "selector": {}, "gpuCount": 1}, "spec"),
        ({"namespaceRef": "team-a", "gpuCount": -1}, "spec.gpuCount"),
        ({"namespaceRef": "team-a", "gpuCount": 1, "minPriority": "urgent"}, "spec.minPriority"),
    ],
)
def test_a_quota_is_for_one_namespace_or_for_some(crds: controlplane.Api, spec: Json, field: str | None) -> None:
    body = {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "GPUQuota",
        "metadata": {"name": "q"},
        "spec": spec,
    }
    status, answer = _tried(crds, "GPUQuota", body)
    assert (status, _causes(answer)) == ((201, set()) if field is None else (422, {field})), answer


def test_an_unknown_field_is_refused_by_strict_validation(crds: controlplane.Api, namespace: str) -> None:
    path = f"{_collection(namespace, 'InferenceService')}?fieldValidation=Strict"
    status, answer = crds.request("POST", path, _service(contxtSize=4096))
    assert status == 400
    assert "contxtSize" in answer["message"]


def test_a_port_may_be_a_name_or_a_number(crds: controlplane.Api, namespace: str) -> None:
    probes = {"liveness": {"httpGet": {"port": "http"}}, "readiness": {"httpGet": {"port": 8080}}}
    created = crds.create(_collection(namespace, "InferenceService"), _service(probeOverrides=probes))
    assert created["spec"]["probeOverrides"] == probes


def test_the_scale_subresource_moves_replicas(crds: controlplane.Api, namespace: str) -> None:
    crds.create(_collection(namespace, "InferenceService"), _service())
    path = f"{_collection(namespace, 'InferenceService')}/svc"
    patch = {"spec": {"replicas": 3}}
    status, _ = crds.request("PATCH", f"{path}/scale", patch, content_type="application/merge-patch+json")
    assert status == 200
    live = crds.get(path)
    assert live is not None
    assert live["spec"]["replicas"] == 3
    status = {"status": {"replicas": 2, "selector": "app=svc"}}
    crds.request("PATCH", f"{path}/status", status, content_type="application/merge-patch+json")
    scale = crds.get(f"{path}/scale")
    assert scale is not None
    assert scale["status"] == {"replicas": 2, "selector": "app=svc"}


def test_status_is_a_subresource_with_conditions_merged_by_type(crds: controlplane.Api, namespace: str) -> None:
    crds.create(_collection(namespace, "InferenceService"), _service())
    path = f"{_collection(namespace, 'InferenceService')}/svc"
    for manager, kind in (("herdsman", "Ready"), ("somebody-else", "MemoryPressure")):
        condition = {
            "type": kind,
            "status": "True",
            "reason": "Tested",
            "message": "",
            "lastTransitionTime": "2026-11-21T10:00:00Z",
        }
        crds.apply(f"{path}/status", {**_service(spec=False), "status": {"conditions": [condition]}}, manager=manager)
    live = crds.get(path)
    assert live is not None
    assert [c["type"] for c in live["status"]["conditions"]] == ["Ready", "MemoryPressure"]


@pytest.mark.parametrize(
    ("plural", "columns"),
    [
        ("inferenceservices", ["Name", "Phase", "Model", "Replicas", "Reason", "Queue", "Priority", "Endpoint", "Age"]),
        ("models", ["Name", "Phase", "Size", "Accelerator", "Arch", "Age"]),
        ("modelrouters", ["Name", "Phase", "Rules", "Endpoint", "Age"]),
        ("modelpools", ["Name", "Phase", "Resident", "Pending", "Age"]),
        ("loraadapters", ["Name", "Service", "Adapter", "Phase", "Loaded", "Replicas", "Path", "Age"]),
        ("gpuquotas", ["Name", "GPU Count", "Used GPUs", "Used Memory", "Denials", "Age"]),
    ],
)
def test_kubectl_get_shows_the_peers_columns(
    crds: controlplane.Api, namespace: str, plural: str, columns: list[str]
) -> None:
    status, table = crds.request("GET", f"{API}/namespaces/{namespace}/{plural}", accept=TABLE)
    assert status == 200
    assert [column["name"] for column in table["columnDefinitions"]] == columns


def test_a_host_process_holds_what_the_contract_says(crds: controlplane.Api, namespace: str) -> None:
    plan = ProcessPlan(host="h", service="s", argv=("llama-server",), service_name="s", memory_bytes=2**40)
    path = f"/apis/herdsman.dev/v1alpha1/namespaces/{namespace}/hostprocesses/p"
    body = {
        "apiVersion": "herdsman.dev/v1alpha1",
        "kind": "HostProcess",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": plan.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    crds.apply(path, body)
    report = ProcessReport(phase=ProcessPhase.READY, port=8080, ready=True)
    told = {**body, "status": report.model_dump(mode="json", by_alias=True, exclude_none=True)}
    crds.apply(f"{path}/status", told)
    live = crds.get(path)
    assert live is not None
    assert ProcessPlan.model_validate(live["spec"]) == plan
    assert ProcessReport.model_validate(live["status"]) == report


def _service(spec: bool = True, **fields: Any) -> Json:
    body: Json = {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "svc"},
    }
    return {**body, "spec": {"modelRef": "m", **fields}} if spec else body
