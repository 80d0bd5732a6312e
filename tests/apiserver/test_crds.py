"""The generated CRDs on a real API server: it takes them, and takes and refuses objects as it did for LLMKube's."""

from __future__ import annotations

from typing import Any

import pytest

from agent.contract import ProcessPhase, ProcessPlan, ProcessReport
from program.dialects.crds import crd_documents
from tests.support import controlplane
from tests.support.vectors import Vector, merged, vectors

Json = dict[str, Any]
VECTORS = vectors()
API = "/apis/inference.llmkube.dev/v1alpha1"
PLURALS = {"Model": "models", "InferenceService": "inferenceservices"}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
# LLMKube's CRD leaves memoryFraction without a bound (a defect that its vector names); ours has one.
STRICTER = {("068-invalid-model-fields", "Model/bad-10"): {"spec.hardware.memoryFraction"}}


@pytest.fixture(scope="module")
def crds(api: controlplane.Api) -> controlplane.Api:
    """The control plane with the CRDs established."""
    for document in crd_documents():
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{document['metadata']['name']}"
        api.apply(path, document)
        controlplane.eventually(
            lambda path=path: _holds(api.get(path), "Established"), what=f"{path} to be established"
        )
    return api


def _holds(obj: Json | None, condition: str) -> bool:
    conditions = ((obj or {}).get("status") or {}).get("conditions") or ()
    return any(c["type"] == condition and c["status"] == "True" for c in conditions)


def _collection(namespace: str, kind: str) -> str:
    return f"{API}/namespaces/{namespace}/{PLURALS[kind]}"


def _in(namespace: str, obj: Json) -> Json:
    return merged(obj, {"metadata": {"namespace": namespace}})


def _causes(answer: Json) -> set[str]:
    causes = (answer.get("details") or {}).get("causes") or ()
    return {cause["field"] for cause in causes if cause["field"][:1] not in ("<", ".")}


@pytest.mark.parametrize("document", crd_documents(), ids=lambda document: document["metadata"]["name"])
def test_the_schema_is_structural_and_the_names_are_accepted(crds: controlplane.Api, document: Json) -> None:
    live = crds.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{document['metadata']['name']}")
    assert _holds(live, "NamesAccepted")
    assert not _holds(live, "NonStructuralSchema")


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
        ),
    )
    assert service["spec"] == {
        "modelRef": "m",
        "runtime": "llamacpp",
        "replicas": 1,
        "priority": "normal",
        "endpoint": {"port": 8080, "path": "/v1/chat/completions", "type": "ClusterIP"},
        "autoscaling": {"minReplicas": 1, "maxReplicas": 2},
        "vllmConfig": {"kvCacheDtype": "auto", "speculative": {"enabled": True, "numSpeculativeTokens": 4}},
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
